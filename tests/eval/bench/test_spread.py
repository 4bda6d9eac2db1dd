"""Medians and quartiles."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.eval.bench.spread import Spread, spread


@pytest.mark.parametrize(
    ("values", "expected"),
    [([4.0], Spread(4, 4, 4)), ([1.0, 3.0], Spread(2, 1.5, 2.5)), ([5.0, 1.0, 3.0, 2.0, 4.0], Spread(3, 2, 4))],
)
def test_half_of_the_values_lie_inside(values: list[float], expected: Spread) -> None:
    assert spread(values) == expected


@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_the_median_lies_between_the_quartiles(values: list[float]) -> None:
    found = spread(values)
    assert min(values) <= found.low <= found.median <= found.high <= max(values)


def test_it_is_written_as_the_median_and_its_quartiles() -> None:
    assert f"{Spread(2.0, 1.5, 2.25):.1f}" == "2.0 (1.5 to 2.2)"
