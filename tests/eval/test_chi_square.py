"""The chi-square distribution, against its closed forms and against simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from specdec.eval.chi_square import (
    POWER,
    critical_value,
    detectable_distance,
    draws_needed,
    noncentrality,
    p_value,
    survival,
    uniform_p_value,
)


@pytest.mark.parametrize("statistic", [0.1, 1.0, 7.5, 40.0])
def test_two_degrees_of_freedom_are_exponential(statistic: float) -> None:
    assert survival(statistic, 2) == pytest.approx(math.exp(-statistic / 2), rel=1e-12)


@pytest.mark.parametrize(
    ("freedom", "level", "value"), [(1, 0.05, 3.841459), (10, 0.01, 23.209251), (63, 0.001, 103.442)]
)
def test_critical_values_are_those_of_the_tables(freedom: int, level: float, value: float) -> None:
    assert critical_value(freedom, level) == pytest.approx(value, rel=1e-5)


def test_counts_as_expected_and_counts_that_are_not() -> None:
    assert p_value([25, 50, 25], [0.25, 0.5, 0.25]) == 1.0
    assert p_value([45, 10, 45], [0.25, 0.5, 0.25]) < 1e-12
    assert p_value([30, 40], [0.5, 0.5]) == pytest.approx(math.erfc(math.sqrt(100 / 70 / 2)), rel=1e-9)


def test_p_values_of_right_samples_are_uniform() -> None:
    rng = np.random.default_rng(0)
    law = rng.dirichlet(np.ones(12) * 3)
    found = np.array([p_value(rng.multinomial(600, law).tolist(), law.tolist()) for _ in range(1000)])
    for level in (0.01, 0.1, 0.5):
        assert abs((found < level).mean() - level) < 4 * math.sqrt(level / 1000)


def test_places_at_the_border_belong_to_the_last_cell() -> None:
    assert uniform_p_value([0.0, 0.99, 1.0, 0.3], 2) == 1.0


@pytest.mark.parametrize(("cells", "level"), [(8, 1e-3), (64, 2e-4)])
def test_a_deviation_of_the_stated_distance_shows_as_often_as_stated(cells: int, level: float) -> None:
    """The least favourable deviation of a given total variation spreads over half of the cells."""
    draws = 2000
    distance = detectable_distance(draws, cells, level)
    sign = np.where(np.arange(cells) % 2, 1.0, -1.0)
    law = (1 + 2 * distance * sign) / cells
    rng, uniform = np.random.default_rng(1), [1 / cells] * cells
    seen = np.mean([p_value(rng.multinomial(draws, law).tolist(), uniform) < level for _ in range(1000)])
    assert abs(seen - POWER) < 0.04


def test_distance_and_draws_are_each_others_inverse() -> None:
    assert draws_needed(detectable_distance(5000, 64, 1e-3), 64, 1e-3) in (5000, 5001)
    assert detectable_distance(1, 64, 1e-3) == 1.0
    assert noncentrality(64, 1e-6) > noncentrality(64, 1e-3) > noncentrality(8, 1e-3)
