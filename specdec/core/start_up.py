"""How long it took until an engine was ready, part by part."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager


class StartUp:
    """Seconds by part, in the order in which the parts began."""

    def __init__(self, seconds: Mapping[str, float] | None = None, clock: Callable[[], float] | None = None) -> None:
        """`seconds` are those of parts that are over."""
        self.seconds = dict(seconds or {})
        self._clock = clock if clock is not None else time.perf_counter
        self._inside: list[float] = []
        """Of each `with` block that is open, the seconds of those within it."""

    @contextmanager
    def time(self, part: str) -> Iterator[None]:
        """Add the time of a `with` block to a part, less that of other parts within it."""
        start = self._clock()
        self.seconds.setdefault(part, 0.0)
        self._inside.append(0.0)
        try:
            yield
        finally:
            took = self._clock() - start
            self.seconds[part] += took - self._inside.pop()
            if self._inside:
                self._inside[-1] += took

    @property
    def total(self) -> float:
        """Seconds of all parts."""
        return sum(self.seconds.values())
