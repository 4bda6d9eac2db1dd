"""Whole evaluations of toy engines: what the result says is what was made to happen."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from specdec.core.sequence import Sequence as Sample
from specdec.engine import Engine
from specdec.eval.results import FORMAT, Result, Run, from_json, to_json
from specdec.eval.summary import NUM_SAMPLES, evaluate
from specdec.proposers.base import ProposalInput
from specdec.types import Draft
from tests.eval.helpers import (
    PROMPTS,
    Clock,
    TimedProposer,
    copying_script,
    timed_model,
    toy_engine,
    toy_model,
    toy_plan,
)
from tests.toys import BYTE_VOCABULARY, OracleProposer, RandomProposer, ScriptedModel, random_script


@pytest.fixture(scope="module")
def result() -> Result:
    engine = toy_engine(proposer="suffix", proposers={"oracle": OracleProposer(toy_model(), 3)})
    plan = toy_plan(engine, [("suffix", 4), ("oracle", 3)], temperatures=[0.0, 1.0], max_tokens=40, timing_prompts=3)
    return evaluate(engine, plan, "specdec eval acceptance", load=1.5)


def run(result: Result, proposer: str, temperature: float = 0.0) -> Run:
    (found,) = (r for r in result.runs if (r.proposer, r.temperature) == (proposer, temperature))
    return found


def test_origin_and_settings(result: Result) -> None:
    assert result.format == FORMAT
    assert result.origin.command == "specdec eval acceptance"
    assert result.origin.machine.load_average == 1.5
    assert result.origin.machine.cores >= 1
    settings = result.settings
    assert (settings.model, settings.dtype, settings.verifier) == ("scripted", "float64", "auto")
    assert (settings.tasks, settings.max_tokens, settings.batch_sizes) == (("chat", "code"), 40, (1, 2))


def test_it_survives_json(result: Result) -> None:
    assert from_json(to_json(result)) == result


def test_runs_are_by_temperature_and_variant(result: Result) -> None:
    assert [(r.temperature, r.proposer, r.num_speculative_tokens) for r in result.runs] == [
        (t, *variant) for t in (0.0, 1.0) for variant in (("suffix", 4), ("oracle", 3))
    ]
    assert [plain.temperature for plain in result.plain] == [0.0, 1.0]
    assert all(r.complete and r.alarm is None for r in result.runs)
    assert not result.interrupted


def test_a_proposer_that_is_always_right_is_measured_as_such(result: Result) -> None:
    found = run(result, "oracle").overall
    assert found.acceptance_rate.value == found.acceptance_rate.low == found.acceptance_rate.high == 1.0
    assert found.mean_acceptance_length.value == pytest.approx(1 + found.mean_draft_length)
    assert [(p.unconditional, p.conditional) for p in found.positions] == [(1.0, 1.0)] * 3
    assert found.num_prompts == len(PROMPTS)


def test_greedy_answers_are_checked_and_sampled_ones_are_not(result: Result) -> None:
    greedy, sampled = run(result, "suffix").exactness, run(result, "suffix", 1.0).exactness
    assert (greedy.verifier, greedy.level, greedy.checked) == ("greedy", "bytes", True)
    assert (greedy.num_prompts, greedy.num_equal, greedy.divergences) == (6, 6, ())
    assert (sampled.verifier, sampled.level, sampled.checked, sampled.num_prompts) == (
        "rejection",
        "distribution",
        False,
        0,
    )


def test_coupled_answers_are_checked_too() -> None:
    engine = toy_engine(verifier="coupled")
    found = evaluate(engine, toy_plan(engine, temperatures=[1.0], timing_prompts=0), "c")
    exactness = found.runs[0].exactness
    assert (exactness.verifier, exactness.checked, exactness.num_equal) == ("coupled", True, 6)
    assert found.runs[0].prediction is None
    assert found.runs[0].speeds == found.plain[0].timings == ()
    assert found.curve is None


def test_speeds_and_prediction_are_there_for_what_was_timed(result: Result) -> None:
    for found in result.runs:
        assert [(s.plain.batch_size, s.proposer.batch_size) for s in found.speeds] == [(1, 1), (2, 2)]
        assert all(s.speedup.low is not None and s.speedup.value > 0 for s in found.speeds)
        assert found.prediction is not None
        assert found.prediction.measured_speedup == pytest.approx(found.speeds[0].speedup.value)
        assert sum(found.prediction.draft_lengths) == pytest.approx(1.0)
    assert [t.batch_size for t in result.plain[0].timings] == [1, 2]
    assert result.curve is not None
    assert [point.num_tokens for point in result.curve.points][:6] == [1, 2, 3, 4, 5, 8]


def test_each_task_and_category_has_its_part_of_the_times(result: Result) -> None:
    for found in result.runs:
        names = [(each.task, each.category) for each in found.group_speeds]
        assert names == [("chat", None), ("code", None), ("chat", "chat"), ("code", "python"), ("code", "rust")]
        tasks = [each for each in found.group_speeds if each.category is None]
        for side in ("plain", "proposer"):
            whole = getattr(found.speeds[0], side)
            parts = [getattr(each.speed, side) for each in tasks]
            assert sum(part.num_tokens for part in parts) == whole.num_tokens
            assert sum(part.seconds for part in parts) == pytest.approx(whole.seconds)
        assert all(each.prediction is not None for each in tasks)


def test_samples_show_where_each_token_came_from(result: Result) -> None:
    samples = run(result, "oracle").samples
    assert [sample.category for sample in samples] == ["chat", "python", "rust"][:NUM_SAMPLES]
    for sample in samples:
        assert sample.prompt.endswith("abcabcabcabc")
        sources = {piece.source for piece in sample.pieces}
        assert sources == {"oracle", "bonus"}
        assert len(sample.pieces) == 40


class RightAboutCode(OracleProposer):
    """Right for two tokens of each draft, or for all of them where the prompt is of code."""

    def propose(self, sequences: Sequence[Sample], inp: ProposalInput) -> list[Draft]:
        drafts = []
        for sequence, length in zip(sequences, inp.lengths, strict=True):
            self.correct = 2 if bytes(sequence.token_ids[:4]) == b"chat" else 4
            drafts.append(self._draft(tuple(sequence.token_ids), length))
        return drafts


def test_the_prediction_is_exact_where_times_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A target that takes 1 s and an eighth more per token, drafts of 0.25 s, and nothing else that takes time. Prompts
    0, 2 and 4 are timed, of which the first is accepted less."""
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    model = timed_model(clock)
    oracle = TimedProposer(RightAboutCode(model, 2), clock, 0.25)
    engine = toy_engine(model, proposers={"oracle": oracle})
    plan = toy_plan(engine, [("oracle", 4)], max_tokens=61, timing_prompts=3, batch_sizes=[1])
    (found,) = evaluate(engine, plan, "c").runs
    assert found.prediction is not None
    assert found.prediction.tokens_per_step == pytest.approx(180 / (20 + 12 + 12), abs=0.1)
    assert found.prediction.draft_cost == pytest.approx(0.25, abs=0.03)
    assert found.prediction.gap == pytest.approx(0.0, abs=1e-9)
    assert found.speeds[0].speedup.value == pytest.approx(180 / 44 / (1.5 + 0.25), rel=0.05)


def alarming(make: Callable[[ScriptedModel], Engine], proposer: str) -> str:
    model = ScriptedModel(random_script(BYTE_VOCABULARY), BYTE_VOCABULARY)
    engine = make(model)
    plan = toy_plan(engine, [(proposer, 4)], max_tokens=40, timing_prompts=0)
    (found,) = evaluate(engine, plan, "c").runs
    assert found.alarm is not None
    return found.alarm


def test_a_proposer_that_is_never_right_alarms() -> None:
    message = alarming(lambda model: toy_engine(model, proposers={"random": RandomProposer(BYTE_VOCABULARY)}), "random")
    assert message.startswith("proposer random: the first drafted token was accepted in ")


def test_a_proposer_that_never_drafts_alarms() -> None:
    settings = {"prompt_lookup_min": 16, "prompt_lookup_max": 16}
    message = alarming(lambda model: toy_engine(model, settings=settings), "ngram")
    assert message.startswith("proposer ngram drafted nothing in 240 generated tokens")


def test_failed_answers_are_named_and_in_no_figure() -> None:
    def script(prefix: tuple[int, ...]) -> list[float]:
        return [float("nan")] * BYTE_VOCABULARY if 0 in prefix[:1] else list(loop(prefix))

    loop = copying_script()
    engine = toy_engine(ScriptedModel(script, BYTE_VOCABULARY))
    plan = toy_plan(engine, timing_prompts=0)
    found = evaluate(engine, replace(plan, token_ids=((0, 1, 2), *plan.token_ids[1:])), "c")
    assert [failure.split(":")[0] for failure in found.failures] == [
        "chat/chat-0, plain, T=0",
        "chat/chat-0, ngram k=4, T=0",
    ]
    assert found.runs[0].overall.num_prompts == 5


@pytest.mark.parametrize("after", [1, 30, 45, 60, 90])
def test_an_interrupted_result_says_so_and_survives_json(after: int) -> None:
    engine = toy_engine()
    asked = 0

    def stopped() -> bool:
        nonlocal asked
        asked += 1
        return asked > after

    found = evaluate(engine, toy_plan(engine), "c", stopped=stopped)
    assert found.interrupted
    assert from_json(to_json(found)) == found
    assert not all(r.complete for r in found.runs) or not found.runs
