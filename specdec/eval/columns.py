"""Columns of text, and how a terminal writes figures."""

from __future__ import annotations

from collections.abc import Sequence

from specdec.eval.results import Estimate

POSITIONS_SHOWN = 8
Rows = list[tuple[str, ...]]


def percent(share: float) -> str:
    """A share between 0 and 1."""
    return f"{100 * share:.0f} %"


def interval(estimate: Estimate) -> str:
    """The bounds; a dash where there are none."""
    if estimate.low is None or estimate.high is None:
        return "-"
    return f"{estimate.low:.2f} to {estimate.high:.2f}"


def align(rows: Sequence[tuple[str, ...]]) -> str:
    """Columns as wide as their widest cell; the first one to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows)
    return "\n".join(lines)
