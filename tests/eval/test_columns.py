"""Columns as wide as they must be, and figures without bounds."""

from __future__ import annotations

from specdec.eval.columns import align, interval
from specdec.eval.results import Estimate


def test_columns_are_aligned() -> None:
    assert align([("a", "bbb", "c"), ("aaa", "b", "")]) == "a    bbb  c\naaa    b"


def test_an_interval_without_bounds_is_a_dash() -> None:
    assert interval(Estimate(0.5)) == "-"
    assert interval(Estimate(0.5, 0.25, 0.75)) == "0.25 to 0.75"
