"""How long a step took, stage by stage. The only place where steps are timed."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field


def read_clock() -> float:
    """The clock that steps are timed by where no other is given, in seconds."""
    return time.perf_counter()


class _Timed(AbstractContextManager[None]):
    """Adds the time of a `with` block to an entry of `times`: none where the clock went back. A step enters several, so
    it is no generator."""

    def __init__(self, clock: Callable[[], float], times: dict[str, float], name: str) -> None:
        self._clock, self._times, self._name = clock, times, name

    def __enter__(self) -> None:
        self._start = self._clock()

    def __exit__(self, *_: object) -> None:
        self._times[self._name] = self._times.get(self._name, 0.0) + max(0.0, self._clock() - self._start)


@dataclass
class StepRecord:
    """Seconds of one step by stage, and its size."""

    schedule: float = 0.0
    batch: float = 0.0
    forward: float = 0.0
    sample: float = 0.0
    commit: float = 0.0
    propose: float = 0.0
    num_rows: int = 0
    num_tokens: int = 0
    hints: dict[str, float] = field(default_factory=dict)
    """Of `propose`, by proposer, what its hints took."""
    drafts: dict[str, float] = field(default_factory=dict)
    """The same for its drafts, and for following what it did not draft for."""
    clock: Callable[[], float] = field(default=read_clock)

    def time(self, stage: str) -> AbstractContextManager[None]:
        """Add the time of a `with` block to a stage."""
        return _Timed(self.clock, vars(self), stage)

    def time_proposer(self, part: dict[str, float], name: str) -> AbstractContextManager[None]:
        """The same for a proposer's part of `propose`, which is `hints` or `drafts`."""
        return _Timed(self.clock, part, name)

    @property
    def decoding(self) -> float:
        """Seconds of all stages but `propose`: what the rows of the step took."""
        return self.schedule + self.batch + self.forward + self.sample + self.commit

    @property
    def overhead(self) -> float:
        """Seconds spent outside the model."""
        return self.schedule + self.batch + self.sample + self.commit + self.propose
