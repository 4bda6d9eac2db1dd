"""Latency on a clock that only the model moves: 1 s for a step, and an eighth more for each row beside the first."""

from __future__ import annotations

import time

import pytest

from specdec.eval.bench.latency import measure_latency
from specdec.eval.bench.tables import latency_table
from specdec.eval.bench.texts import Text
from tests.eval.helpers import Clock, timed_model, toy_engine
from tests.toys import OracleProposer

TEXT = Text(range(97, 122))
PLAIN_MS, DRAFTED_MS = 1000.0, 1e3 * (1.5 + 1.5 + 1.25) / 9
"""A token, of ten, where of four drafted ones two are right."""


def test_prompts_are_timed_until_the_first_token_and_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    model = timed_model(clock)
    engine = toy_engine(model, proposer="oracle", proposers={"oracle": OracleProposer(model, 2)})
    engine.start_up.seconds["weights"] = 2.5
    told: list[str] = []
    result = measure_latency(engine, TEXT, [5, 9], 10, 3, told.append)
    assert (result.max_tokens, result.num_rounds, len(told)) == (10, 3, 6)
    assert [(each.prompt_length, each.proposer, each.num_speculative_tokens) for each in result.points] == [
        (5, "none", 0),
        (5, "oracle", 4),
        (9, "none", 0),
        (9, "oracle", 4),
    ]
    for each in result.points:
        first = 1e3 * (1 + 0.125 * (each.prompt_length - 1))
        assert (each.first_token_ms.low, each.first_token_ms.high) == pytest.approx((first, first)), "nothing is cached"
    assert [each.per_token_ms.median for each in result.points] == pytest.approx([PLAIN_MS, DRAFTED_MS] * 2)
    assert [each.tokens_per_step for each in result.points] == pytest.approx([1, 3] * 2)
    assert [each.speedup for each in result.points] == pytest.approx([1, PLAIN_MS / DRAFTED_MS] * 2)
    assert result.start_up_seconds == {"weights": 2.5}
    assert "\nstart-up 2.50 s: weights 2.50\n" in latency_table(result)
    assert not engine.has_unfinished_requests()


@pytest.mark.parametrize("length", [0, 251, 300])
def test_prompts_that_do_not_fit_are_refused(length: int) -> None:
    with pytest.raises(ValueError, match=f"1 to 246 tokens.* got {length}"):
        measure_latency(toy_engine(), TEXT, [4, length], 10, 1)


def test_an_answer_of_one_token_has_no_time_between_tokens() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        measure_latency(toy_engine(), TEXT, [4], 1, 1)
