"""What a draft for one sequence takes, as a line over its length: a moving fit that outliers hardly move.

A lookup costs the same for any length, a draft model so much for each token; both are lines.
"""

from __future__ import annotations

FADE = 0.9
TOLERANCE = 4.0
"""Once something is known, an observation counts for at most so many times what was expected."""
LEAST_SPREAD = 0.25
"""The variance of lengths from which on a slope is fitted; below it, none is seen."""


class DraftCost:
    """Discounted least squares over (length, seconds)."""

    def __init__(self) -> None:
        self.num_observed = 0
        self._weight = self._x = self._xx = self._y = self._xy = 0.0
        self.base = self.slope = 0.0

    def seconds(self, length: int) -> float:
        """Of a draft of that length; 0 while nothing is known."""
        return max(0.0, self.base + self.slope * length)

    def observe(self, length: int, seconds: float) -> float:
        """A draft took so long; what of it is believed."""
        seconds, expected = max(0.0, seconds), self.seconds(length)
        if self.num_observed and expected > 0:
            seconds = min(seconds, TOLERANCE * expected)
        self.num_observed += 1
        self._weight = FADE * self._weight + 1
        self._x = FADE * self._x + length
        self._xx = FADE * self._xx + length * length
        self._y = FADE * self._y + seconds
        self._xy = FADE * self._xy + length * seconds
        self._fit()
        return seconds

    def _fit(self) -> None:
        mean_x, mean_y = self._x / self._weight, self._y / self._weight
        variance = self._xx / self._weight - mean_x * mean_x
        if variance > LEAST_SPREAD:
            slope = (self._xy / self._weight - mean_x * mean_y) / variance
            self.slope = max(0.0, min(slope, mean_y / mean_x))
        self.slope = min(self.slope, mean_y / mean_x) if mean_x > 0 else 0.0
        self.base = mean_y - self.slope * mean_x
