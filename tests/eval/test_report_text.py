"""Numbers as a reader expects them, dashes for what is missing, and signs for what cannot be printed."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from specdec.eval.report_text import (
    DASH,
    interval,
    milliseconds,
    number,
    percent,
    percent_interval,
    signed_percent,
    significant,
)
from specdec.eval.results import Estimate


@pytest.mark.parametrize("write", [number, significant, percent, signed_percent, milliseconds])
@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
def test_what_is_missing_is_a_dash(write: Callable[[float | None], str], value: float | None) -> None:
    assert write(value) == DASH


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (number(12345), "12,345"),
        (number(2.345678), "2.35"),
        (number(1234.5, 1), "1,234.5"),
        (number(0), "0"),
        (significant(0.00012345), "0.000123"),
        (significant(1234.5, 4), "1234"),
        (percent(0.4567), "45.7 %"),
        (percent(0), "0.0 %"),
        (signed_percent(0.081), "+8.1 %"),
        (signed_percent(-0.081), "-8.1 %"),
        (milliseconds(0.0623456), "62.35"),
    ],
)
def test_numbers(text: str, expected: str) -> None:
    assert text == expected


def test_intervals_are_whole_or_missing() -> None:
    assert interval(Estimate(2.5, 2.25, 2.75)) == "2.25 to 2.75"
    assert percent_interval(Estimate(0.5, 0.25, 0.75)) == "25.0 to 75.0 %"
    assert interval(Estimate(2.5)) == percent_interval(Estimate(0.5, None, 0.7)) == DASH
    assert interval(Estimate(2.5, math.nan, 2.75)) == DASH
