"""The curve times what it says: M tokens after a context, on a model that checks what each of them sees."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.eval.curve import CurveTimer, at, sizes_for
from specdec.eval.results import Curve, CurvePoint
from specdec.types import SamplingParams
from tests.eval.helpers import Clock, timed_model, toy_engine, toy_model
from tests.toys import generate


def test_sizes_hold_every_draft_of_a_chain() -> None:
    assert sizes_for(4) == [1, 2, 3, 4, 5, 8, 12, 16, 24, 32, 48, 64]
    assert set(sizes_for(20)) >= set(range(1, 22))


def test_rounds_time_the_target_over_so_many_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    model = timed_model(clock)
    engine = toy_engine(model)
    timer = CurveTimer(engine, [97, 98, 99], 10, [1, 3, 5])
    timer.round()
    timer.round()
    assert model.step_sizes == [9, 1, 3, 5, 5, 3, 1], "the context once"
    assert model.num_logits == [0, 1, 3, 5, 5, 3, 1]
    curve = timer.curve()
    assert (curve.context, curve.repeats) == (10, 2)
    assert [point.num_tokens for point in curve.points] == [1, 3, 5]
    assert [point.ratio for point in curve.points] == pytest.approx([1.0, 1.25, 1.5])
    timer.close()
    engine.scheduler.check_integrity()
    assert engine.scheduler.blocks.usage == 0


def test_a_curve_disturbs_no_answer() -> None:
    prompt, params = [97, 98, 99] * 4, SamplingParams(temperature=0, max_tokens=20)
    (alone,) = generate(toy_engine(), [prompt], params)
    engine = toy_engine()
    timer = CurveTimer(engine, prompt, 30, [1, 4])
    timer.round()
    engine.add_request("x", prompt, params)
    outputs = []
    while engine.has_unfinished_requests():
        timer.round()
        outputs += engine.step()
    timer.close()
    engine.scheduler.check_integrity()
    assert outputs[-1].outputs[0].token_ids == alone.outputs[0].token_ids


def test_between_rounds_the_longest_answer_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool holds one sequence of the longest kind, and nothing beside it."""
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    model = timed_model(clock)
    engine = toy_engine(model, kv_cache_tokens=64)
    timer = CurveTimer(engine, [97, 98, 99], 30, [1, 3])
    for number in range(2):
        timer.round()
        assert engine.scheduler.blocks.usage == 0
        (output,) = generate(engine, [[97] * 10], SamplingParams(temperature=0, max_tokens=54, ignore_eos=True))
        assert len(output.outputs[0].token_ids) == 54, number
    assert [point.seconds for point in timer.curve().points] == [1.0, 1.25]
    assert timer.curve().repeats == 2
    timer.close()
    engine.scheduler.check_integrity()


def test_a_small_model_shortens_context_and_sizes() -> None:
    engine = toy_engine(toy_model(max_model_len=20))
    timer = CurveTimer(engine, [97], 300, sizes_for(4))
    timer.round()
    assert [point.num_tokens for point in timer.curve().points] == [1, 2, 3, 4, 5, 8]
    assert timer.context == 12
    timer.close()


LINE = Curve(10, 1, tuple(CurvePoint(m, 1 + m / 4, 0.0) for m in (1, 2, 5, 9)))


@given(st.integers(1, 100))
def test_between_and_beyond_points_the_curve_is_straight(num_tokens: int) -> None:
    assert at(LINE, num_tokens) == pytest.approx(1 + num_tokens / 4)


def test_points_themselves_are_kept() -> None:
    bent = Curve(10, 1, (CurvePoint(1, 1.0, 1.0), CurvePoint(4, 9.0, 9.0), CurvePoint(5, 2.0, 2.0)))
    assert [at(bent, m) for m in (1, 4, 5)] == [1.0, 9.0, 2.0]
    assert at(Curve(10, 1, (CurvePoint(1, 3.0, 1.0),)), 7) == 3.0
