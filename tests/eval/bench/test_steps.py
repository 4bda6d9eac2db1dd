"""The curve of whole steps, on a clock that the model and the reader of memory move."""

from __future__ import annotations

import time

import pytest

from specdec.config import EngineConfig, SpeculativeConfig
from specdec.engine import Engine
from specdec.eval.bench.bandwidth import BandwidthProbe, memory_reader
from specdec.eval.bench.fixed_drafts import METHOD
from specdec.eval.bench.steps import config_for_steps, measure_steps
from specdec.kernels import reference
from tests.eval.helpers import Clock, TimedModel, timed_model, toy_engine
from tests.toys import make_engine

CONTEXT = tuple(range(97, 117))
GIGABYTE = 10**9


def engine_for_steps(model: TimedModel, most_rows: int) -> Engine:
    return make_engine(model, proposer=METHOD, k=most_rows - 1, settings={"token_ids": CONTEXT})


def test_steps_of_every_size_alternate_with_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    model = timed_model(clock)
    reads = []

    def read() -> int:
        reads.append(len(model.step_sizes))
        clock.now += 0.5
        return GIGABYTE

    engine = engine_for_steps(model, 5)
    result = measure_steps(engine, CONTEXT, [5, 3], 2, BandwidthProbe(read))
    assert (result.context, result.num_rounds, result.read_gigabytes_per_s) == (20, 2, 2.0)
    assert [each.num_rows for each in result.points] == [1, 3, 5]
    assert [each.ratio for each in result.points] == pytest.approx([1, 1.25, 1.5])
    assert [each.step_ms.median for each in result.points] == pytest.approx([1000, 1250, 1500])
    assert [each.forward_ms for each in result.points] == pytest.approx([1000, 1250, 1500])
    assert [each.outside_ms for each in result.points] == pytest.approx([0, 0, 0])
    assert [each.kv_bytes for each in result.points] == [16 * 20, 16 * 22, 16 * 24]
    assert result.points[2].gigabytes_per_s == pytest.approx(16 * 24 / 1.5 / GIGABYTE)
    assert result.points[2].share == pytest.approx(16 * 24 / 1.5 / GIGABYTE / 2)
    assert model.step_sizes[1::2] == [5, 3, 1, 1, 3, 5, 5, 3, 1], "a round to warm up, and two that count"
    assert reads == [6, 6, 12, 12, 18, 18]
    assert not engine.has_unfinished_requests()
    engine.scheduler.check_integrity()


def test_what_takes_time_around_the_model_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    engine = engine_for_steps(timed_model(clock), 2)
    commit = engine.scheduler.commit

    def slow(*args, **kwargs) -> None:  # type: ignore[no-untyped-def]
        clock.now += 0.25
        commit(*args, **kwargs)

    monkeypatch.setattr(engine.scheduler, "commit", slow)
    point = measure_steps(engine, CONTEXT, [2], 1, BandwidthProbe(lambda: _read(clock))).points[1]
    assert (point.step_ms.median, point.forward_ms, point.outside_ms) == pytest.approx((1375, 1125, 250))


def _read(clock: Clock) -> int:
    clock.now += 1
    return 1


def test_a_context_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="do not fit the model's 256"):
        measure_steps(toy_engine(), [97] * 250, [4], 1, BandwidthProbe(lambda: 1))


def test_the_configuration_has_the_drafts_alone() -> None:
    own = config_for_steps(EngineConfig(speculative=(SpeculativeConfig("ngram"),), seed=3), [1, 2], 8)
    assert own.speculative == (SpeculativeConfig(METHOD, 7, {"token_ids": (1, 2)}),)
    assert own.seed == 3


def test_reading_reads_all_of_the_buffer() -> None:
    assert memory_reader(reference, 1)() == 2**20
