"""Suffix decoding against its definition, its memory, and who may see whose outputs."""

from __future__ import annotations

import random
import re
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.core.sequence import Sequence
from specdec.proposers.base import ProposalInput
from specdec.proposers.suffix import DEEPEST, SMALLEST_BUDGET, SuffixProposer, SuffixSettings
from specdec.types import MAX_SPECULATIVE_TOKENS
from tests.proposers import naive_suffix
from tests.proposers.helpers import make_sequence
from tests.proposers.test_ngram import CountingList
from tests.proposers.test_suffix_tree import suffix_settings

TOKENS = st.lists(st.integers(0, 2), max_size=15)


def propose(proposer: SuffixProposer, sequence: Sequence, length: int = 4) -> tuple[int, ...]:
    draft = proposer.propose([sequence], ProposalInput([length]))[0]
    assert draft.parents is None
    return draft.token_ids


def say(
    proposer: SuffixProposer, output: list[int], request_id: str = "past", index: int = 0, salt: str | None = None
) -> Sequence:
    """A request that is drafted for, says `output` and ends."""
    sequence = make_sequence([99], request_id, index, salt)
    propose(proposer, sequence)
    sequence.token_ids.extend(output)
    proposer.forget(sequence)
    return sequence


def ask(proposer: SuffixProposer, context: list[int], length: int = 4, salt: str | None = None) -> tuple[int, ...]:
    """What a request that is about to be forgotten again gets."""
    sequence = make_sequence(context, "asking", cache_salt=salt)
    drafted = propose(proposer, sequence, length)
    proposer.forget(sequence)
    return drafted


@given(
    settings=suffix_settings(),
    past=st.lists(TOKENS, max_size=4),
    prompt=TOKENS,
    steps=st.lists(st.tuples(st.lists(st.integers(0, 2), max_size=5), st.integers(0, 8), st.booleans()), max_size=8),
)
def test_a_draft_is_that_of_the_definition(
    settings: SuffixSettings, past: list[list[int]], prompt: list[int], steps: list[tuple[list[int], int, bool]]
) -> None:
    """Over random growth, with steps that ask for nothing or do not ask at all, beside past outputs."""
    proposer = SuffixProposer(settings)
    for i, output in enumerate(past):
        say(proposer, output, str(i))
    sequence = make_sequence(prompt)
    for grown, length, asked in [([], 4, True), *steps]:
        sequence.token_ids.extend(grown)
        if asked:
            expected = naive_suffix.draft(sequence.token_ids, past, length, settings)
            assert propose(proposer, sequence, length) == expected


@pytest.mark.parametrize(
    ("past", "context", "expected"),
    [
        ([], [1, 2, 3, 4, 5, 1, 2], (3, 4)),
        ([], [1, 2, 3, 9, 1, 2, 3, 9, 1, 2, 3], (9, 1, 2, 3)),
        ([], [1, 5, 1, 6, 1, 6, 0, 1], (6,)),
        ([], [1, 6, 1, 5, 1], (5,)),
        ([], [1, 2, 3, 4], ()),
        ([[1, 2, 3, 4, 5, 6, 7]], [9, 1, 2, 3, 4], (5, 6, 7)),
        ([[1, 2, 3, 4], [1, 2, 3, 5], [1, 2, 3, 5]], [1, 2, 3], (5,)),
        ([[1, 2, 3, 4, 5]], [3, 8, 1, 2, 3], (4, 5)),
        ([[1, 2, 3], [5, 2, 4], [6, 2, 4]], [1, 2], (3,)),
        ([[2, 3]], [2, 4, 2], (4,)),
    ],
    ids=[
        "as many tokens as matched",
        "the longest match copies more",
        "the most frequent follower",
        "equally frequent: the smaller id",
        "nothing repeats",
        "what an output said",
        "counted over outputs",
        "past outputs know more",
        "the longer match",
        "equal scores: the request's own",
    ],
)
def test_examples(past: list[list[int]], context: list[int], expected: tuple[int, ...]) -> None:
    proposer = SuffixProposer(SuffixSettings())
    for i, output in enumerate(past):
        say(proposer, output, str(i))
    assert ask(proposer, context) == expected


def test_likelihood_is_the_product_of_shares_and_ends_a_draft() -> None:
    texts = [7, 1, 2, 7, 1, 3, 7, 4, 8, 7]  # after 7: 1 in two of three; after 7 1: 2 in one of two
    offset = {"suffix_decoding_max_spec_offset": 5.0}
    for least, expected in ((0.3, (1, 2)), (0.34, (1,)), (0.6, (1,)), (0.7, ())):
        settings = SuffixSettings(suffix_decoding_min_token_prob=least, **offset)
        assert ask(SuffixProposer(settings), texts)[:2] == expected


def test_salts_are_kept_apart() -> None:
    proposer = SuffixProposer(SuffixSettings())
    say(proposer, [1, 2, 3], "a", salt="x")
    say(proposer, [1, 2, 4], "b", salt=None)
    assert [ask(proposer, [1, 2], salt=salt) for salt in ("x", None, "y", "")] == [(3,), (4,), (), ()]


def test_every_sample_and_what_an_aborted_one_said_is_a_past_output() -> None:
    proposer = SuffixProposer(SuffixSettings())
    say(proposer, [1, 2, 3], "a", 0)
    say(proposer, [1, 2, 4], "a", 1)
    say(proposer, [1, 2, 4], "a", 2)
    assert len(proposer._past) == 3
    assert ask(proposer, [1, 2]) == (4,)


def test_only_the_output_is_kept_and_no_draft() -> None:
    proposer = SuffixProposer(SuffixSettings())
    sequence = make_sequence([1, 2, 3, 4, 1, 2], "a")
    sequence.draft = proposer.propose([sequence], ProposalInput([4]))[0]
    assert sequence.draft.token_ids
    sequence.token_ids.extend([6, 7])
    proposer.forget(sequence)
    assert ask(proposer, [1, 2]) == ask(proposer, [3]) == ()
    assert ask(proposer, [6]) == (7,)


def test_forgetting_frees_a_sequence_and_counts_its_output_once() -> None:
    proposer = SuffixProposer(SuffixSettings())
    sequence = say(proposer, [1, 2, 3])
    proposer.forget(sequence)
    assert len(proposer._past) == 1
    assert not proposer._own
    assert proposer.num_bytes == proposer._past.num_bytes


def test_sequences_that_were_never_drafted_for_leave_nothing() -> None:
    proposer = SuffixProposer(SuffixSettings())
    stranger = make_sequence([1], "a")
    assert propose(proposer, stranger, 0) == ()
    stranger.token_ids.extend([1, 2, 3])
    proposer.forget(stranger)
    assert proposer.num_bytes == 0


def test_zero_cached_requests_keeps_none() -> None:
    proposer = SuffixProposer(SuffixSettings(suffix_decoding_max_cached_requests=0))
    say(proposer, [1, 2, 3])
    assert ask(proposer, [1, 2]) == ()
    assert proposer.num_bytes == 0


def test_the_least_recently_used_output_goes_first() -> None:
    proposer = SuffixProposer(SuffixSettings(suffix_decoding_max_cached_requests=3))
    for first in (10, 20, 30):
        say(proposer, [first, first + 1, first + 2], salt="s")
    assert ask(proposer, [10, 11], salt="s") == (12,)
    say(proposer, [40, 41, 42], salt="other")
    say(proposer, [50, 51], salt="s")
    kept = [ask(proposer, [first, first + 1], salt="s") for first in (10, 20, 30)]
    assert kept == [(12,), (), ()]
    assert ask(proposer, [40, 41], salt="other") == (42,)
    assert ask(proposer, [50], salt="s") == (51,)
    for number in range(3):
        say(proposer, [60, 61], str(number), salt="third")
    assert set(proposer._past._trees) == {"third"}


@given(
    outputs=st.lists(st.tuples(TOKENS, st.sampled_from([None, "x"])), max_size=12),
    most=st.integers(1, 5),
    context=st.lists(st.integers(0, 2), min_size=1, max_size=6),
)
def test_after_evictions_drafts_are_those_of_the_outputs_left(
    outputs: list[tuple[list[int], str | None]], most: int, context: list[int]
) -> None:
    settings = SuffixSettings(suffix_decoding_max_cached_requests=most)
    proposer, fresh = SuffixProposer(settings), SuffixProposer(settings)
    for i, (output, salt) in enumerate(outputs):
        say(proposer, output, str(i), salt=salt)
    left = [entry for entry in outputs if len(entry[0]) > 1][-most:]
    for i, (output, salt) in enumerate(left):
        say(fresh, output, str(i), salt=salt)
    assert proposer.num_bytes == fresh.num_bytes
    for salt in (None, "x"):
        past = [output for output, owner in left if owner == salt]
        expected = naive_suffix.draft(context, past, 4, settings)
        assert propose(proposer, make_sequence(context, "now", cache_salt=salt)) == expected


@pytest.mark.parametrize("alphabet", [2, 50, 50_000])
def test_the_byte_budget_holds_while_it_is_filled(alphabet: int) -> None:
    """Several times over, by outputs and live contexts of all kinds; what Python allocates stays below it too."""
    rng = random.Random(alphabet)
    proposer = SuffixProposer(SuffixSettings(suffix_decoding_max_bytes=SMALLEST_BUDGET))
    live: list[Sequence] = []
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(50):
            prompt = [rng.randrange(alphabet) for _ in range(rng.randrange(1, 400))]
            live.append(make_sequence(prompt, str(number), cache_salt=rng.choice([None, "x"])))
            for sequence in live:
                proposer.propose([sequence], ProposalInput([4]))
                assert proposer.num_bytes <= SMALLEST_BUDGET
                sequence.token_ids.extend(rng.randrange(alphabet) for _ in range(40))
            if len(live) > 3:
                proposer.forget(live.pop(0))
                assert proposer.num_bytes <= SMALLEST_BUDGET
        own = sum(own_bytes(sequence) for sequence in live)
        assert tracemalloc.get_traced_memory()[0] - before - own <= SMALLEST_BUDGET
    finally:
        tracemalloc.stop()
    assert proposer._past._next > len(proposer._past) + 10
    assert proposer.num_bytes > SMALLEST_BUDGET / 3


def own_bytes(sequence: Sequence) -> int:
    """No more than what a test's own sequence takes: two lists, and an object for each token."""
    return 2_000 + 60 * sequence.num_tokens


def test_live_sequences_push_past_outputs_out_and_then_wait_for_room() -> None:
    rng = random.Random(0)
    proposer = SuffixProposer(SuffixSettings(suffix_decoding_max_bytes=SMALLEST_BUDGET))
    say(proposer, [1, 2, 3])
    contexts = [[7, 8, 9, *rng.sample(range(100, 50_000), 4_000), 7, 8] for _ in range(3)]
    first, second, third = (make_sequence(context, str(i)) for i, context in enumerate(contexts))
    assert propose(proposer, first) == (9, contexts[0][3])
    assert propose(proposer, second) == (9, contexts[1][3])
    assert not len(proposer._past)
    propose(proposer, third)
    num_indexed = proposer._own[third.key].size(0)
    assert num_indexed < third.num_tokens
    assert proposer.num_bytes <= SMALLEST_BUDGET
    proposer.forget(first)
    propose(proposer, third)
    assert num_indexed < proposer._own[third.key].size(0) == third.num_tokens


def test_an_output_larger_than_the_budget_is_not_kept() -> None:
    proposer = SuffixProposer(SuffixSettings(suffix_decoding_max_bytes=SMALLEST_BUDGET))
    say(proposer, list(range(5_000)))
    assert proposer.num_bytes == 0


@given(
    before=st.lists(st.integers(0, 2), min_size=1, max_size=30),
    after=st.lists(st.integers(0, 2), min_size=1, max_size=30),
)
def test_a_shorter_list_is_indexed_anew(before: list[int], after: list[int]) -> None:
    settings = SuffixSettings()
    proposer = SuffixProposer(settings)
    sequence = make_sequence(before)
    propose(proposer, sequence)
    sequence.token_ids = after[: max(0, len(before) - 1)]
    assert propose(proposer, sequence) == naive_suffix.draft(sequence.token_ids, [], 4, settings)
    sequence.token_ids = []
    propose(proposer, sequence)
    assert proposer.num_bytes == fresh_for(sequence).num_bytes


def fresh_for(sequence: Sequence) -> SuffixProposer:
    fresh = SuffixProposer(SuffixSettings())
    propose(fresh, sequence)
    return fresh


@pytest.mark.parametrize("num_tokens", [100, 10_000])
def test_a_step_reads_as_much_of_a_long_context_as_of_a_short_one(num_tokens: int) -> None:
    settings = SuffixSettings()
    proposer = SuffixProposer(settings)
    sequence = make_sequence([])
    tokens = sequence.token_ids = CountingList([1, 2, 3, 4, 5] * (num_tokens // 5))
    propose(proposer, sequence)
    for _ in range(10):
        tokens.extend([1, 2, 3])
        tokens.reads = 0
        propose(proposer, sequence)
        assert tokens.reads <= 3 + settings.suffix_decoding_max_tree_depth


def test_rooms_are_the_budget_or_what_the_tree_is_deep() -> None:
    settings = SuffixSettings(suffix_decoding_max_tree_depth=8)
    assert settings.rooms() == (0, 1, 2, 3, 4, 3, 2, 1)
    settings = SuffixSettings(10, suffix_decoding_max_spec_factor=0.1, suffix_decoding_max_spec_offset=0.2)
    assert settings.rooms() == (0, 0, 0, 0, 0, 0, 0, 0, 1, 1)
    settings = SuffixSettings(100, suffix_decoding_max_spec_factor=1e308, suffix_decoding_max_spec_offset=-3.0)
    assert settings.rooms() == (0, *[MAX_SPECULATIVE_TOKENS] * 68, *range(31, 0, -1))


@pytest.mark.parametrize(
    ("name", "values", "span"),
    [
        ("max_tree_depth", [1, 0, DEEPEST + 1, 2.0, "3", True, None], f"an integer between 2 and {DEEPEST}"),
        ("max_cached_requests", [-1, 1.0, "3", True, None], "an integer of at least 0"),
        ("max_bytes", [0, SMALLEST_BUDGET - 1, 1e9, None], f"an integer of at least {SMALLEST_BUDGET}"),
        ("max_spec_factor", [-0.1, float("inf"), float("nan"), 10**400, "1", True], "a finite number of at least 0"),
        ("max_spec_offset", [float("-inf"), float("nan"), 10**400, "1", None], "a finite number"),
        ("min_token_prob", [-0.1, 1.1, float("nan"), "1", True, None], "a finite number from 0 to 1"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(name: str, values: list[Any], span: str) -> None:
    for value in values:
        with pytest.raises(ValueError, match=f"^suffix_decoding_{name} must be {re.escape(span)}; got ") as refused:
            SuffixSettings(**{f"suffix_decoding_{name}": value})
        assert "\n" not in str(refused.value)


def test_defaults_are_those_of_vllm() -> None:
    settings = SuffixSettings()
    assert settings.suffix_decoding_max_tree_depth == 24
    assert settings.suffix_decoding_max_cached_requests == 10_000
    assert settings.suffix_decoding_max_spec_factor == 1.0
    assert settings.suffix_decoding_min_token_prob == 0.1


def test_lengths_must_match_the_sequences() -> None:
    with pytest.raises(ValueError, match="zip"):
        SuffixProposer(SuffixSettings()).propose([make_sequence([1, 1, 1])], ProposalInput([1, 1]))
