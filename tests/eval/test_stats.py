"""Intervals against exact enumeration and a known law; repetition against counts by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.eval.results import Estimate
from specdec.eval.stats import Bootstrap, acceptance_length, distinct, rate_ratio, ratio


def test_every_resample_draws_as_many_prompts_as_there_are() -> None:
    draws = Bootstrap(0, resamples=50).draws(7)
    assert draws.shape == (50, 7)
    assert (draws.sum(axis=1) == 7).all()


@given(st.integers(-5, 2**70), st.integers(1, 20))
def test_the_seed_and_the_number_of_prompts_decide_what_is_drawn(seed: int, count: int) -> None:
    one, other = Bootstrap(seed, 20), Bootstrap(seed, 20)
    other.draws(count + 1)
    assert (one.draws(count) == other.draws(count)).all()


def test_another_seed_draws_others() -> None:
    assert (Bootstrap(0).draws(10) != Bootstrap(1).draws(10)).any()


def test_the_interval_is_that_of_all_possible_draws() -> None:
    accepted, drafted = [4, 1, 0, 7], [8, 2, 5, 7]
    table = np.array([accepted, drafted])
    exact = sorted(
        (table[0, list(draw)].sum() / table[1, list(draw)].sum()) for draw in itertools.product(range(4), repeat=4)
    )
    expected = np.quantile(exact, [0.025, 0.975])
    found = Bootstrap(0, resamples=20_000).estimate(ratio, accepted, drafted)
    assert found.value == 12 / 22
    assert [found.low, found.high] == pytest.approx(list(expected), abs=0.03)


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    """Prompts with rates of their own; the truth is the law's, which no sample of prompts knows."""
    rng = np.random.default_rng(0)
    covered, trials, drafts, k = 0, 400, 30, 4
    for trial in range(trials):
        rates = rng.beta(4, 4, size=60)
        accepted = rng.binomial(drafts * k, rates)
        found = Bootstrap(trial, resamples=400).estimate(ratio, list(accepted), [drafts * k] * 60)
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 0.5 <= found.high
    assert 0.91 < covered / trials < 0.985


def test_two_sides_of_a_quotient_are_drawn_together() -> None:
    tokens, seconds = [10.0, 200.0, 3.0], [1.0, 5.0, 2.0]
    found = Bootstrap(0).estimate(rate_ratio, tokens, [2 * s for s in seconds], tokens, seconds)
    assert [found.value, found.low, found.high] == pytest.approx([0.5, 0.5, 0.5])


def test_one_prompt_has_no_interval() -> None:
    assert Bootstrap(0).estimate(ratio, [1], [4]) == Estimate(0.25)


def test_a_quotient_without_a_denominator_is_zero() -> None:
    assert Bootstrap(0).estimate(ratio, [0, 0], [0, 0]) == Estimate(0.0)


def test_resamples_without_a_denominator_say_nothing() -> None:
    found = Bootstrap(0).estimate(ratio, [1, 0], [2, 0])
    assert found == Estimate(0.5, 0.5, 0.5)


def test_without_drafts_a_step_commits_one_token() -> None:
    assert Bootstrap(0).estimate(acceptance_length, [0, 0], [0, 0]) == Estimate(1.0, 1.0, 1.0)
    assert Bootstrap(0).estimate(acceptance_length, [6, 6], [2, 2]) == Estimate(4.0, 4.0, 4.0)


def test_distinct_by_hand() -> None:
    loop, fresh = [1, 1, 1, 1], [1, 2, 3]
    assert distinct([loop], 1) == 1 / 4
    assert distinct([loop], 2) == 1 / 3
    assert distinct([loop, fresh], 1) == (1 / 4 + 1) / 2
    assert distinct([loop, [5]], 2) == 1 / 3
    assert distinct([[], [5]], 2) is None
