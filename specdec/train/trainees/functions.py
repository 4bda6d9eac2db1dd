"""The functions of a decoder layer as training needs them: differentiable, on packed rows, float32 where sums are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, dtype: torch.dtype) -> torch.Tensor:
    """float32 [..., H] -> [..., H] of `dtype`."""
    out: torch.Tensor = _RMSNorm.apply(x, weight, eps, dtype)  # type: ignore[no-untyped-call]
    return out


class _RMSNorm(torch.autograd.Function):
    """Composed of torch's own ops this is eight passes over memory and as many tensors kept for backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, eps: float, dtype: torch.dtype) -> torch.Tensor:
        size = x.shape[-1]
        scale = torch.rsqrt(torch.linalg.vecdot(x, x) / size + eps)[..., None]
        normed = x * scale
        ctx.save_for_backward(normed, weight, scale)
        return (normed * weight).to(dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        normed, weight, scale = ctx.saved_tensors
        slope = slope.to(normed.dtype)
        for_weight = torch.linalg.vecdot(slope.flatten(0, -2), normed.flatten(0, -2), dim=0)
        for_x = None
        if ctx.needs_input_grad[0]:
            inner = slope * weight
            along = torch.linalg.vecdot(inner, normed)[..., None] / normed.shape[-1]
            for_x = inner.addcmul_(normed, along, value=-1.0).mul_(scale)
        return for_x, for_weight, None, None


def take_rows(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """x[rows], where no row is taken twice."""
    out: torch.Tensor = _TakeRows.apply(x, rows)  # type: ignore[no-untyped-call]
    return out


class _TakeRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(rows)
        ctx.shape = x.shape
        return x.index_select(0, rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: torch.Tensor) -> tuple[torch.Tensor, None]:
        (rows,) = ctx.saved_tensors
        return slope.new_zeros(ctx.shape).index_add_(0, rows, slope), None


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of [T, heads, D], by cosines and sines [T, rotary_dim / 2] of the rows' positions."""
    half = cos.shape[-1]
    cos, sin = cos[:, None], sin[:, None]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)


@dataclass(frozen=True)
class Rows:
    """How packed queries and keys belong together."""

    query_counts: tuple[int, ...]
    """Of each sample."""
    key_counts: tuple[int, ...]
    last_keys: torch.Tensor  # int64 [R]   the last of its sample's keys that a query sees


def attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    chain: Sequence[tuple[torch.Tensor, torch.Tensor]],
    rows: Rows,
    scale: float,
) -> torch.Tensor:
    """Attention of `query` [R, heads, D] over the entries up to `last_keys` of the row's sample, `keys` and `values`
    [E, groups, D], and over the row's own chain, [R, groups, D] each: [R, heads, D].

    Sample by sample: no padding, and scores that stay in the cache.
    """
    groups, shape = keys.shape[1], query.shape
    query = (query * scale).view(shape[0], groups, shape[1] // groups, shape[2])  # [R, G, heads / G, D]
    own = torch.stack([(query * key[:, :, None]).sum(-1) for key, _ in chain], -1) if chain else None
    seen, own_seen = _attend_samples(query, keys, values, own, rows)
    for i, (_, value) in enumerate(chain):
        assert own_seen is not None
        seen = seen + own_seen[..., i, None] * value[:, :, None]
    return seen.reshape(shape)


def _attend_samples(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, own: torch.Tensor | None, rows: Rows
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """What the rows see of the entries [R, G, r, D], and how much of each of `own` [R, G, r, j]."""
    seen = [query[:0]]
    own_seen = [] if own is None else [own[:0]]
    counts, key_counts = list(rows.query_counts), list(rows.key_counts)
    parts = zip(
        torch.split(query, counts),
        torch.split(keys, key_counts),
        torch.split(values, key_counts),
        torch.split(rows.last_keys, counts),
        torch.split(own, counts) if own is not None else [None] * len(counts),
        strict=True,
    )
    for q, k, v, last, extra in parts:
        if not len(q):
            continue
        by_group = q.permute(1, 2, 0, 3)  # [G, r, A, D]
        groups, repeats, num_rows, size = by_group.shape
        scores = torch.bmm(by_group.reshape(groups, -1, size), k.permute(1, 2, 0)).view(groups, repeats, num_rows, -1)
        hidden = torch.arange(len(k), device=q.device) > last[:, None]
        scores = scores + torch.zeros_like(hidden, dtype=q.dtype).masked_fill_(hidden, float("-inf"))
        if extra is not None:
            scores = torch.cat((scores, extra.permute(1, 2, 0, 3)), -1)
        probs = torch.softmax(scores, -1)
        if extra is not None:
            own_seen.append(probs[..., len(k) :].permute(2, 0, 1, 3))
            probs = probs[..., : len(k)]
        out = torch.bmm(probs.reshape(groups, -1, len(k)), v.transpose(0, 1))
        seen.append(out.view(groups, repeats, num_rows, size).permute(2, 0, 1, 3))
    return torch.cat(seen), torch.cat(own_seen) if own is not None else None
