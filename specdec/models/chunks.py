"""Going over a matrix a few rows at a time, so that what is worked out on the way stays in the processor's cache."""

from __future__ import annotations

from collections.abc import Iterator

CHUNK = 1 << 19
"""Weights at a time: enough for all threads, and in float32 2 MB, which allocators give again without a page fault."""


def row_chunks(num_rows: int, width: int) -> Iterator[slice]:
    """Consecutive rows of a matrix of that width, all of them."""
    step = max(1, CHUNK // max(1, width))
    return (slice(first, min(first + step, num_rows)) for first in range(0, num_rows, step))
