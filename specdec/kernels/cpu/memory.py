"""Memory in pages of 2 MiB where the system has them, and the weights in it."""

from __future__ import annotations

import contextlib
import mmap

import torch

CHUNK = 32 << 20
HUGE_PAGE = 2 << 20
LINE = 64


class WeightMemory:
    """Hands out memory, one piece behind the other, of chunks that are asked for in huge pages.

    A step reads all weights in the order in which they were packed; in pages of 4 KiB every 64th line costs a look at
    the page tables, and the processor's own prefetching ends with each page. A chunk is given back when none of it is
    used.
    """

    def __init__(self) -> None:
        self._chunk = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def take(self, size: int) -> torch.Tensor:
        """`size` bytes, uint8 [size], aligned to a cache line, uninitialised."""
        start = -(-self._used // LINE) * LINE
        if start + size > len(self._chunk):
            self._chunk, start = huge_pages(max(size, CHUNK)), 0
        self._used = start + size
        return self._chunk[start : self._used]


def huge_pages(size: int) -> torch.Tensor:
    """uint8 [size], from the start of a huge page; what is never written takes no memory."""
    memory = mmap.mmap(-1, size + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # of a system built without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    return whole[-whole.data_ptr() % HUGE_PAGE :][:size]
