"""Throughput on a clock that only the model moves: 1 s for a step, and an eighth more for each row beside the first."""

from __future__ import annotations

import time

import pytest

from specdec.eval.bench.texts import Text
from specdec.eval.bench.throughput import measure_throughput
from tests.eval.helpers import Clock, timed_model, toy_engine
from tests.toys import OracleProposer

TEXT = Text(range(97, 122))


def test_batches_are_timed_with_and_without_their_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    model = timed_model(clock)
    engine = toy_engine(model, proposer="oracle", proposers={"oracle": OracleProposer(model, 4)})
    result = measure_throughput(engine, TEXT, [1, 3], prompt_length=6, max_tokens=11, num_rounds=2)
    assert [(each.batch_size, each.proposer) for each in result.points] == [
        (1, "none"),
        (1, "oracle"),
        (3, "none"),
        (3, "oracle"),
    ]
    for each in result.points:
        size, rows = each.batch_size, 5 if each.proposer == "oracle" else 1
        prompts, decoding = 1 + 0.125 * (6 * size - 1), 10 / rows * (1 + 0.125 * (rows * size - 1))
        assert each.decode_tokens_per_s.median == pytest.approx(size * 10 / decoding)
        assert each.total_tokens_per_s.median == pytest.approx(size * 11 / (prompts + decoding))
        assert each.tokens_per_step == rows
    assert [each.speedup for each in result.points[::2]] == [1, 1]
    assert result.points[3].speedup == pytest.approx(5 * 1.25 / (1 + 0.125 * 14))


@pytest.mark.parametrize(("prompt_length", "max_tokens"), [(250, 10), (0, 10), (5, 1)])
def test_what_does_not_fit_is_refused(prompt_length: int, max_tokens: int) -> None:
    with pytest.raises(ValueError, match="must fit the model's 256"):
        measure_throughput(toy_engine(), TEXT, [1], prompt_length, max_tokens, 1)
