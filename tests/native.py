"""The compiled kernels as tests get them: each library compiled once and kept in pytest's cache folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from specdec.kernels.cpu.backend import CpuKernels
from specdec.kernels.cpu.build import LEVELS, NoCompiler, best_level, build_library, cpu_features
from specdec.kernels.cpu.library import Library


def runnable_levels() -> tuple[str, ...]:
    """The instruction levels that this CPU has, the best first."""
    return LEVELS[LEVELS.index(best_level(cpu_features())) :]


@dataclass
class NativeKernels:
    """Backends by level and number of threads. Skips the test that asks where there is no compiler."""

    folder: Path

    def __post_init__(self) -> None:
        self._backends: dict[tuple[str, int], CpuKernels] = {}

    def library(self, level: str) -> Path:
        try:
            return build_library(self.folder, level=level)
        except NoCompiler as error:
            pytest.skip(str(error))

    def backend(self, level: str | None = None, num_threads: int = 1) -> CpuKernels:
        """The backend of a level (None: the best)."""
        key = (level or runnable_levels()[0], num_threads)
        if key not in self._backends:
            self._backends[key] = CpuKernels(Library(self.library(key[0]), num_threads))
        return self._backends[key]
