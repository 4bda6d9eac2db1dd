"""Batches for attention: ragged rows of a paged cache, with drafts, in memory that is NaN wherever nobody may look."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch

from specdec.kernels import reference


@dataclass(frozen=True)
class Row:
    """`committed` entries, the last `queries` of them computed now, then a draft with these parents."""

    committed: int
    queries: int
    parents: tuple[int, ...] = ()

    @property
    def length(self) -> int:
        return self.committed + len(self.parents)

    @property
    def masks(self) -> list[int]:
        """Of every token computed now."""
        own: list[int] = []
        for node, parent in enumerate(self.parents):
            own.append((own[parent] if parent >= 0 else 0) | 1 << node)
        return [0] * self.queries + own

    @property
    def positions(self) -> list[int]:
        drafted = [self.committed + mask.bit_count() - 1 for mask in self.masks[self.queries :]]
        return [*range(self.committed - self.queries, self.committed), *drafted]

    def seen_by(self, query: int, window: int | None, first_entry: int) -> list[int]:
        """The entries that its `query`-th token sees, in the order of their positions, from the contract's words."""
        at, mask = self.positions[query], self.masks[query]
        path = [entry for entry in range(self.committed) if entry <= at]
        path += [self.committed + node for node in range(len(self.parents)) if mask >> node & 1]
        first = 0 if window is None else max(0, at - window + 1)
        return [entry for entry in path[first:] if entry >= first_entry]


@dataclass(frozen=True)
class Shape:
    """What all rows of a batch have in common."""

    groups: int = 2
    repeats: int = 2
    size: int = 16
    block_size: int = 3
    dtype: torch.dtype = torch.float32
    window: int | None = None
    soft_cap: float | None = None
    first_entry: int = 0

    @property
    def scale(self) -> float:
        """As models have it: scores of order one, whose rounding shows little in the weights."""
        return float(self.size**-0.5)


@dataclass
class Attention:
    """The tensors of a call. `spoiled` rows have a last draft node that is not a number."""

    shape: Shape
    rows: list[Row]
    query: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    tables: torch.Tensor
    spoiled: list[bool] = field(default_factory=list)

    def arguments(self) -> dict[str, Any]:
        sizes = [len(row.positions) for row in self.rows]
        masks = [mask - (1 << 64) if mask >> 63 else mask for row in self.rows for mask in row.masks]
        return {
            "query_start_loc": torch.tensor([0, *sizes]).cumsum(0).int(),
            "seq_lens": torch.tensor([row.length for row in self.rows], dtype=torch.int32),
            "committed_lens": torch.tensor([row.committed for row in self.rows], dtype=torch.int32),
            "block_tables": self.tables,
            "positions": torch.tensor([p for row in self.rows for p in row.positions]),
            "ancestor_masks": torch.tensor(masks) if any(row.parents for row in self.rows) else None,
            "scale": self.shape.scale,
            "sliding_window": self.shape.window,
            "soft_cap": self.shape.soft_cap,
            "first_entry": self.shape.first_entry,
        }

    def alone(self, row: int) -> Attention:
        """The call with one of the rows only, over the same caches."""
        sizes = [len(each.positions) for each in self.rows]
        start = sum(sizes[:row])
        query, table = self.query[start : start + sizes[row]], self.tables[row : row + 1]
        return Attention(self.shape, [self.rows[row]], query, self.keys, self.values, table)

    def slots(self, row: int, entries: list[int]) -> torch.Tensor:
        size = self.shape.block_size
        return torch.tensor([int(self.tables[row, e // size]) * size + e % size for e in entries])

    def exact(self, row: int, query: int, at: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The result [H, D] of a row's `query`-th token, the `at`-th of all, in float64, and its size without signs."""
        shape = self.shape
        slots = self.slots(row, self.rows[row].seen_by(query, shape.window, shape.first_entry))
        keys, values = (
            reference.from_entries(cache.flatten(0, 1)[slots], torch.float32).double()
            for cache in (self.keys, self.values)
        )
        own = self.query[at].unflatten(0, (shape.groups, shape.repeats))
        own = (own.bfloat16() if shape.dtype == torch.bfloat16 else own).double()
        scores = torch.einsum("ngd,grd->ngr", keys, own) * shape.scale
        if shape.soft_cap is not None:
            scores = shape.soft_cap * torch.tanh(scores / shape.soft_cap)
        weights = torch.softmax(scores, dim=0)
        exact, size = (torch.einsum("ngr,ngd->grd", weights, states).flatten(0, 1) for states in (values, values.abs()))
        return exact, size


def attention(shape: Shape, rows: list[Row], seed: int, *, spoil: bool = False, share: bool = False) -> Attention:
    """A call over random entries. With `share` the rows' first blocks are the same ones (their contents too)."""
    generator = torch.Generator().manual_seed(seed)
    counts = [-(-row.length // shape.block_size) for row in rows]
    shared = 0
    if share:
        shared = min(max(0, (row.committed - row.queries)) // shape.block_size for row in rows)
    blocks = torch.randperm(sum(counts) + 3, generator=generator).tolist()
    tables = torch.zeros(len(rows), max(counts), dtype=torch.int32)
    for b, count in enumerate(counts):
        own = [blocks.pop() for _ in range(count)]
        tables[b, :count] = torch.tensor(own)
        tables[b, :shared] = tables[0, :shared]
    entry = shape.size + 4 if shape.dtype == torch.int8 else shape.size
    cache = torch.zeros(sum(counts) + 3, shape.block_size, shape.groups, entry, dtype=shape.dtype)
    keys, values = void(cache), void(cache)
    call = Attention(shape, rows, torch.empty(0), keys, values, tables)
    for b, row in enumerate(rows):
        states = torch.randn(2, row.length, shape.groups, shape.size, generator=generator)
        states[:, : shape.first_entry] = math.nan
        spoils = spoil and len(row.parents) > 0
        if spoils:
            states[0, -1], states[1, -1] = math.inf, math.nan
        call.spoiled.append(spoils)
        reference.write_kv(*states, keys, values, call.slots(b, list(range(row.length))))
    total = sum(len(row.positions) for row in rows)
    call.query = torch.randn(total, shape.groups * shape.repeats, shape.size, generator=generator)
    return call


def void(cache: torch.Tensor) -> torch.Tensor:
    """A cache like this one that holds NaN only; in int8, in every scale."""
    if cache.dtype != torch.int8:
        return torch.full_like(cache, math.nan)
    return torch.full_like(cache, -1)  # four bytes of ones are a NaN
