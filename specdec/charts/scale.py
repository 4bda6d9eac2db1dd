"""The axes of a chart: from values to pixels, and ticks at round numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

TICK_DISTANCE = 48.0
"""Pixels between ticks, at least."""


@dataclass(frozen=True)
class Axis:
    """Spans all values, and `low` and `high` where given. Ticks are numbers, or shares in percent."""

    label: str
    low: float | None = None
    high: float | None = None
    percent: bool = False
    whole: bool = False
    """Ticks at whole numbers alone, and no further than the values go."""


@dataclass(frozen=True)
class Scale:
    """Values from `low` to `high` on pixels from `start` to `end`, with a tick every `step`."""

    low: float
    high: float
    step: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """The pixel of a value."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    @property
    def ticks(self) -> list[float]:
        first, last = math.ceil(self.low / self.step - 1e-6), math.floor(self.high / self.step + 1e-6)
        return [index * self.step for index in range(first, last + 1)]


def scale(values: Iterable[float | None], axis: Axis, start: float, end: float) -> Scale:
    """Spans the finite ones of `values` and the axis' own bounds; out to the next tick unless the axis is `whole`."""
    known = [value for value in (*values, axis.low, axis.high) if value is not None and math.isfinite(value)]
    low, high = min(known, default=0.0), max(known, default=1.0)
    if low == high:
        low, high = (low, low + 1) if axis.low is not None else (low - 0.5, high + 0.5)
    step = _round_step((high - low) * TICK_DISTANCE / abs(end - start))
    if axis.whole:
        return Scale(low, high, max(step, 1.0), start, end)
    return Scale(step * math.floor(low / step + 1e-6), step * math.ceil(high / step - 1e-6), step, start, end)


def _round_step(least: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that is at least `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))


def tick_label(value: float, axis: Axis, step: float) -> str:
    """With as many decimals as the steps need."""
    if axis.percent:
        value, step = 100 * value, 100 * step
    digits = max(0, -math.floor(math.log10(step) + 1e-6))
    return f"{value + 0.0:.{digits}f}" + (" %" if axis.percent else "")
