"""Top-k, top-p and min-p: which tokens of a row stay possible.

In the order of likelihood (ties by lower id) each of the three keeps a prefix, so together they keep the shortest. What
a row keeps is found from the row alone: how many candidates its neighbours needed never shows (D5).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

CANDIDATES = 256
WIDENING = 16
"""A row is ranked by its 256 likeliest tokens; if it may keep more, by 16 times as many, and so on."""

CHUNK_ROWS = 32
"""Rows ranked at a time: bounds the float64 copies."""


def filter_rows(logits: torch.Tensor, top_k: Sequence[int], top_p: Sequence[float], min_p: Sequence[float]) -> None:
    """Set to -inf, in place, what the filters of each row of logits [n, V] exclude.

    `top_k` outside 1..V-1, `top_p` 1 and `min_p` 0 are off. Top-p counts the mass that top-k left, renormalised, and
    keeps at least one token; min-p is relative to the likeliest token.
    """
    vocab_size = logits.shape[-1]
    if all(not 0 < k < vocab_size for k in top_k) and min(top_p, default=1.0) >= 1.0 and not any(min_p):
        return
    limits = [k if 0 < k < vocab_size else vocab_size for k in top_k]
    floors = logits.new_full((len(limits),), float("-inf"))
    ranked = [i for i, limit in enumerate(limits) if limit < vocab_size or top_p[i] < 1.0]
    while ranked:
        chunk, ranked = ranked[:CHUNK_ROWS], ranked[CHUNK_ROWS:]
        width = min(vocab_size, CANDIDATES, 1 + max(limits[i] for i in chunk))
        while chunk:
            chunk = _rank(logits, chunk, width, limits, top_p, floors)
            width = min(vocab_size, WIDENING * width)
    if any(min_p):
        shares = [math.log(share) if share else -math.inf for share in min_p]
        floors = torch.maximum(floors, logits.amax(dim=-1) + torch.tensor(shares).to(logits))
    logits.masked_fill_(logits < floors[:, None], float("-inf"))


def _rank(
    logits: torch.Tensor,
    chunk: list[int],
    width: int,
    limits: Sequence[int],
    top_p: Sequence[float],
    floors: torch.Tensor,
) -> list[int]:
    """Write the smallest kept logit of the rows in `chunk` to `floors`, seeing each row's `width` likeliest tokens.

    Where equal logits straddle the border, the surplus is set to -inf at once. Answers the rows that need a wider look.
    """
    rows = _take(logits, chunk)
    values = rows.topk(width, dim=-1).values  # [n, width], descending
    own_limits, own_top_p = [limits[i] for i in chunk], [top_p[i] for i in chunk]
    kept = _prefix_lengths(rows, values, own_limits, own_top_p)
    last = kept.clamp(max=width)[:, None] - 1
    borders = values.gather(-1, last)[:, 0]
    floors[chunk] = borders
    following = values.gather(-1, (last + 1).clamp(max=width - 1))[:, 0]
    tied = (borders == following) & (borders > float("-inf")) & (last[:, 0] < width - 1)
    vocab_size = logits.shape[-1]
    wide = []
    for i, count, limit, tie in zip(chunk, kept.tolist(), own_limits, tied.tolist(), strict=True):
        if width < vocab_size and (count >= width or width <= limit < vocab_size):
            wide.append(i)
        elif tie:
            _drop_ties(logits[i], floors[i], count)
    return wide


def _prefix_lengths(
    rows: torch.Tensor,
    values: torch.Tensor,
    limits: Sequence[int],
    top_p: Sequence[float],
) -> torch.Tensor:
    """How many tokens of each row top-k and top-p keep, int64 [n]; all of `values` or more: look at more tokens."""
    limit = torch.tensor(limits, device=rows.device)
    share = torch.tensor(top_p, dtype=torch.float64, device=rows.device)
    if min(top_p) >= 1.0:
        return limit
    wide = values.double()
    mass = (wide - wide[:, :1]).exp().cumsum(dim=-1)  # relative to the likeliest token
    total = mass.gather(-1, (limit[:, None] - 1).clamp(max=values.shape[-1] - 1))[:, 0]
    unlimited = [i for i, k in enumerate(limits) if k == rows.shape[-1] and top_p[i] < 1.0]
    if unlimited:
        weights = _take(rows, unlimited).double() - values[unlimited, :1].double()
        total[unlimited] = weights.exp().sum(dim=-1)
    reached = (mass < (share * total)[:, None]).sum(dim=-1) + 1
    return torch.where(share < 1.0, torch.minimum(reached, limit), limit)


def _take(logits: torch.Tensor, rows: list[int]) -> torch.Tensor:
    """Those rows (ascending), as a view where they are neighbours."""
    first, stop = rows[0], rows[-1] + 1
    return logits[first:stop] if stop - first == len(rows) else logits[rows]


def _drop_ties(row: torch.Tensor, border: torch.Tensor, count: int) -> None:
    """Leave exactly `count` tokens of row [V] at or above `border`: of those equal to it, the lowest ids."""
    equal = row == border
    room = count - int((row > border).sum())
    row[equal & (equal.cumsum(dim=-1) > room)] = float("-inf")
