"""The contract of every proposer in the table, and proof that each clause catches a proposer that breaks it."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.config import SpeculativeConfig
from specdec.core.sequence import Sequence
from specdec.proposers.base import NOTHING, ProposalInput, Proposer
from specdec.proposers.registry import PROPOSERS, build_proposer
from specdec.types import MAX_DRAFT_NODES, Draft
from tests.proposers.helpers import EXAMPLE, SETTINGS, ask, make_context, make_sequence

VOCAB_SIZE = 4
MAX_LENGTH = 6

Build = Callable[[], Proposer]
Check = Callable[[Build, str, "Scenario"], None]


@dataclass(frozen=True)
class Scenario:
    """Sequences that grow: in round r, sequence i is asked for `lengths[r][i]` tokens, then commits `grown[r][i]`."""

    prompts: tuple[tuple[int, ...], ...]
    lengths: tuple[tuple[int, ...], ...]
    grown: tuple[tuple[tuple[int, ...], ...], ...]
    cache_salt: str | None = None

    def sequences(self, grown: bool = False) -> list[Sequence]:
        """As they begin, or as they are in the end."""
        sequences = []
        for i, prompt in enumerate(self.prompts):
            sequences.append(make_sequence(prompt, f"request-{i // 2}", i % 2, self.cache_salt, place=i))
            for growth in self.grown if grown else ():
                sequences[-1].token_ids.extend(growth[i])
        return sequences


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    count = draw(st.integers(1, 4))
    rounds = draw(st.integers(1, 6))
    token = st.integers(0, VOCAB_SIZE - 1)

    def per_sequence(values: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
        return st.tuples(*[values] * count)

    return Scenario(
        draw(per_sequence(st.lists(token, min_size=1, max_size=20).map(tuple))),
        draw(st.tuples(*[per_sequence(st.integers(0, MAX_LENGTH))] * rounds)),
        draw(st.tuples(*[per_sequence(st.lists(token, min_size=1, max_size=4).map(tuple))] * rounds)),
    )


def values(draft: Draft) -> tuple[Any, ...]:
    """The draft in comparable form: products of matrices differ in the last bits with the batch."""
    probs = None if draft.draft_probs is None else draft.draft_probs.round(decimals=6).tolist()
    return draft.token_ids, draft.parents, probs, draft.proposer


def play(proposer: Proposer, scenario: Scenario, groups: Many[Many[int]] | None = None) -> list[dict[int, Any]]:
    """The drafts of each round by sequence. A group of sequences is one call; without groups, all are in one."""
    sequences = scenario.sequences()
    played = []
    for lengths, grown in zip(scenario.lengths, scenario.grown, strict=True):
        drafts: dict[int, Any] = {}
        for group in groups or [range(len(sequences))]:
            answer = ask(proposer, [sequences[i] for i in group], [lengths[i] for i in group], VOCAB_SIZE)
            drafts |= zip(group, map(values, answer), strict=True)
        played.append(drafts)
        for sequence, tokens in zip(sequences, grown, strict=True):
            sequence.token_ids.extend(tokens)
    return played


def check_form(build: Build, method: str, scenario: Scenario) -> None:
    """One draft a sequence, not too long, of valid ids, with a sound tree and sound laws, under no other's name."""
    proposer = build()
    sequences = scenario.sequences()
    for lengths in scenario.lengths:
        drafts = ask(proposer, sequences, lengths, VOCAB_SIZE)
        for draft, length in zip(drafts, lengths, strict=True):
            check_draft(draft, length, method)


def check_draft(draft: Draft, length: int, method: str) -> None:
    assert isinstance(draft, Draft)
    assert isinstance(draft.token_ids, tuple)
    assert all(type(token) is int and 0 <= token < VOCAB_SIZE for token in draft.token_ids)
    assert draft.proposer in (method, "none")  # the runner names what has no name
    if draft.parents is not None:
        assert len(draft.parents) == len(draft)
        assert all(-1 <= parent < node for node, parent in enumerate(draft.parents))
        siblings = list(zip(draft.parents, draft.token_ids, strict=True))
        assert len(set(siblings)) == len(siblings), "siblings hold different tokens"
    assert len(draft) <= MAX_DRAFT_NODES
    assert draft.depth <= length
    if draft.draft_probs is not None:
        assert tuple(draft.draft_probs.shape) == (len(draft), VOCAB_SIZE)
        for row, token in zip(draft.draft_probs.tolist(), draft.token_ids, strict=True):
            assert min(row) >= 0
            assert sum(row) == pytest.approx(1, abs=1e-5)
            assert row[token] > 0


def check_order(build: Build, method: str, scenario: Scenario) -> None:
    """Each draft belongs to the sequence at its place, whoever stands beside it or was asked before it."""
    together = play(build(), scenario)
    backwards = range(len(scenario.prompts))[::-1]
    assert play(build(), scenario, [backwards]) == together
    assert play(build(), scenario, [[i] for i in backwards]) == together
    for i in backwards:
        assert play(build(), scenario, [[i]]) == [{i: drafts[i]} for drafts in together]


def check_determinism(build: Build, method: str, scenario: Scenario) -> None:
    assert play(build(), scenario) == play(build(), scenario)


def check_purity(build: Build, method: str, scenario: Scenario) -> None:
    """The sequences come out as they went in, down to the last field."""
    proposer = build()
    sequences = scenario.sequences()
    before = copy.deepcopy([vars(sequence) for sequence in sequences])
    for lengths in scenario.lengths:
        ask(proposer, sequences, lengths, VOCAB_SIZE)
        assert [vars(sequence) for sequence in sequences] == before
    for sequence in sequences:
        proposer.forget(sequence)
    assert [vars(sequence) for sequence in sequences] == before


def check_catch_up(build: Build, method: str, scenario: Scenario) -> None:
    """The last draft is the same whether the rounds before asked for 3 tokens each, for 3 and 0 in turn, or 0; and
    whether there were rounds before, but for one that learns from logits."""
    rounds, count = len(scenario.lengths), len(scenario.prompts)
    always = [3] * rounds
    changing = [3 * ((rounds - r) % 2) for r in range(rounds)]
    never = [0] * (rounds - 1) + [3]
    expected, *others = (
        play(build(), replace(scenario, lengths=tuple((length,) * count for length in lengths)))[-1]
        for lengths in (always, changing, never)
    )
    assert others == [expected, expected]
    if build().wants.logits:
        return  # the logits of the rounds before are gone
    sequences = scenario.sequences()
    for grown in scenario.grown[:-1]:
        for sequence, tokens in zip(sequences, grown, strict=True):
            sequence.token_ids.extend(tokens)
    late = ask(build(), sequences, [3] * count, VOCAB_SIZE)
    assert dict(enumerate(map(values, late))) == expected


def check_forget(build: Build, method: str, scenario: Scenario) -> None:
    """After forgetting, sequences of another cache salt under the same keys are new ones: what was learned from past
    requests is kept from them. Forgetting a stranger does nothing."""
    proposer = build()
    other = replace(scenario, prompts=scenario.prompts[::-1], grown=scenario.grown[::-1])
    for sequence in scenario.sequences():
        proposer.forget(sequence)
    for salt, played in (("first", scenario), ("second", other), ("third", scenario)):
        salted = replace(played, cache_salt=salt)
        assert play(proposer, salted) == play(build(), salted)
        for sequence in salted.sequences(grown=True):
            proposer.forget(sequence)


def check_hint(build: Build, method: str, scenario: Scenario) -> None:
    """A hint changes no draft and no sequence; 0 is followed by an empty draft, but for what learns as it is asked."""
    proposer = build()
    hint = getattr(proposer, "hint", None)
    if hint is None:
        return
    sequences, played = scenario.sequences(), []
    for lengths, grown in zip(scenario.lengths, scenario.grown, strict=True):
        before = copy.deepcopy([vars(sequence) for sequence in sequences])
        hints = [hint(sequence) for sequence in sequences]
        assert hints == [hint(sequence) for sequence in sequences]
        assert all(type(each) is int and each >= 0 for each in hints)
        assert [vars(sequence) for sequence in sequences] == before
        drafts = ask(proposer, sequences, lengths, VOCAB_SIZE)
        assert proposer.wants.logits or all(told or not draft for told, draft in zip(hints, drafts, strict=True))
        played.append(dict(enumerate(map(values, drafts))))
        for sequence, tokens in zip(sequences, grown, strict=True):
            sequence.token_ids.extend(tokens)
    assert played == play(build(), scenario)


CHECKS = (check_form, check_order, check_determinism, check_purity, check_catch_up, check_forget, check_hint)


WITH_MODELS = ("draft", "eagle", "eagle3", "medusa")


@pytest.mark.parametrize("method", [method for method in (*PROPOSERS, EXAMPLE) if method not in WITH_MODELS])
@pytest.mark.parametrize("check", CHECKS)
@given(scenario=scenarios())
def test_contract(check: Check, method: str, scenario: Scenario) -> None:
    keep_contract(check, method, scenario)


@pytest.mark.parametrize("method", WITH_MODELS)
@pytest.mark.parametrize("check", CHECKS)
@settings(max_examples=15)
@given(scenario=scenarios())
def test_contract_with_models(check: Check, method: str, scenario: Scenario) -> None:
    keep_contract(check, method, scenario)


def keep_contract(check: Check, method: str, scenario: Scenario) -> None:
    config = SpeculativeConfig(method, settings=SETTINGS.get(method, {}))
    check(lambda: build_proposer(config, make_context(VOCAB_SIZE, method=method)), method, scenario)


class Wrong:
    """Repeats a sequence's last token, and breaks one clause of the contract."""

    kv_caches = ()
    wants = NOTHING

    def __init__(self, fault: str) -> None:
        self.fault = fault
        self.calls: dict[tuple[str, int], int] = {}
        self.seen: dict[tuple[str, int], list[int]] = {}
        self.instance = next(INSTANCES)
        self.num_hints = 0

    def hint(self, sequence: Sequence) -> int:
        """ "hesitates" promises nothing and drafts, "hinting" drafts otherwise once it has hinted."""
        self.num_hints += 1
        return 0 if self.fault == "hesitates" else 1

    def propose(self, sequences: Many[Sequence], inp: ProposalInput) -> list[Draft]:
        drafts = [self.draft(sequence, length) for sequence, length in zip(sequences, inp.lengths, strict=True)]
        if self.fault == "swapped":
            drafts.reverse()
        return drafts[1:] if self.fault == "missing" else drafts

    def draft(self, sequence: Sequence, length: int) -> Draft:
        key = sequence.key
        token = sequence.token_ids[-1]
        if self.fault == "hinting":
            token = (token + self.num_hints) % VOCAB_SIZE
        if self.fault == "long":
            length += 1
        elif self.fault == "impure":
            sequence.provenance.append("touched")
        elif self.fault == "random":
            token = self.instance % VOCAB_SIZE
        elif self.fault == "foreign":
            token += VOCAB_SIZE
        elif self.fault in ("steps", "remembers"):
            # "steps" counts how often it was asked, "remembers" keeps a forgotten sequence's first token.
            self.calls[key] = self.calls.get(key, 0) + (length > 0)
            first = self.seen.setdefault(key, sequence.token_ids[:1])[0]
            token = self.calls[key] % VOCAB_SIZE if self.fault == "steps" else first
        return Draft((token,) * length, proposer="wrong")

    def forget(self, sequence: Sequence) -> None:
        self.calls.pop(sequence.key, None)


INSTANCES = itertools.count()

SCENARIO = Scenario(
    prompts=((0, 1, 0, 1), (2, 3, 2), (1, 1, 2)),
    lengths=((3, 0, 2), (1, 3, 3), (3, 3, 0)),
    grown=(((1,), (3, 2), (0,)), ((2, 0), (1,), (3,)), ((0,), (1,), (2,))),
)


@pytest.mark.parametrize("check", CHECKS)
def test_the_wrong_proposer_without_a_fault_passes(check: Check) -> None:
    check(lambda: Wrong("none"), "wrong", SCENARIO)


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        ("long", check_form),
        ("missing", check_form),
        ("foreign", check_form),
        ("swapped", check_order),
        ("random", check_determinism),
        ("impure", check_purity),
        ("steps", check_catch_up),
        ("remembers", check_forget),
        ("hesitates", check_hint),
        ("hinting", check_hint),
    ],
)
def test_each_clause_catches_who_breaks_it(fault: str, check: Check) -> None:
    with pytest.raises((AssertionError, ValueError)):
        check(lambda: Wrong(fault), "wrong", SCENARIO)


def test_a_wrong_name_or_law_is_caught() -> None:
    law = torch.full((2, VOCAB_SIZE), 1 / VOCAB_SIZE)
    check_draft(Draft((1, 2), draft_probs=law, proposer="p"), 2, "p")
    check_draft(Draft((1, 2, 3), parents=(-1, -1, 0), proposer="p"), 3, "p")
    for wrong in (
        Draft((1, 2), proposer="q"),
        Draft((1,), draft_probs=law, proposer="p"),
        Draft((1, 2), draft_probs=2 * law, proposer="p"),
        Draft((0, 1), draft_probs=torch.eye(VOCAB_SIZE)[2:], proposer="p"),
        Draft((1, 2), parents=(-1, 1), proposer="p"),
        Draft((1, 1), parents=(-1, -1), proposer="p"),
        Draft((1, 2, 3), parents=(-1, 0, 1), proposer="p"),
    ):
        with pytest.raises(AssertionError):
            check_draft(wrong, 2, "p")
