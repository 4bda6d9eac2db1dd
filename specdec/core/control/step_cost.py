"""T(M): what a step of M rows takes on this machine. Measured at start-up, and corrected by every step since.

Two things correct it. One factor for all sizes follows what hits them alike: longer contexts, another clock rate, work
outside the model. One factor for each measured size follows what does not, such as attention over a long context or a
measurement that went wrong; a size that no step had yet takes it from its neighbours. A size of which little or nothing
was seen lately believes what it sees; one that is seen all the time moves slowly. Steps count as bounded errors, so
that one in which the machine did something else counts for little.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from itertools import pairwise

LARGEST_ERROR = 0.3
"""How much longer than expected one step may seem to have taken, as a logarithm."""
LARGEST_GAIN = 3.0
"""The same for shorter: whatever else a machine does only adds to a time, so this is the expectation's error."""
COMMON_RATE = 0.1
OWN_RATE = 0.03
FADE = 0.997
"""What a visit of a size is still worth after one more step, of whatever size."""
WARM_UP = 10
"""Steps that only move the common factor: what the measurement left out is nobody's own."""
UNVISITED = 0.1
"""What a size that no step had weighs beside a visit."""
STALE = 0.01
"""A change of a size's own factor that is worth computing the curve anew."""


def isotonic(values: list[float], weights: list[float]) -> list[float]:
    """The non-decreasing list nearest to `values` in weighted squares (pool adjacent violators)."""
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        mean, count = value, 1
        while pools and pools[-1][0] >= mean:
            earlier, other, size = pools.pop()
            mean = (mean * weight + earlier * other) / (weight + other)
            weight, count = weight + other, count + size
        pools.append((mean, weight, count))
    return [mean for mean, _, count in pools for _ in range(count)]


class StepCost:
    """Seconds of a step by its rows: between two measured sizes on the line between them, beyond on the last line."""

    def __init__(self, points: Mapping[int, float]) -> None:
        """`points`: seconds by rows, of at least one size. What shrinks as rows grow is noise, and smoothed away."""
        assert points
        assert min(points.values()) > 0
        self.sizes = sorted(points)
        self._base = isotonic([points[size] for size in self.sizes], [1.0] * len(self.sizes))
        self._own = [0.0] * len(self.sizes)
        self._visits = [0.0] * len(self.sizes)
        """Discounted counts of the steps that each size has learned from."""
        self._learned = [0] * len(self.sizes)
        """How many steps had been observed when each size learned last."""
        self._seen: dict[int, int] = {}
        """The same by any number of rows."""
        self._common = 0.0
        self._num_observed = 0
        self._fit()

    def seconds(self, rows: int) -> float:
        """T(rows); 0 for none."""
        if rows <= 0:
            return 0.0
        relative = self._cache.get(rows)
        if relative is None:
            relative = self._cache[rows] = self._between(rows)
        return relative * self._factor

    def plain_seconds(self, tokens: float, num_sequences: int) -> float:
        """In which plain decoding of so many sequences together, one or more, commits so many tokens."""
        return tokens * self.seconds(num_sequences) / num_sequences

    def observe(self, rows: int, seconds: float) -> None:
        """A step of so many rows took so long."""
        if rows <= 0 or seconds <= 0:
            return
        error = math.log(seconds / self.seconds(rows))
        error = max(-LARGEST_GAIN, min(LARGEST_ERROR, error))
        self._num_observed += 1
        self._common += error * max(COMMON_RATE, 1 / (1 + self._num_observed))
        self._factor = math.exp(self._common)
        self._seen[rows] = self._num_observed
        if self._num_observed > WARM_UP:
            shares = self._shares(rows)
            total = sum(share * share for share in shares.values())
            changed = [self._learn(size, share, error * share / total) for size, share in shares.items()]
            if max(changed) > STALE:
                self._fit()

    def unseen_for(self, rows: int) -> int:
        """Steps since one of so many rows was observed."""
        return self._num_observed - self._seen.get(rows, 0)

    def _learn(self, size: int, share: float, error: float) -> float:
        """Correct a size's own factor; how far it is now from the curve's. What seems too short is believed sooner."""
        if not self._visits[size]:
            self._own[size] = self._fitted[size]
        unseen = self._num_observed - self._learned[size]
        visits = self._visits[size] = share + self._visits[size] * FADE**unseen
        self._learned[size] = self._num_observed
        self._own[size] += error * max(OWN_RATE, share / (visits if error < 0 else 1 + visits))
        return abs(self._own[size] - self._fitted[size])

    def points(self) -> dict[int, float]:
        """T at the measured sizes, as it is known now."""
        return {size: self.seconds(size) for size in self.sizes}

    def _shares(self, rows: int) -> dict[int, float]:
        """The measured sizes that T(rows) comes from, by index, and what each weighs in it."""
        right = bisect_left(self.sizes, rows)
        if right == len(self.sizes):
            return {right - 1: 1.0}
        if right == 0 or self.sizes[right] == rows:
            return {right: 1.0}
        share = (rows - self.sizes[right - 1]) / (self.sizes[right] - self.sizes[right - 1])
        return {right - 1: 1 - share, right: share}

    def _fit(self) -> None:
        """Fix the curve's shape: the measured one with each size's factor, not decreasing. What was seen more counts
        for more."""
        self._fitted = self._factors()
        times = [base * math.exp(own) for base, own in zip(self._base, self._fitted, strict=True)]
        self._curve = isotonic(times, [UNVISITED + visits for visits in self._visits])
        self._cache: dict[int, float] = {}
        self._factor = math.exp(self._common)

    def _factors(self) -> list[float]:
        """Each size's own factor, as a logarithm; one that was never visited lies between those that were."""
        visited = [index for index, visits in enumerate(self._visits) if visits]
        if not visited:
            return list(self._own)
        found = [self._own[visited[0]]] * visited[0]
        for left, right in pairwise(visited):
            step = (self._own[right] - self._own[left]) / (right - left)
            found += [self._own[left] + step * further for further in range(right - left)]
        return found + [self._own[visited[-1]]] * (len(self.sizes) - visited[-1])

    def _between(self, rows: int) -> float:
        sizes, curve = self.sizes, self._curve
        if len(sizes) == 1:
            return curve[0]
        right = min(max(1, bisect_left(sizes, rows)), len(sizes) - 1)
        slope = (curve[right] - curve[right - 1]) / (sizes[right] - sizes[right - 1])
        return max(curve[0], curve[right - 1] + slope * (rows - sizes[right - 1]))
