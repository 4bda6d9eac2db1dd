"""Oracles of a whole evaluation: of which prompts and members, by task, and how near `auto` comes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from specdec.config import SpeculativeConfig
from specdec.engine import Engine
from specdec.eval.measure import Plan, Variant, choices, measure
from specdec.eval.oracle_summary import oracles
from specdec.eval.results import Oracle, Result, from_json, to_json
from specdec.eval.stats import Bootstrap
from specdec.eval.summary import evaluate
from specdec.proposers.registry import build_proposer
from tests.eval.helpers import toy_engine, toy_plan

VARIANTS = [("auto", 8), ("ngram", 8), ("ngram", 4), ("suffix", 4)]


def asked(variants: list[tuple[str, int]] | None = None, **options: int) -> tuple[Engine, Plan]:
    others = {name: build_proposer(SpeculativeConfig(name, 8)) for name in ("ngram", "suffix")}
    engine = toy_engine(proposer="auto", k=8, proposers=others)
    plan = toy_plan(engine, variants or VARIANTS, timing_prompts=0, concurrency=1, max_tokens=20)
    return engine, replace(plan, choices=choices(engine, plan.variants), **options)


@pytest.fixture(scope="module")
def result() -> Result:
    return evaluate(*asked(), "c")


def named(result: Result, proposer: str | None, k: int, task: str | None = None) -> Oracle:
    (found,) = (o for o in result.oracles if (o.proposer, o.num_speculative_tokens, o.task) == (proposer, k, task))
    return found


def test_auto_and_each_length_of_the_named_have_an_oracle_for_all_and_for_each_task(result: Result) -> None:
    assert [(oracle.proposer, oracle.num_speculative_tokens, oracle.task) for oracle in result.oracles] == [
        (*choice, task) for choice in (("auto", 8), (None, 8), (None, 4)) for task in (None, "chat", "code")
    ]
    members = {
        (oracle.proposer, oracle.num_speculative_tokens): [
            (m.proposer, m.num_speculative_tokens) for m in oracle.members
        ]
        for oracle in result.oracles
    }
    assert members == {
        ("auto", 8): [("ngram", 8), ("suffix", 8)],
        (None, 8): [("ngram", 8)],
        (None, 4): [("ngram", 4), ("suffix", 4)],
    }


def test_members_alone_are_the_measured_runs(result: Result) -> None:
    runs = {(run.proposer, run.num_speculative_tokens): run.overall.tokens_per_step for run in result.runs}
    compared = 0
    for oracle in (oracle for oracle in result.oracles if oracle.task is None):
        for member in oracle.members:
            key = member.proposer, member.num_speculative_tokens
            assert member.measured_tokens_per_step == runs.get(key), key
            if key in runs:
                assert member.alone_tokens_per_step == runs[key]
                compared += 1
    assert compared == 4


def test_auto_is_a_share_of_what_the_best_choice_among_its_members_reaches(result: Result) -> None:
    oracle = named(result, "auto", 8)
    assert oracle.measured_tokens_per_step == result.runs[0].overall.tokens_per_step
    assert oracle.share is not None
    assert oracle.measured_tokens_per_step is not None
    assert oracle.share.value == pytest.approx(oracle.measured_tokens_per_step / oracle.oracle_tokens_per_step)
    assert oracle.share.low is not None
    assert oracle.share.low <= oracle.share.value <= 1
    assert named(result, None, 4).share is None


def test_the_oracle_is_never_below_a_member_and_never_above_perfect_drafts(result: Result) -> None:
    for oracle in result.oracles:
        assert oracle.perfect_tokens_per_step >= oracle.oracle_tokens_per_step
        assert oracle.oracle_tokens_per_step >= max(oracle.longest_tokens_per_step, oracle.first_tokens_per_step)
        assert oracle.oracle_tokens_per_step >= max(member.alone_tokens_per_step for member in oracle.members)
    alone = named(result, None, 8)
    assert alone.longest_tokens_per_step == alone.first_tokens_per_step == alone.members[0].alone_tokens_per_step


def test_what_a_member_loses_lies_between_right_drafts_and_its_own(result: Result) -> None:
    for member in (member for oracle in result.oracles for member in oracle.members):
        steps = member.ceiling
        assert steps is not None
        # Whoever copies can say everything.
        assert steps.perfect_steps == steps.sayable_steps <= steps.fresh_steps <= member.num_steps


def test_a_vocabulary_of_its_own_is_what_a_member_can_say() -> None:
    engine, plan = asked([("ngram", 4)])
    engine.runner.proposers["ngram"].sayable_token_ids = torch.arange(0, 256, 2)
    (member,) = evaluate(engine, plan, "c").oracles[0].members
    assert member.ceiling is not None
    assert member.ceiling.perfect_steps < member.ceiling.sayable_steps


def test_tasks_add_up_to_all_prompts(result: Result) -> None:
    whole = named(result, "auto", 8)
    parts = [named(result, "auto", 8, task) for task in ("chat", "code")]
    for name in ("num_prompts", "num_tokens", "num_steps", "longest_steps", "first_steps", "perfect_steps"):
        assert getattr(whole, name) == sum(getattr(part, name) for part in parts), name
    for member in whole.members:
        assert sum(member.agreed) == whole.num_tokens
        assert all(each.num_drafts >= each.num_reached >= each.num_accepted for each in member.positions)
        for each in member.positions:
            assert each.num_accepted == sum(member.agreed[each.position :])


def test_the_result_survives_json_and_has_the_concurrency(result: Result) -> None:
    assert from_json(to_json(result)) == result
    assert result.settings.concurrency == 1


def test_prompts_that_some_pass_answered_otherwise_are_left_out() -> None:
    engine, plan = asked([("ngram", 4)])
    found = measure(engine, plan)
    variant = Variant("ngram", 4)
    whole = oracles(plan, found.answers, found.recordings, Bootstrap(0))[0]
    wrong = found.recordings[variant][2]
    found.recordings[variant][2] = replace(wrong, answer=replace(wrong.answer, token_ids=(1, *wrong.answer.token_ids)))
    failed = found.answers[0.0, variant][4]
    found.answers[0.0, variant][4] = replace(failed, error="out of blocks")
    del found.recordings[variant][5]
    left = oracles(plan, found.answers, found.recordings, Bootstrap(0))[0]
    assert (whole.num_prompts, left.num_prompts) == (6, 3)
    del found.recordings[variant]
    assert oracles(plan, found.answers, found.recordings, Bootstrap(0)) == ()


def test_a_failure_of_a_recording_is_named() -> None:
    engine, plan = asked([("ngram", 4)])
    execute = engine.runner.execute

    def failing(schedule: object, record: object) -> object:
        verdicts = execute(schedule, record)  # type: ignore[arg-type]
        if any("oracle" in (row.sequence.request.cache_salt or "") for row in schedule.rows):  # type: ignore[attr-defined]
            verdicts = [replace(verdict, token_ids=(), accepted_path=(), error="broken") for verdict in verdicts]
        return verdicts

    engine.runner.execute = failing  # type: ignore[method-assign, assignment]
    found = evaluate(engine, plan, "c")
    assert found.failures[0] == "chat/chat-0, oracle, ngram k=4: broken"
    assert len(found.failures) == 6
    assert found.oracles == ()
