"""Speed from steps whose times are known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specdec.eval.results import Curve, CurvePoint
from specdec.eval.session import GroupTimes, StepTimes
from specdec.eval.speed import draft_lengths, predict, speed, timing
from specdec.eval.stats import Bootstrap
from tests.eval.helpers import answer, drafted, undrafted

CURVE = Curve(50, 3, tuple(CurvePoint(m, 0.9 + m / 10, (9 + m) / 10) for m in (1, 2, 5)))


def group(num_tokens: int, num_steps: int, forward: float, propose: float = 0.0, rest: float = 0.0) -> GroupTimes:
    own = answer([undrafted(index) for index in range(1, num_tokens + 1)], first=1.0, last=1.0 + num_steps)
    return GroupTimes(num_tokens, StepTimes(num_steps, forward, propose, rest), (own,))


def test_timing_sums_groups_and_averages_answers() -> None:
    found = timing(1, [group(4, 4, 4.0), group(2, 8, 8.0)])
    assert (found.num_answers, found.num_tokens, found.seconds) == (2, 6, 12.0)
    assert found.tokens_per_second == 0.5
    assert found.time_per_output_token == (4 / 4 + 8 / 2) / 2


def test_an_answer_of_one_token_has_no_time_per_token() -> None:
    found = timing(1, [GroupTimes(0, StepTimes(), (answer([]),))])
    assert (found.time_per_output_token, found.tokens_per_second) == (None, 0.0)


def test_speed_up_is_the_quotient_of_rates() -> None:
    plain, own = [group(4, 4, 4.0), group(6, 6, 6.0)], [group(4, 2, 2.0, rest=0.5), group(6, 2, 2.0, rest=0.5)]
    found = speed(1, plain, own, Bootstrap(0))
    assert found.plain.tokens_per_second == 1.0
    assert found.speedup.value == pytest.approx(10 / 5)
    assert found.speedup.low == pytest.approx(4 / 2.5)
    assert found.speedup.high == pytest.approx(6 / 2.5)


def test_lengths_are_shares_of_steps() -> None:
    assert draft_lengths([answer([drafted(1, 4, 1), undrafted(3)]), answer([drafted(1, 4, 0), drafted(2, 1, 1)])]) == (
        0.25,
        0.25,
        0.0,
        0.0,
        0.5,
    )
    assert draft_lengths([answer([])]) == ()


def test_prediction_by_hand() -> None:
    answers = (answer([drafted(1, 4, 3), undrafted(5)]), answer([drafted(1, 4, 4), undrafted(6)]))
    plain = [group(11, 11, 11.0, rest=1.1)]
    own = [replace(group(11, 4, 5.0, propose=0.4, rest=0.8), answers=answers)]
    made = predict(CURVE, plain, own)
    assert made is not None
    assert made.tokens_per_step == 11 / 4
    assert made.draft_lengths == (0.5, 0, 0, 0, 0.5)
    assert made.verify == pytest.approx(0.5 * 1.0 + 0.5 * 1.4)
    assert (made.draft, made.overhead, made.plain_overhead) == pytest.approx((0.1, 0.2, 0.1))
    assert made.predicted_speedup == pytest.approx(11 / 4 * 1.1 / (1.2 + 0.1 + 0.2))
    assert made.measured_speedup == pytest.approx((11 / 6.2) / (11 / 12.1))
    assert made.draft_cost == pytest.approx(0.1)
    assert made.draft_cost_per_token == pytest.approx(0.1 / 4)


def test_nothing_is_predicted_of_steps_that_were_not_timed() -> None:
    empty = [GroupTimes(0, StepTimes(), (answer([]),))]
    assert predict(CURVE, empty, empty) is None
    drafted_only = [replace(empty[0], answers=(answer([drafted(1, 4, 1)]),))]
    assert predict(CURVE, empty, drafted_only) is None
