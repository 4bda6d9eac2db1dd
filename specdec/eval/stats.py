"""Figures over prompts: the paired bootstrap, and how much an output repeats itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from specdec.eval.results import Estimate

Counts = NDArray[np.float64]
"""One number for each prompt [n], or for each resample and prompt [R, n]."""

CONFIDENCE = 0.95
RESAMPLES = 2000


class Bootstrap:
    """Percentile intervals from prompts drawn with replacement.

    Which prompts are drawn depends on their number and the seed alone: figures of two runs over the same prompts are
    paired, and so are the two sides of a quotient.
    """

    def __init__(self, seed: int, resamples: int = RESAMPLES, confidence: float = CONFIDENCE) -> None:
        self.seed = seed
        self.resamples = resamples
        self.confidence = confidence
        self._draws: dict[int, Counts] = {}

    def draws(self, count: int) -> Counts:
        """How often each of `count` prompts is drawn in each resample, [R, count]; rows sum to `count`."""
        if count not in self._draws:
            rng = np.random.default_rng([self.seed % 2**64, count])
            equal = np.full(count, 1 / count)
            self._draws[count] = rng.multinomial(count, equal, size=self.resamples).astype(np.float64)
        return self._draws[count]

    def estimate(self, figure: Callable[..., Counts], *columns: Sequence[float]) -> Estimate:
        """`figure` of the columns' sums over all prompts, and its interval.

        `figure` takes one array of sums for each column and gives an array of that shape; where it is not finite (a
        quotient without a denominator) the resample says nothing. Over all prompts it then is 0.
        """
        table = [np.asarray(column, np.float64) for column in columns]
        count = len(table[0])
        with np.errstate(divide="ignore", invalid="ignore"):
            value = float(figure(*(column.sum(keepdims=True) for column in table))[0])
            if not np.isfinite(value):
                return Estimate(0.0)
            if count < 2:
                return Estimate(value)
            draws = self.draws(count)
            found = figure(*(draws @ column for column in table))
        found = found[np.isfinite(found)]
        if not len(found):
            return Estimate(value)
        tail = (1 - self.confidence) / 2
        low, high = np.quantile(found, [tail, 1 - tail])
        return Estimate(value, float(low), float(high))


def ratio(above: Counts, below: Counts) -> Counts:
    """above / below."""
    return above / below


def acceptance_length(accepted: Counts, drafts: Counts) -> Counts:
    """1 + accepted / drafts; 1 where there are no drafts."""
    return 1 + np.divide(accepted, drafts, out=np.zeros_like(accepted), where=drafts > 0)


def rate_ratio(tokens: Counts, seconds: Counts, base_tokens: Counts, base_seconds: Counts) -> Counts:
    """tokens / seconds over the same of a baseline."""
    return (tokens / seconds) / (base_tokens / base_seconds)


def distinct(outputs: Sequence[Sequence[int]], n: int) -> float | None:
    """Different n-grams / all n-grams of an output, the mean over outputs of at least `n` tokens; None without any."""
    shares = []
    for tokens in outputs:
        grams = [tuple(tokens[start : start + n]) for start in range(len(tokens) - n + 1)]
        if grams:
            shares.append(len(set(grams)) / len(grams))
    return sum(shares) / len(shares) if shares else None
