"""A step of many tokens as several of fewer tokens, one after the other.

What a row is does not depend on its neighbours, and no token sees one that comes after it: so the results are the same,
and what one op writes is still in the caches when the next one reads it.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from specdec.kernels.base import StepInputs

MOST_TOKENS = 288
"""Of a part. A prompt of 1,168 tokens took 0.96 of the time that it takes at once (bfloat16; int4: 0.93), and hardly
another time with 192 or 400."""

_MULTIPLE = 12
"""Of tokens in a part but the last: rows that the kernels multiply together."""


def split_step(inputs: StepInputs, most: int = MOST_TOKENS) -> Iterator[tuple[slice, StepInputs]]:
    """The parts of a step, of about the same size and at most `most` tokens, each with its place among the tokens."""
    tokens, positions, slots, query_start, seq_lens, committed_lens, tables, masks, *others = inputs
    assert tokens is not None
    assert query_start is not None
    count = len(tokens)
    parts = -(-count // most)
    if parts == 1:
        yield slice(0, count), inputs
        return
    size = min(most, -(-count // (parts * _MULTIPLE)) * _MULTIPLE)
    for first in range(0, count, size):
        own = slice(first, min(first + size, count))
        # The sequences that have tokens between the two.
        row = int(torch.searchsorted(query_start, own.start, right=True)) - 1
        end = int(torch.searchsorted(query_start, own.stop))
        starts = query_start[row : end + 1].clamp(own.start, own.stop) - own.start
        of_tokens = (_cut(tensor, own) for tensor in (tokens, positions, slots))
        of_rows = (_cut(tensor, slice(row, end)) for tensor in (seq_lens, committed_lens, tables))
        yield own, (*of_tokens, starts, *of_rows, *(_cut(tensor, own) for tensor in (masks, *others)))


def _cut(tensor: torch.Tensor | None, part: slice) -> torch.Tensor | None:
    return None if tensor is None else tensor[part]
