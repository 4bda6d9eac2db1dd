"""Top-k, top-p and min-p on vocabularies wider than what is looked at first."""

from __future__ import annotations

import pytest
import torch

from specdec.kernels import filters
from specdec.kernels.filters import filter_rows

VOCAB = 6000
CASES = [
    (50, 1.0, 0.0),
    (255, 1.0, 0.0),
    (256, 1.0, 0.0),
    (257, 0.9, 0.0),
    (4500, 1.0, 0.0),
    (5999, 0.95, 0.01),
    (-1, 0.5, 0.0),
    (0, 0.99, 0.0),
    (VOCAB, 0.9999, 0.2),
    (0, 1e-6, 0.0),
    (0, 1.0, 0.05),
    (0, 1.0, 0.0),
]
"""(top_k, top_p, min_p): within the first look, at its border, beyond it, and off."""


def _logits(scale: float) -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    return scale * torch.randn(len(CASES), VOCAB, generator=generator)


def _filtered(logits: torch.Tensor, cases: list[tuple[int, float, float]]) -> torch.Tensor:
    out = logits.clone()
    top_k, top_p, min_p = zip(*cases, strict=True)
    filter_rows(out, top_k, top_p, min_p)
    return out


def _kept(row: torch.Tensor, top_k: int, top_p: float, min_p: float) -> set[int]:
    """By sorting the whole row (stable: ties by lower id)."""
    order = torch.sort(row.double(), descending=True, stable=True).indices
    order = order[: top_k if 0 < top_k < len(row) else len(row)]
    probs = torch.softmax(row.double()[order], dim=-1)
    before = probs.cumsum(dim=-1) - probs
    keep = (before < top_p) & (probs >= min_p * probs[0]) if top_p < 1 else probs >= min_p * probs[0]
    return set(order[keep].tolist())


@pytest.mark.parametrize("scale", [0.1, 1.0, 4.0, 20.0])
def test_keeps_what_a_whole_sort_keeps(scale: float) -> None:
    logits = _logits(scale)
    out = _filtered(logits, CASES)
    for before, after, case in zip(logits, out, CASES, strict=True):
        kept = after != float("-inf")
        assert set(kept.nonzero().flatten().tolist()) == _kept(before, *case)
        assert torch.equal(after[kept], before[kept])


@pytest.mark.parametrize("scale", [0.1, 4.0])
def test_what_neighbours_need_never_shows(scale: float) -> None:
    logits = _logits(scale)
    out = _filtered(logits, CASES)
    for i, case in enumerate(CASES):
        assert torch.equal(_filtered(logits[i : i + 1], [case])[0], out[i])


def test_more_rows_than_a_chunk() -> None:
    generator = torch.Generator().manual_seed(8)
    logits = torch.randn(filters.CHUNK_ROWS + 5, 300, generator=generator)
    out = _filtered(logits, [(7, 0.9, 0.0)] * len(logits))
    for row, before in zip(out, logits, strict=True):
        assert torch.equal(row, _filtered(before[None], [(7, 0.9, 0.0)])[0])


@pytest.mark.parametrize("vocab_size", [5, 300, 6000])
@pytest.mark.parametrize("top_k", [1, 3, 270])
def test_ties_at_the_border_go_to_the_lowest_ids(vocab_size: int, top_k: int) -> None:
    logits = torch.zeros(2, vocab_size)
    logits[:, -1] = 1.0
    out = _filtered(logits, [(top_k, 1.0, 0.0), (0, 1.0, 0.0)])
    expected = [*range(min(top_k, vocab_size) - 1), vocab_size - 1]
    assert (out[0] != float("-inf")).nonzero().flatten().tolist() == expected
    assert torch.equal(out[1], logits[1])


def test_ties_in_top_p_go_to_the_lowest_ids() -> None:
    out = _filtered(torch.zeros(1, 8), [(0, 0.5, 0.0)])
    assert (out[0] != float("-inf")).nonzero().flatten().tolist() == [0, 1, 2, 3]


def test_ties_go_on_behind_the_first_look() -> None:
    out = _filtered(torch.zeros(1, 4096), [(0, filters.CANDIDATES / 4096, 0.0)])
    assert (out[0] != float("-inf")).nonzero().flatten().tolist() == list(range(filters.CANDIDATES))


@pytest.mark.parametrize("case", CASES)
def test_a_row_without_possible_tokens_stays_one(case: tuple[int, float, float]) -> None:
    out = _filtered(torch.full((1, VOCAB), float("-inf")), [case])
    assert (out == float("-inf")).all()


def test_banned_tokens_never_come_back() -> None:
    logits = torch.full((1, 40), float("-inf"))
    logits[0, 3:6] = torch.tensor([0.0, 1.0, 2.0])
    for case in [(10, 1.0, 0.0), (10, 0.9999999, 0.0), (0, 0.9999999, 0.0), (0, 1.0, 1e-9)]:
        assert torch.equal(_filtered(logits, [case]), logits)
