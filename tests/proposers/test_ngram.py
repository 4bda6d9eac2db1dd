"""Prompt lookup against a scan that starts anew each time."""

from __future__ import annotations

from typing import Any, SupportsIndex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.proposers.base import ProposalInput
from specdec.proposers.ngram import LOOKUP_LIMIT, NgramProposer, NgramSettings
from tests.proposers.helpers import make_sequence


def scan(token_ids: list[int], length: int, settings: NgramSettings) -> tuple[int, ...]:
    """The definition: longest suffix first, its most recent earlier occurrence, copied on token by token."""
    end = len(token_ids)
    for size in range(settings.prompt_lookup_max, settings.prompt_lookup_min - 1, -1):
        for follower in range(end - 1, size - 1, -1):
            if size < end and token_ids[follower - size : follower] == token_ids[end - size :]:
                extended = list(token_ids)
                for i in range(length):
                    extended.append(extended[follower + i])
                return tuple(extended[end:])
    return ()


def propose(proposer: NgramProposer, token_ids: list[int], length: int) -> tuple[int, ...]:
    return proposer.propose([make_sequence(token_ids)], ProposalInput([length]))[0].token_ids


@st.composite
def lookup_settings(draw: st.DrawFn) -> NgramSettings:
    shortest = draw(st.integers(1, 4))
    return NgramSettings(draw(st.integers(shortest, 6)), shortest)


@given(
    settings=lookup_settings(),
    prompt=st.lists(st.integers(0, 2), max_size=40),
    steps=st.lists(st.tuples(st.lists(st.integers(0, 2), max_size=9), st.integers(0, 12), st.booleans()), max_size=25),
)
def test_index_equals_scan(
    settings: NgramSettings, prompt: list[int], steps: list[tuple[list[int], int, bool]]
) -> None:
    """Over random growth, with steps that ask for nothing or do not ask at all."""
    proposer = NgramProposer(settings)
    sequence = make_sequence(prompt)
    for grown, length, asked in [([], 4, True), *steps]:
        sequence.token_ids.extend(grown)
        if asked:
            draft = proposer.propose([sequence], ProposalInput([length]))[0]
            assert draft.token_ids == scan(sequence.token_ids, length, settings)


@given(
    settings=lookup_settings(),
    before=st.lists(st.integers(0, 2), max_size=30),
    after=st.lists(st.integers(0, 2), max_size=30),
)
def test_a_shorter_list_is_indexed_anew(settings: NgramSettings, before: list[int], after: list[int]) -> None:
    proposer = NgramProposer(settings)
    sequence = make_sequence(before)
    proposer.propose([sequence], ProposalInput([4]))
    sequence.token_ids = after[: max(0, len(before) - 1)]
    draft = proposer.propose([sequence], ProposalInput([4]))[0]
    assert draft.token_ids == scan(sequence.token_ids, 4, settings)


@pytest.mark.parametrize(
    ("token_ids", "length", "expected"),
    [
        ([1, 2, 1, 2], 5, (1, 2, 1, 2, 1)),
        ([7, 7, 7], 4, (7, 7, 7, 7)),
        ([1, 2, 3, 9, 8, 1, 2], 2, (3, 9)),
        ([1, 2, 3, 9, 8, 1, 2], 9, (3, 9, 8, 1, 2, 3, 9, 8, 1)),
        ([1, 2, 3, 0, 1, 2, 4, 0, 1, 2], 1, (4,)),
        ([5, 1, 2, 3, 0, 1, 2, 4, 0, 5, 1, 2], 1, (3,)),
        ([1, 9, 9, 8, 1], 3, ()),
        ([1, 2, 3, 4], 3, ()),
        ([1, 2], 3, ()),
        ([1], 3, ()),
    ],
    ids=[
        "loop fills the draft",
        "loop of one token",
        "what followed",
        "copies on into itself",
        "most recent wins",
        "longest wins over most recent",
        "single token is too short",
        "nothing repeats",
        "only itself",
        "one token",
    ],
)
def test_examples(token_ids: list[int], length: int, expected: tuple[int, ...]) -> None:
    assert propose(NgramProposer(NgramSettings()), token_ids, length) == expected


def test_minimum_of_one_and_maximum_bound_the_match() -> None:
    assert propose(NgramProposer(NgramSettings(3, 1)), [1, 9, 8, 1], 2) == (9, 8)
    token_ids = [5, 1, 2, 3, 0, 1, 2, 4, 0, 5, 1, 2]
    assert propose(NgramProposer(NgramSettings(2, 2)), token_ids, 1) == (4,)
    assert propose(NgramProposer(NgramSettings(LOOKUP_LIMIT, LOOKUP_LIMIT)), [1] * LOOKUP_LIMIT, 1) == ()
    assert propose(NgramProposer(NgramSettings(LOOKUP_LIMIT, LOOKUP_LIMIT)), [1] * (LOOKUP_LIMIT + 1), 1) == (1,)


def test_forget_frees_the_index() -> None:
    proposer = NgramProposer(NgramSettings())
    sequences = [make_sequence([1, 2, 1, 2], "a"), make_sequence([3, 4, 3, 4], "a", index=1)]
    proposer.propose(sequences, ProposalInput([4, 4]))
    for sequence in sequences:
        proposer.forget(sequence)
    assert not proposer._indexes


def test_nothing_is_kept_of_a_sequence_that_was_never_asked_for_a_draft() -> None:
    proposer = NgramProposer(NgramSettings())
    assert proposer.propose([make_sequence([1, 2, 1, 2])], ProposalInput([0]))[0].token_ids == ()
    assert not proposer._indexes


def test_lengths_must_match_the_sequences() -> None:
    with pytest.raises(ValueError, match="zip"):
        NgramProposer(NgramSettings()).propose([make_sequence([1, 1, 1])], ProposalInput([1, 1]))


class CountingList(list[int]):
    """Counts the items that are read from it."""

    reads = 0

    def __getitem__(self, at: SupportsIndex | slice) -> Any:
        got = super().__getitem__(at)
        self.reads += len(got) if isinstance(got, list) else 1
        return got

    def __iter__(self) -> Any:
        raise AssertionError("a step must not walk the whole context")


@pytest.mark.parametrize("num_tokens", [100, 10_000])
def test_a_step_reads_as_much_of_a_long_context_as_of_a_short_one(num_tokens: int) -> None:
    settings = NgramSettings()
    proposer = NgramProposer(settings)
    sequence = make_sequence([])
    tokens = sequence.token_ids = CountingList([1, 2, 3, 4, 5] * (num_tokens // 5))
    proposer.propose([sequence], ProposalInput([4]))
    for _ in range(10):
        tokens.extend([1, 2, 3])
        tokens.reads = 0
        proposer.propose([sequence], ProposalInput([4]))
        assert tokens.reads <= 3 + 2 * settings.prompt_lookup_max + 4


@pytest.mark.parametrize("name", ["prompt_lookup_max", "prompt_lookup_min"])
@pytest.mark.parametrize("value", [0, -1, LOOKUP_LIMIT + 1, 2.0, "3", True, None])
def test_settings_out_of_range_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be an integer between 1 and {LOOKUP_LIMIT}; got "):
        NgramSettings(**{name: value})


def test_a_maximum_under_the_minimum_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^prompt_lookup_max must be at least prompt_lookup_min \(5\); got 3$"):
        NgramSettings(prompt_lookup_max=3, prompt_lookup_min=5)
