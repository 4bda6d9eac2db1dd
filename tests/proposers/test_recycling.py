"""Token Recycling against a plain dictionary of what was seen last."""

from __future__ import annotations

import json
import random
import re
import tracemalloc
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec.core.sequence import Sequence
from specdec.proposers import recycling
from specdec.proposers.base import ProposalInput, TargetStates
from specdec.proposers.recycling import GOOD_ENOUGH, RecyclingProposer, RecyclingSettings
from specdec.types import MAX_SPECULATIVE_TOKENS, Draft
from tests.proposers.helpers import make_context, make_sequence

VOCABULARY = 6
SALTS = (None, "x")


def rank(row: torch.Tensor) -> list[int]:
    return sorted(range(len(row)), key=lambda token: (-float(row[token]), token))


@dataclass
class Naive:
    """The definition: dictionaries, whole rankings, and a walk down each rank path."""

    settings: RecyclingSettings
    own: dict[tuple[str, int], dict[int, list[int]]] = field(default_factory=dict)
    past: dict[str | None, dict[int, list[int]]] = field(default_factory=dict)

    def best(self, row: torch.Tensor) -> list[int]:
        """As many as a shape of any depth can use."""
        shapes = map(self.settings.tree_choice.shape, range(1, MAX_SPECULATIVE_TOKENS + 1))
        return rank(row)[: max(shape.num_ranks for shape in shapes)]

    def learn(self, sequence: Sequence, states: TargetStates) -> None:
        assert states.logits is not None
        own = self.own.setdefault(sequence.key, {})
        before = dict(own)
        accepted = [0, *(node + 1 for node in states.path)]
        rejected: list[int] = []
        for row, token in enumerate(states.judged):
            if token not in {states.judged[other] for other in (*accepted, *rejected)}:
                rejected.append(row)
        rejected.sort(key=lambda row: states.judged[row] in before)
        for row in rejected[: self.settings.recycling_max_rejected]:
            own[states.judged[row]] = self.best(states.logits[row])
        for row, follower in zip(accepted, sequence.token_ids[-len(accepted) :], strict=True):
            if follower not in before.get(states.judged[row], [])[:GOOD_ENOUGH]:
                own[states.judged[row]] = self.best(states.logits[row])

    def forget(self, sequence: Sequence) -> None:
        self.past.setdefault(sequence.request.cache_salt, {}).update(self.own.pop(sequence.key, {}))

    def draft(self, sequence: Sequence, length: int) -> set[tuple[int, ...]]:
        """The token paths of all nodes."""
        known = {**self.past.get(sequence.request.cache_salt, {}), **self.own.get(sequence.key, {})}
        paths = set()
        for ranks in self.settings.tree_choice.shape(length).paths:
            tokens = [sequence.token_ids[-1]]
            for one in ranks:
                candidates = known.get(tokens[-1], [])
                if one >= len(candidates):
                    break
                tokens.append(candidates[one])
            else:
                paths.add(tuple(tokens[1:]))
        return paths


def paths_of(draft: Draft) -> list[tuple[int, ...]]:
    paths: list[tuple[int, ...]] = []
    for node, token in enumerate(draft.token_ids):
        parent = node - 1 if draft.parents is None else draft.parents[node]
        paths.append((token,) if parent < 0 else (*paths[parent], token))
    return paths


def step(sequence: Sequence, draft: Draft, path: tuple[int, ...], token: int, seed: int) -> TargetStates:
    """Commit a draft's path and one more token; random logits, with ties."""
    chance = torch.Generator().manual_seed(seed)
    logits = torch.randint(0, 5, (1 + len(draft), VOCABULARY), generator=chance).float()
    judged = (sequence.token_ids[-1], *draft.token_ids)
    states = TargetStates(sequence.num_tokens - 1, 1 + len(path), judged=judged, logits=logits, path=path)
    sequence.token_ids.extend([*(draft.token_ids[node] for node in path), token])
    return states


@st.composite
def settings(draw: st.DrawFn) -> RecyclingSettings:
    return RecyclingSettings(
        tree=draw(st.sampled_from(["chain", "breadth", "ranked"])),
        tree_nodes=draw(st.integers(1, 20)),
        tree_width=draw(st.integers(1, 8)),
        recycling_max_rejected=draw(st.sampled_from([0, 1, 3, 64])),
    )


@given(settings=settings(), data=st.data())
def test_drafts_are_those_of_the_dictionary(settings: RecyclingSettings, data: st.DataObject) -> None:
    """Sequences of two salts that are verified, end and begin anew; and what is drafted from that, at any depth."""
    proposer = RecyclingProposer(settings, make_context(VOCABULARY))
    naive = Naive(settings)
    token = st.integers(0, VOCABULARY - 1)
    sequences = [make_sequence([i], f"{i}", 0, SALTS[i % 2]) for i in range(3)]
    drafts = [Draft()] * 3
    for number in range(data.draw(st.integers(1, 6))):
        states: list[TargetStates | None] = []
        for i, (sequence, draft) in enumerate(zip(sequences, drafts, strict=True)):
            path: tuple[int, ...] = ()
            while (children := draft.children(path[-1] if path else -1)) and data.draw(st.booleans()):
                path = (*path, data.draw(st.sampled_from(children)))
            states.append(step(sequence, draft, path, data.draw(token), seed=10 * number + i))
            naive.learn(sequence, states[-1])
        lengths = data.draw(st.lists(st.integers(0, 5), min_size=3, max_size=3))
        drafts = proposer.propose(sequences, ProposalInput(lengths, states))
        for sequence, draft, length in zip(sequences, drafts, lengths, strict=True):
            paths = paths_of(draft)
            assert len(set(paths)) == len(paths)
            assert set(paths) == naive.draft(sequence, length)
            assert paths == sorted(paths, key=len)
            assert (draft.parents is None) == all(len(path) == i for i, path in enumerate(paths, 1))
        if data.draw(st.booleans()):
            ended = data.draw(st.integers(0, 2))
            proposer.forget(sequences[ended])
            naive.forget(sequences[ended])
            sequences[ended] = make_sequence([data.draw(token)], f"{number} {ended}", 0, SALTS[ended % 2])
            drafts[ended] = Draft()


def shown(proposer: RecyclingProposer, sequence: Sequence, judged: list[int], tops: list[list[int]]) -> None:
    """A step that rejected every node: after each judged token the given tokens are likeliest, in that order."""
    logits = torch.zeros(len(judged), 50)
    for row, best in zip(logits, tops, strict=True):
        row[best] = torch.arange(len(best), 0, -1).float()
    states = TargetStates(sequence.num_tokens - 1, 1, judged=tuple(judged), logits=logits)
    proposer.propose([sequence], ProposalInput([0], [states]))


def proposer_of(**fields: Any) -> RecyclingProposer:
    return RecyclingProposer(RecyclingSettings(**({"tree": "breadth", "tree_width": 2} | fields)), make_context(50))


def drafted(proposer: RecyclingProposer, sequence: Sequence, length: int = 2) -> set[tuple[int, ...]]:
    return set(paths_of(proposer.propose([sequence], ProposalInput([length]))[0]))


def test_a_tree_holds_what_is_known_of_its_shape() -> None:
    proposer = proposer_of()
    sequence = make_sequence([1])
    assert drafted(proposer, sequence) == set()
    shown(proposer, sequence, [1, 3], [[2, 3], [4, 5]])
    assert drafted(proposer, sequence, 1) == {(2,), (3,)}
    assert drafted(proposer, sequence) == {(2,), (3,), (3, 4), (3, 5)}
    (draft,) = proposer.propose([sequence], ProposalInput([2]))
    assert (draft.token_ids, draft.parents, draft.proposer) == ((2, 3, 4, 5), (-1, -1, 1, 1), "recycling")


def test_a_chain_and_a_tree_that_became_one_have_no_parents() -> None:
    for fields in ({"tree": "chain"}, {"tree_width": 1}):
        proposer = proposer_of(**fields)
        sequence = make_sequence([1])
        shown(proposer, sequence, [1, 3], [[3, 2], [4, 5]])
        (draft,) = proposer.propose([sequence], ProposalInput([3]))
        assert (draft.token_ids, draft.parents) == ((3, 4), None)


def test_a_loop_is_drafted_to_any_depth() -> None:
    proposer = proposer_of(tree="chain")
    sequence = make_sequence([1])
    shown(proposer, sequence, [1, 2], [[2], [1]])
    assert proposer.propose([sequence], ProposalInput([7]))[0].token_ids == (2, 1, 2, 1, 2, 1, 2)


def test_of_rejected_nodes_unknown_tokens_are_learned_first_and_no_more_than_asked() -> None:
    for most, known in ((0, {1}), (1, {1, 4}), (2, {1, 4, 5}), (64, {1, 3, 4, 5})):
        proposer = proposer_of(recycling_max_rejected=most)
        sequence = make_sequence([1])
        shown(proposer, sequence, [3], [[7, 8]])
        shown(proposer, sequence, [1, 3, 4, 4, 5], [[2, 3]] * 5)
        own = proposer._own[sequence.key]
        assert {token for token, best in own.items() if best == [2, 3]} == known


def test_candidates_stay_while_what_followed_is_near_their_top() -> None:
    proposer = proposer_of(tree_width=3)
    for follower, kept in ((20, True), (21, True), (22, False), (9, False)):
        sequence = make_sequence([1], request_id=str(follower))
        shown(proposer, sequence, [1], [[20, 21, 22]])
        sequence.token_ids.append(follower)
        shown(proposer, sequence, [1], [[30, 31, 32]])
        assert proposer._own[sequence.key][1] == ([20, 21, 22] if kept else [30, 31, 32])


def test_past_requests_teach_later_ones_of_their_salt_alone() -> None:
    proposer = proposer_of()
    first = make_sequence([1], "first", cache_salt="a")
    shown(proposer, first, [1], [[2, 3]])
    beside, later = make_sequence([1], "beside", cache_salt="a"), make_sequence([1], "later", cache_salt="b")
    assert drafted(proposer, beside) == set(), "a live request is no past one"
    proposer.forget(first)
    assert drafted(proposer, beside) == {(2,), (3,)}
    assert drafted(proposer, later) == drafted(proposer, make_sequence([1])) == set()
    shown(proposer, beside, [1], [[4, 5]])
    assert drafted(proposer, beside) == {(4,), (5,)}, "its own steps count more"
    assert drafted(proposer, make_sequence([1], "third", cache_salt="a")) == {(2,), (3,)}


def test_the_salt_that_was_used_longest_ago_gives_way() -> None:
    proposer = proposer_of(recycling_max_tables=2)

    def say(salt: str) -> None:
        sequence = make_sequence([1], f"said by {salt}", cache_salt=salt)
        shown(proposer, sequence, [1], [[2, 3]])
        proposer.forget(sequence)

    def knows(salt: str) -> bool:
        return bool(drafted(proposer, make_sequence([1], "asks", cache_salt=salt)))

    say("a")
    say("b")
    assert knows("a")
    say("c")
    assert [knows(salt) for salt in "abc"] == [True, False, True]
    assert not proposer._own


def test_without_tables_only_a_request_itself_is_drawn_from() -> None:
    proposer = proposer_of(recycling_max_tables=0)
    sequence = make_sequence([1])
    shown(proposer, sequence, [1], [[2, 3]])
    assert drafted(proposer, sequence) == {(2,), (3,)}
    proposer.forget(sequence)
    assert drafted(proposer, make_sequence([1])) == set()
    assert proposer.num_bytes == 0


def test_all_learn_before_any_drafts() -> None:
    """Two sequences that end in the other's first token: neither is drafted from half-learned tables."""
    proposer = proposer_of()
    sequences = [make_sequence([1], "a"), make_sequence([1], "b")]
    logits = torch.eye(50)[[7, 8]]
    states = [TargetStates(0, 1, judged=(1,), logits=logits[i : i + 1]) for i in (0, 1)]
    drafts = proposer.propose(sequences, ProposalInput([1, 1], states))
    assert [draft.token_ids[0] for draft in drafts] == [7, 8]


def test_steps_without_logits_teach_nothing() -> None:
    proposer = proposer_of()
    chunk = TargetStates(0, 3)
    assert proposer.propose([make_sequence([1])] * 2, ProposalInput([2, 2], [None, chunk]))[0].token_ids == ()
    assert not proposer._own


def test_what_is_no_number_is_not_learned() -> None:
    proposer = proposer_of()
    sequence = make_sequence([1])
    shown(proposer, sequence, [1], [[2, 3]])
    states = TargetStates(0, 1, judged=(1,), logits=torch.full((1, 50), torch.nan))
    proposer.propose([sequence], ProposalInput([2], [states]))
    assert drafted(proposer, sequence, 1) == {(2,), (3,)}


def test_memory_is_bounded_and_num_bytes_says_how_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recycling, "OWN_TOKENS", 500)
    vocabulary = 3_000
    chance = random.Random(0)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        settings = RecyclingSettings(recycling_max_rejected=64, recycling_max_tables=2)
        proposer = RecyclingProposer(settings, make_context(vocabulary))
        tables = proposer.num_bytes
        assert tables == 2 * vocabulary * 8 * 4
        live = [make_sequence([1], str(i)) for i in range(4)]
        logits = torch.rand(17, vocabulary)
        for _ in range(300):
            for sequence in live:
                judged = tuple(chance.randrange(vocabulary) for _ in range(17))
                states = TargetStates(0, 1, judged=judged, logits=logits)
                proposer.propose([sequence], ProposalInput([0], [states]))
        real = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert [len(own) for own in proposer._own.values()] == [500] * 4
    assert real <= proposer.num_bytes <= 2 * real
    newest = [*proposer._own[live[0].key]][-1]
    shown_last = TargetStates(0, 1, judged=(newest - 1 if newest else 1,), logits=logits[:1])
    proposer.propose([live[0]], ProposalInput([0], [shown_last]))
    assert newest in proposer._own[live[0].key], "the newest stays when another comes"
    for sequence in live:
        proposer.forget(sequence)
    assert proposer.num_bytes == tables


def test_a_shape_from_a_file_decides_what_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "tree.json"
    file.write_text(json.dumps([[0], [4], [4, 0]]))
    proposer = proposer_of(tree=str(file), tree_width=1, tree_nodes=1)
    assert proposer.settings.num_nodes(2) == 3
    sequence = make_sequence([1])
    shown(proposer, sequence, [1, 6], [[2, 3, 4, 5, 6], [7]])
    file.unlink()
    assert drafted(proposer, sequence) == {(2,), (6,), (6, 7)}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tree": "confidence"}, "tree 'confidence' needs probabilities, which recycling has not; use 'ranked'"),
        ({"tree": "rankd"}, "unknown tree 'rankd'; did you mean 'ranked'?"),
        ({"tree_nodes": 65}, "tree_nodes must be an integer between 1 and 64; got 65"),
        ({"tree_width": 0}, "tree_width must be an integer between 1 and 64; got 0"),
        ({"recycling_max_rejected": -1}, "recycling_max_rejected must be an integer between 0 and 64; got -1"),
        ({"recycling_max_rejected": True}, "recycling_max_rejected must be an integer between 0 and 64; got True"),
        ({"recycling_max_tables": 1025}, "recycling_max_tables must be an integer between 0 and 1024; got 1025"),
        ({"recycling_max_tables": "8"}, "recycling_max_tables must be an integer between 0 and 1024; got '8'"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(words)}") as refused:
        RecyclingSettings(**fields)
    assert "\n" not in str(refused.value)


@given(settings=settings(), k=st.integers(0, 32))
def test_a_draft_has_no_more_nodes_than_the_settings_say(settings: RecyclingSettings, k: int) -> None:
    context = replace(make_context(VOCABULARY), num_speculative_tokens=k)
    proposer = RecyclingProposer(settings, context)
    sequence = make_sequence([0])
    logits = torch.arange(VOCABULARY).float().expand(VOCABULARY, -1)
    states = TargetStates(0, 1, judged=tuple(range(VOCABULARY)), logits=logits)
    for length in range(k + 1):
        (draft,) = proposer.propose([sequence], ProposalInput([length], [states]))
        assert len(draft) <= settings.num_nodes(length) <= settings.num_nodes(k)
        assert draft.depth <= length


def test_lengths_and_states_must_match_the_sequences() -> None:
    for wrong in (ProposalInput([1, 1]), ProposalInput([1], [None, None])):
        with pytest.raises(ValueError, match="zip"):
            proposer_of().propose([make_sequence([1])], wrong)
