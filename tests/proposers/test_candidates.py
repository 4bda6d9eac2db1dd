"""Top candidates against sorting, and tables of them against a dictionary."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec.proposers.candidates import FOLD, GROUPS, PastCandidates, top_candidates
from specdec.types import MAX_DRAFT_NODES

VOCABULARIES = (1, 7, 258, FOLD, 2 * FOLD, 2 * FOLD + 1, 3 * FOLD, 49_152, 50_257)
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def by_sorting(row: torch.Tensor, width: int) -> list[int]:
    """The definition."""
    return np.argsort(-row.double().numpy(), kind="stable")[:width].tolist()


def rows_of(vocab_size: int) -> torch.Tensor:
    """Noise, noise with many ties, one value only, almost nothing possible, and an order: float64 [6, vocab]."""
    noise = torch.randn(2, vocab_size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rare = torch.full((vocab_size,), -torch.inf, dtype=torch.float64)
    rare[vocab_size // 2] = 1.0
    order = torch.arange(vocab_size, dtype=torch.float64)
    return torch.stack([noise[0], (2 * noise[1]).round(), torch.zeros_like(rare), rare, order, -order])


@pytest.mark.parametrize("vocab_size", VOCABULARIES)
@pytest.mark.parametrize("width", [1, 8, MAX_DRAFT_NODES])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_best_are_those_of_sorting(vocab_size: int, width: int, dtype: torch.dtype) -> None:
    width = min(width, vocab_size)
    logits = rows_of(vocab_size).to(dtype)
    expected = [by_sorting(row, width) for row in logits]
    assert top_candidates([(logits, range(6))], width) == expected
    assert top_candidates([(logits[4:], [1]), (logits, [2, 0])], width) == [expected[5], expected[2], expected[0]]


@given(
    values=st.lists(st.integers(-3, 3), min_size=1, max_size=30),
    place=st.integers(0, 10 * FOLD),
    vocab_size=st.integers(2 * FOLD + 1, 4 * FOLD),
    width=st.integers(1, 12),
)
def test_ties_across_the_folds_go_to_the_smallest_ids(
    values: list[int], place: int, vocab_size: int, width: int
) -> None:
    """Few values above a floor, at places a fold apart."""
    row = torch.full((vocab_size,), -9.0)
    for i, value in enumerate(values):
        row[(place + i * (FOLD + i % 2)) % vocab_size] = float(value)
    assert top_candidates([(row[None], [0])], width) == [by_sorting(row, width)]


def test_folding_leaves_more_groups_than_any_width() -> None:
    assert FOLD % GROUPS == 0
    assert GROUPS >= MAX_DRAFT_NODES


@pytest.mark.parametrize("vocab_size", [7, 49_152])
@pytest.mark.parametrize("num_broken", [1, 7])
def test_what_is_no_number_costs_nothing_but_its_own_candidates(vocab_size: int, num_broken: int) -> None:
    logits = rows_of(vocab_size)
    logits[0, :num_broken] = torch.nan
    broken, sound = top_candidates([(logits, [0, 1])], 4)
    assert sound == by_sorting(logits[1], 4)
    assert len(set(broken)) == len(broken) <= 4
    assert all(0 <= token < vocab_size for token in broken)


def test_nothing_asked_is_nothing_answered() -> None:
    assert top_candidates([], 4) == []
    assert top_candidates([(torch.zeros(2, 9), [])], 4) == []


@given(
    num_tables=st.integers(0, 3),
    steps=st.lists(
        st.tuples(st.sampled_from([None, "a", "b", "c", "d"]), st.dictionaries(st.integers(0, 4), st.integers(0, 9))),
        max_size=20,
    ),
)
def test_tables_hold_what_the_last_used_salts_learned_last(
    num_tables: int, steps: list[tuple[str | None, dict[int, int]]]
) -> None:
    """A step with nothing to keep is a look-up, which counts as use."""
    past = PastCandidates(num_tables, 5, 2)
    known: OrderedDict[str | None, dict[int, list[int]]] = OrderedDict()
    for salt, learned in steps:
        candidates = {token: [first, first + 1] for token, first in learned.items()}
        if candidates and num_tables:
            if salt not in known and len(known) == num_tables:
                known.popitem(last=False)
            known.setdefault(salt, {}).update(candidates)
            known.move_to_end(salt)
            past.keep(salt, candidates)
        else:
            past.keep(salt, candidates)
            assert past.find(salt, 0) == known.get(salt, {}).get(0, [])
            if salt in known:
                known.move_to_end(salt)
    assert past.num_bytes == num_tables * 5 * 2 * 4
    for salt in (None, "a", "b", "c", "d"):
        for token in range(5):
            assert past.find(salt, token) == known.get(salt, {}).get(token, [])


def test_found_ids_are_plain_integers() -> None:
    past = PastCandidates(1, 5, 2)
    past.keep(None, {3: [0, 4]})
    assert [type(token) for token in past.find(None, 3)] == [int, int]
