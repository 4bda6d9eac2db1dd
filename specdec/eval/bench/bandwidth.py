"""How fast this machine reads memory: what a step that is bound by its weights is held against.

A reader is any function that reads some memory once, with the threads that the engine has, and says how many bytes it
read; the time is taken around it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from specdec.kernels import Kernels
from specdec.kernels.cpu.memory import huge_pages

Reader = Callable[[], int]
"""Reads memory once; how many bytes that were."""

DEFAULT_MIB = 512
"""Of the buffer: far more than caches hold."""


def memory_reader(kernels: Kernels, mebibytes: int = DEFAULT_MIB) -> Reader:
    """Reads a buffer from end to end, as the kernels do that the model runs on."""
    buffer = huge_pages(mebibytes * 2**20).view(torch.float32).fill_(1)

    def read() -> int:
        kernels.read(buffer)
        return buffer.nbytes

    return read


class BandwidthProbe:
    """Takes the time of a reader, a round at a time, so that rounds can alternate with what they are compared to."""

    def __init__(self, read: Reader) -> None:
        self._read = read
        self._rates: list[float] = []

    def round(self) -> None:
        start = time.perf_counter()
        num_bytes = self._read()
        self._rates.append(num_bytes / (time.perf_counter() - start))

    @property
    def bytes_per_second(self) -> float:
        """The median of the rounds so far, of which there must be one."""
        return statistics.median(self._rates)
