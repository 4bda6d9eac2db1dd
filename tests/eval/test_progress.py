"""How far an evaluation is, on a clock of the test's."""

from __future__ import annotations

import pytest

from specdec.eval.progress import Meter, Part, Status

FIRST, SECOND = Part("first", 2, 3.0), Part("second", 1, 1.0)


class Watch:
    def __init__(self) -> None:
        self.now = 100.0
        self.seen: list[Status] = []
        self.meter = Meter([FIRST, SECOND], 10, self.seen.append, lambda: self.now)

    def step(self, seconds: float, num_tokens: int, ended: list[int]) -> Status:
        self.now += seconds
        self.meter.advance(num_tokens, ended)
        return self.seen[-1]


def test_tokens_and_answers_fill_a_part_by_its_weight() -> None:
    watch = Watch()
    watch.meter.begin(FIRST)
    assert watch.step(1.0, 5, []) == Status("first", 0, 2, 5.0, 0.75 * 5 / 20, 1 / (0.75 * 5 / 20) - 1)
    assert watch.step(1.0, 2, [4]).fraction == pytest.approx(0.75 * (7 + 6) / 20)
    assert watch.step(1.0, 1, [4]).fraction == 0.75
    watch.meter.begin(SECOND)
    status = watch.step(1.0, 5, [])
    assert (status.label, status.num_done, status.num_answers) == ("second", 0, 1)
    assert (status.tokens_per_second, status.fraction) == (5.0, 0.75 + 0.25 * 0.5)
    assert watch.step(1.0, 0, [5]).seconds_left == 0.0


def test_nothing_is_known_before_the_first_token() -> None:
    watch = Watch()
    watch.meter.begin(FIRST)
    assert watch.step(1.0, 0, []).seconds_left is None
