"""Scales span what they are given, with ticks at round numbers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.charts.scale import Axis, scale, tick_label

VALUES = st.lists(st.floats(-1e6, 1e6).map(lambda value: round(value, 3)), max_size=6)


@given(VALUES, st.booleans())
def test_every_value_and_tick_is_within_the_pixels(values: list[float], whole: bool) -> None:
    made = scale(values, Axis("x", whole=whole), 56.0, 624.0)
    for value in (*values, *made.ticks):
        assert 56 - 1e-3 <= made.at(value) <= 624 + 1e-3
    assert len(made.ticks) <= 624 / 48 + 1


@given(VALUES)
def test_ticks_are_multiples_of_one_two_or_five(values: list[float]) -> None:
    made = scale(values, Axis("x"), 252.0, 12.0)
    assert len(made.ticks) >= 2
    assert round(made.step / 10 ** math.floor(math.log10(made.step) + 1e-9)) in (1, 2, 5)


def test_what_is_no_number_is_left_out() -> None:
    assert scale([None, math.nan, math.inf, 2.0, 3.0], Axis("y"), 0.0, 240.0) == scale(
        [2.0, 3.0], Axis("y"), 0.0, 240.0
    )


def test_bounds_of_the_axis_are_spanned() -> None:
    made = scale([0.3], Axis("y", low=0, high=1, percent=True), 252.0, 12.0)
    assert (made.low, made.high) == (0, 1)
    assert (made.at(0), made.at(1)) == (252, 12)


def test_a_whole_axis_ends_where_its_values_do() -> None:
    made = scale([1, 2, 3, 4], Axis("position", whole=True), 56.0, 624.0)
    assert (made.low, made.high, made.ticks) == (1, 4, [1, 2, 3, 4])


def test_one_value_stands_in_the_middle() -> None:
    assert scale([7], Axis("position", whole=True), 0.0, 100.0).at(7) == 50
    assert scale([1], Axis("position", low=1, whole=True), 0.0, 100.0).at(1) == 0, "unless it is where the axis begins"


@pytest.mark.parametrize(
    ("value", "axis", "step", "text"),
    [
        (0.4, Axis("y", percent=True), 0.2, "40 %"),
        (0.125, Axis("y", percent=True), 0.005, "12.5 %"),
        (3.0, Axis("x", whole=True), 1.0, "3"),
        (1.5, Axis("x"), 0.5, "1.5"),
        (-0.0, Axis("x"), 0.5, "0.0"),
        (20000.0, Axis("x"), 5000.0, "20000"),
    ],
)
def test_labels_have_the_decimals_that_the_steps_need(value: float, axis: Axis, step: float, text: str) -> None:
    assert tick_label(value, axis, step) == text
