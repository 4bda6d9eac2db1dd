"""What a draft takes, as a line over its length: a moving fit that outliers hardly move.

A lookup costs the same for any length, a draft model so much for each token; both are lines. Outliers have no length,
but they are paid for: by as much as drafts of late took more on average, the line is lifted. Since who is dear is
seldom asked, and would never show that it no longer is, the lift is forgotten in time too.

For several sequences at once a lookup takes so much for each, but of what a model takes a part is shared: it reads its
weights once for all, as often as the longest draft has tokens. So a call is worth so many drafts of one length. How
much is shared is measured for a few sequences; for more of them the arithmetic may no longer be free. Therefore calls
of each size, to a power of two, have a line of their own, which begins as that of the nearest size.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from copy import copy

FADE = 0.9
TOLERANCE = 4.0
"""Once something is known, an observation counts for at most so many times what was expected."""
MEAN_RATE = 0.05
"""How fast the mean of what is above the line moves, once there are as many observations."""
FORGOTTEN = 0.001
"""Of what is above the line, with every step."""
LEAST_SPREAD = 0.25
"""The variance of lengths from which on a slope is fitted; below it, none is seen."""


class DraftCost:
    """Discounted least squares over (length, seconds)."""

    def __init__(self) -> None:
        self.num_observed = 0
        self._weight = self._x = self._xx = self._y = self._xy = 0.0
        self.base = self.slope = 0.0
        self.lift = 0.0
        """What is above the line on average; `base` holds it."""
        self.peak = 0.0
        """The most that was above the line; it is forgotten as the lift is."""

    def seconds(self, length: float) -> float:
        """Of one draft of that length; 0 while nothing is known."""
        return max(0.0, self.base + self.slope * length)

    def observe(self, length: float, seconds: float) -> float:
        """A draft took so long; what the line believes of it."""
        took = seconds = max(0.0, seconds)
        expected = max(0.0, self.base - self.lift + self.slope * length)
        if self._x and self._variance() <= LEAST_SPREAD:
            # Nothing is known of other lengths: it may be that each token takes all of it.
            expected = max(expected, self._y / self._x * length)
        if self.num_observed and expected > 0:
            seconds = min(seconds, TOLERANCE * expected)
        self.num_observed += 1
        self._weight = FADE * self._weight + 1
        self._x = FADE * self._x + length
        self._xx = FADE * self._xx + length * length
        self._y = FADE * self._y + seconds
        self._xy = FADE * self._xy + length * seconds
        self._fit()
        above = took - self.seconds(length)
        self.lift = max(0.0, self.lift + (above - self.lift) * max(MEAN_RATE, 1 / self.num_observed))
        self.base += self.lift
        self.peak = max(self.peak, above)
        return seconds

    def rest(self) -> None:
        """A step went by."""
        forgotten = FORGOTTEN * self.lift
        self.lift -= forgotten
        self.base -= forgotten
        self.peak -= FORGOTTEN * self.peak

    @property
    def risk(self) -> float:
        """Seconds that a draft may take beyond what is expected: a rare large one may be the next."""
        return max(0.0, self.peak - self.lift)

    def _fit(self) -> None:
        mean_x, mean_y = self._x / self._weight, self._y / self._weight
        variance = self._variance()
        if variance > LEAST_SPREAD:
            slope = (self._xy / self._weight - mean_x * mean_y) / variance
            self.slope = max(0.0, min(slope, mean_y / mean_x))
        self.slope = min(self.slope, mean_y / mean_x) if mean_x > 0 else 0.0
        self.base = mean_y - self.slope * mean_x

    def _variance(self) -> float:
        mean = self._x / self._weight
        return self._xx / self._weight - mean * mean


class CallCost:
    """What calls for drafts take, by how many sequences they are for."""

    def __init__(self) -> None:
        self.shared = 0.0
        """Of what a draft takes, the part that others beside it in a call do not add to; from 0 to 1."""
        self._lines = {1: DraftCost()}
        """By the bits of the number of sequences."""

    def line(self, count: int) -> DraftCost:
        """Of one draft, in a call that is for so many sequences."""
        size = count.bit_length()
        if size not in self._lines:
            self._lines[size] = copy(self._lines[min(self._lines, key=lambda known: abs(known - size))])
        return self._lines[size]

    def seconds(self, length: float) -> float:
        """Of a draft of that length for one sequence."""
        return self.line(1).seconds(length)

    def worth(self, lengths: Many[int]) -> tuple[float, float]:
        """What a call for drafts of these lengths, one or more, is worth: so many drafts, of a length."""
        apart = 1 - self.shared
        count = self.shared + apart * len(lengths)
        return count, (self.shared * max(lengths) + apart * sum(lengths)) / count

    def rest(self) -> None:
        """A step went by."""
        for line in self._lines.values():
            line.rest()
