"""How a report writes numbers and foreign text. What has no value is a dash, never `None`, `nan` or an empty cell."""

from __future__ import annotations

import math

from specdec.eval.results import Estimate, Run

DASH = "–"


def known(value: float | None) -> float | None:
    """None for what is no number."""
    return None if value is None or not math.isfinite(value) else value


def number(value: float | None, digits: int = 2) -> str:
    """Fixed decimals; whole numbers have none. Thousands are separated."""
    found = known(value)
    if found is None:
        return DASH
    return f"{found:,}" if isinstance(found, int) else f"{found:,.{digits}f}"


def significant(value: float | None, digits: int = 3) -> str:
    """For values that may be far below 1."""
    found = known(value)
    return DASH if found is None else f"{found:#.{digits}g}".removesuffix(".")


def percent(share: float | None) -> str:
    """A share between 0 and 1."""
    found = known(share)
    return DASH if found is None else f"{100 * found:.1f} %"


def signed_percent(share: float | None) -> str:
    """A difference, with its sign."""
    found = known(share)
    return DASH if found is None else f"{100 * found:+.1f} %"


def milliseconds(seconds: float | None) -> str:
    """Without the unit, which the column names."""
    found = known(seconds)
    return DASH if found is None else significant(1e3 * found, 4)


def interval(estimate: Estimate) -> str:
    """The bounds of a plain number."""
    return _bounds(number(estimate.low), number(estimate.high))


def percent_interval(estimate: Estimate) -> str:
    """The bounds of a share."""
    return _bounds(percent(estimate.low), percent(estimate.high))


def _bounds(low: str, high: str) -> str:
    return DASH if DASH in (low, high) else f"{low.removesuffix(' %')} to {high}"


def variant(run: Run) -> str:
    """For example `ngram, k = 4`: what a run has in common with those at other temperatures."""
    return f"{run.proposer}, k = {run.num_speculative_tokens}"


def temperature(value: float) -> str:
    """For example `T = 0.7`."""
    return f"T = {value:g}"
