"""The chi-square test of counts against a law that is known: its p-value, and what it would notice.

Pearson's statistic of cells with probabilities `law` is, for n draws from it, close to a chi-square with one degree of
freedom less than there are cells, where every cell expects at least five. For draws from another law it is close to a
noncentral one with noncentrality n * sum((other - law)^2 / law), which is at least 4 n d^2 where d is the total
variation distance of the two over the cells (Cauchy-Schwarz): so a number of draws has a distance that it shows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

POWER = 0.9
"""With this probability a deviation of the size that is named is noticed."""


def p_value(counts: Sequence[int], law: Sequence[float]) -> float:
    """The probability of counts that deviate as much, if they were drawn from `law`, which has no zero."""
    assert len(counts) == len(law)
    total = sum(counts)
    statistic = sum((count - total * prob) ** 2 / (total * prob) for count, prob in zip(counts, law, strict=True))
    return survival(statistic, len(law) - 1)


def uniform_p_value(places: Sequence[float], num_cells: int) -> float:
    """The p-value of numbers in [0, 1) that should be uniform."""
    counts = [0] * num_cells
    for place in places:
        counts[min(int(place * num_cells), num_cells - 1)] += 1
    return p_value(counts, [1 / num_cells] * num_cells)


def survival(statistic: float, freedom: int) -> float:
    """P(chi-square with `freedom` degrees > statistic)."""
    half = torch.tensor([freedom / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def critical_value(freedom: int, level: float) -> float:
    """The statistic that chance exceeds with probability `level`."""
    return _solve(lambda x: level - survival(x, freedom), freedom)


def noncentrality(num_cells: int, level: float) -> float:
    """The noncentrality at which a test of this level notices with probability `POWER`."""
    freedom = num_cells - 1
    critical = critical_value(freedom, level)
    return _solve(lambda x: _noncentral_survival(critical, freedom, x) - POWER, freedom)


def detectable_distance(num_draws: int, num_cells: int, level: float) -> float:
    """The total variation distance over the cells that `num_draws` show with probability `POWER`, at most 1."""
    return min(1.0, math.sqrt(noncentrality(num_cells, level) / (4 * num_draws)))


def draws_needed(distance: float, num_cells: int, level: float) -> int:
    """How many draws show a total variation `distance` over the cells with probability `POWER`."""
    return math.ceil(noncentrality(num_cells, level) / (4 * distance**2))


def _noncentral_survival(statistic: float, freedom: int, shift: float) -> float:
    """P(noncentral chi-square > statistic): a mixture of central ones with Poisson weights."""
    spread = 10 * math.sqrt(shift / 2) + 10
    first, last = max(0, int(shift / 2 - spread)), int(shift / 2 + spread)
    steps = torch.arange(first, last + 1, dtype=torch.float64)
    log_weights = steps * math.log(max(shift, 1e-300) / 2) - shift / 2 - torch.lgamma(steps + 1)
    tails = torch.special.gammaincc(freedom / 2 + steps, torch.full_like(steps, statistic / 2))
    return float((log_weights.exp() * tails).sum())


def _solve(rising: Callable[[float], float], start: float) -> float:
    """The zero of a rising function of positive numbers, to nine digits."""
    low, high = 0.0, max(1.0, float(start))
    while rising(high) < 0:
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return high
