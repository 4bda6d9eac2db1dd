"""A figure over rounds: its median, and the quartiles as what the machine's noise makes of it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """Half of the measured values lie between `low` and `high`."""

    median: float
    low: float
    high: float

    def __format__(self, spec: str) -> str:
        return f"{self.median:{spec}} ({self.low:{spec}} to {self.high:{spec}})"


def spread(values: Iterable[float]) -> Spread:
    """Of at least one value."""
    known = sorted(values)
    low, _, high = statistics.quantiles(known, n=4, method="inclusive") if len(known) > 1 else known * 3
    return Spread(statistics.median(known), low, high)
