"""What an evaluation does with an engine: every prompt in every variant, times in turns, and Ctrl-C at any moment."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specdec.eval.measure import PLAIN, Variant, measure, prepare
from specdec.eval.progress import Status
from specdec.eval.prompts import EvalPrompt
from tests.eval.helpers import PROMPTS, toy_engine, toy_model, toy_plan
from tests.toys import OracleProposer

NGRAM = Variant("ngram", 4)


def test_every_variant_answers_every_prompt_at_every_temperature() -> None:
    engine = toy_engine()
    plan = toy_plan(engine, [("ngram", 4), ("ngram", 2)], temperatures=[0.0, 1.0], timing_prompts=0)
    found = measure(engine, plan)
    assert list(found.answers) == [(t, v) for t in (0.0, 1.0) for v in (PLAIN, NGRAM, Variant("ngram", 2))]
    assert all(sorted(answers) == list(range(len(PROMPTS))) for answers in found.answers.values())
    assert found.groups == {}
    assert found.curve is None
    assert not found.interrupted
    longest = {v: max(s.num_nodes for a in found.answers[0.0, v].values() for s in a.steps) for v in plan.variants}
    assert longest == {NGRAM: 4, Variant("ngram", 2): 2}


def test_timed_prompts_are_spread_and_groups_are_whole() -> None:
    engine = toy_engine()
    plan = toy_plan(engine, timing_prompts=3, batch_sizes=[1, 2, 4])
    assert plan.timed == (0, 2, 4)
    assert plan.timed_groups(1) == [[(0, 0)], [(2, 0)], [(4, 0)]]
    assert plan.timed_groups(2) == [[(0, 0), (2, 0)], [(4, 0), (0, 1)]]
    assert plan.timed_groups(4) == [[(0, 0), (2, 0), (4, 0), (0, 1)]]
    assert replace(plan, timing_prompts=99).timed == tuple(range(6))
    found = measure(engine, plan)
    assert {key: len(rows[PLAIN]) for key, rows in found.groups.items()} == {(0.0, 1): 3, (0.0, 2): 2, (0.0, 4): 1}
    for (_, size), rows in found.groups.items():
        assert [len(group.answers) for group in rows[NGRAM]] == [size] * len(rows[PLAIN])


def test_timed_answers_are_those_of_the_acceptance_pass() -> None:
    engine = toy_engine()
    plan = toy_plan(engine, temperatures=[0.0, 1.0], timing_prompts=3, batch_sizes=[1])
    found = measure(engine, plan)
    for temperature, variant in found.answers:
        if variant == PLAIN or temperature == 0:
            timed = [group.answers[0].token_ids for group in found.groups[temperature, 1][variant]]
            assert timed == [found.answers[temperature, variant][index].token_ids for index in plan.timed]


def test_what_a_suffix_tree_learns_in_one_pass_stays_there() -> None:
    """The same engine measured twice, and two variants after each other: every pass begins with empty trees."""
    engine = toy_engine(proposer="suffix")
    plan = toy_plan(engine, [("suffix", 4)], timing_prompts=0)
    alone = measure(engine, plan).answers[0.0, Variant("suffix", 4)]
    engine = toy_engine(proposer="suffix")
    both = measure(engine, toy_plan(engine, [("suffix", 3), ("suffix", 4)], timing_prompts=0))
    second = both.answers[0.0, Variant("suffix", 4)]
    assert {index: answer.stats for index, answer in second.items()} == {i: a.stats for i, a in alone.items()}


def test_the_curve_takes_its_context_from_the_timed_prompts() -> None:
    engine = toy_engine()
    plan = toy_plan(engine, timing_prompts=2, batch_sizes=[1])
    found = measure(engine, plan)
    assert found.curve is not None
    lengths = [len(plan.token_ids[i]) + len(found.answers[0.0, PLAIN][i].token_ids) // 2 for i in plan.timed]
    assert found.curve.context == sum(lengths) // 2
    assert found.curve.repeats == 5


@pytest.mark.parametrize("after", [0, 1, 3, 9, 20, 40, 60])
def test_an_interruption_leaves_what_was_finished(after: int) -> None:
    engine = toy_engine()
    plan = toy_plan(engine)
    asked = 0

    def stopped() -> bool:
        nonlocal asked
        asked += 1
        return asked > after

    found = measure(engine, plan, stopped=stopped)
    whole = measure(engine, plan)
    assert found.interrupted
    for key, answers in found.answers.items():
        for index, answer in answers.items():
            assert answer.token_ids == whole.answers[key][index].token_ids
    for rows in found.groups.values():
        assert len({len(groups) for groups in rows.values()}) == 1
    assert not engine.has_unfinished_requests()
    engine.scheduler.check_integrity()
    assert engine.scheduler.blocks.usage == 0


def test_progress_goes_from_nothing_to_all() -> None:
    engine = toy_engine()
    seen: list[Status] = []
    measure(engine, toy_plan(engine), show=seen.append)
    fractions = [status.fraction for status in seen]
    assert fractions == sorted(fractions)
    assert 0 < fractions[0] < 0.2
    assert fractions[-1] == pytest.approx(1.0)
    assert list(dict.fromkeys(status.label for status in seen)) == [
        "acceptance, plain, T=0",
        "acceptance, ngram k=4, T=0",
        "timing, batch 1, T=0",
        "timing, batch 2, T=0",
    ]


def test_variants_take_turns_on_each_group(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = toy_engine()
    order: list[str] = []
    add = engine.add_request

    def spy(request_id: str, prompt: object, params: object, **rest: object) -> None:
        order.append(getattr(rest["speculation"], "proposer"))  # noqa: B009
        add(request_id, prompt, params, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(engine, "add_request", spy)
    plan = toy_plan(engine, timing_prompts=3, batch_sizes=[1])
    measure(engine, plan)
    assert order[-6:] == ["none", "ngram", "ngram", "none", "none", "ngram"]


def test_prompts_that_are_too_long_are_left_out_before_any_is_chosen() -> None:
    engine = toy_engine(toy_model(max_model_len=100))
    long = EvalPrompt("chat", "chat", "long", "x" * 90)
    chosen, ids, skipped = prepare(engine, [long, *PROMPTS], 1, 24)
    assert [prompt.name for prompt in chosen] == ["chat/chat-0", "code/python-0"]
    assert [bytes(tokens).decode() for tokens in ids] == [prompt.text for prompt in chosen]
    assert skipped == ["chat/long"]
    with pytest.raises(ValueError, match="no prompt leaves room for 24 tokens"):
        prepare(engine, [long], None, 24)


def test_a_pass_asks_no_more_at_once_than_planned() -> None:
    """32 tokens a step hold six sequences with drafts of four; more would have theirs cut."""
    model = toy_model()
    engine = toy_engine(
        model, proposers={"oracle": OracleProposer(model, 1)}, max_num_seqs=16, max_num_batched_tokens=32
    )
    prompts = [replace(prompt, prompt_id=f"{prompt.prompt_id}.{copy}") for copy in (0, 1, 2) for prompt in PROMPTS]
    plan = toy_plan(engine, [("oracle", 4)], prompts=prompts, timing_prompts=0, concurrency=6)

    def cut(concurrency: int) -> int:
        found = measure(engine, replace(plan, concurrency=concurrency))
        steps = [step for answer in found.answers[0.0, Variant("oracle", 4)].values() for step in answer.steps]
        whole = [step for step in steps if step.num_tokens > step.num_accepted]
        assert len(whole) > 100
        return sum(step.num_nodes < min(4, plan.max_tokens - step.index - 1) for step in whole)

    assert cut(6) == 0
    assert cut(16) > 0
