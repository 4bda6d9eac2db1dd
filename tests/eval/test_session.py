"""What each step drafted and accepted, on engines whose proposers are right by design."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from specdec.engine import Engine
from specdec.eval.session import Answer, Interrupted, Job, Session, Step, answer_all, time_group
from specdec.types import SamplingParams, SpeculationParams
from tests.eval.helpers import Clock, TimedProposer, timed_model, toy_engine
from tests.toys import BYTE_VOCABULARY, OracleProposer, ScriptedModel, random_script
from tests.trees import OracleTree

K = 4


def job(length: int = 5, *, k: int = K, proposer: str = "oracle", max_tokens: int = 24, salt: str = "s") -> Job:
    params = SamplingParams(temperature=0, max_tokens=max_tokens, seed=0)
    return Job(tuple(range(97, 97 + length)), params, SpeculationParams(proposer, k), salt)


def oracle_engine(correct: int) -> Engine:
    model = ScriptedModel(random_script(BYTE_VOCABULARY), BYTE_VOCABULARY)
    return toy_engine(model, proposers={"oracle": OracleProposer(model, correct)})


def quiet(num_tokens: int, ended: Sequence[int]) -> None:
    pass


def answers(engine: Engine, jobs: dict[int, Job], concurrency: int = 3) -> dict[int, Answer]:
    found: dict[int, Answer] = {}
    answer_all(engine, jobs, concurrency, quiet, found)
    return found


@pytest.mark.parametrize("correct", range(K + 1))
def test_steps_of_a_proposer_that_is_right_so_many_times(correct: int) -> None:
    (found,) = answers(oracle_engine(correct), {7: job(max_tokens=100)}).values()
    whole = [step for step in found.steps if step.num_nodes == K and step.num_tokens > step.num_accepted]
    assert len(whole) >= (100 - 1 - K) // (correct + 1)
    assert {(step.num_drafted, step.depth, step.num_accepted) for step in whole} == {(K, K, correct)}
    assert [step.index for step in found.steps] == [
        1 + sum(step.num_tokens for step in found.steps[:number]) for number in range(len(found.steps))
    ]


def test_steps_add_up_to_the_samples_own_counts() -> None:
    engine = toy_engine()
    jobs = {key: job(5 + key, proposer="ngram", max_tokens=30 + key) for key in range(5)}
    found = answers(engine, jobs)
    assert set(found) == set(jobs)
    for answer in found.values():
        drafts = [step for step in answer.steps if step.num_drafted]
        assert len(answer.token_ids) == len(answer.provenance) == 1 + sum(step.num_tokens for step in answer.steps)
        assert answer.stats.num_drafts == len(drafts) > 0
        assert answer.stats.num_draft_tokens == sum(step.num_drafted for step in drafts)
        assert answer.stats.num_accepted_tokens == sum(step.num_accepted for step in drafts)
        for position, count in enumerate(answer.stats.accepted_per_position):
            assert count == sum(step.num_accepted > position for step in drafts)


@pytest.mark.parametrize("proposer", ["ngram", "none"])
@pytest.mark.parametrize("kv_cache_tokens", range(40, 80, 4))
def test_what_was_preempted_comes_back_with_a_step_without_a_draft(kv_cache_tokens: int, proposer: str) -> None:
    """And of a draft that was cut for want of blocks, only what was computed counts."""
    jobs = {key: job(5 + key, proposer=proposer, k=K * (proposer != "none")) for key in range(4)}
    engine = toy_engine(kv_cache_tokens=kv_cache_tokens)
    found = answers(engine, jobs, concurrency=4)
    assert engine.scheduler.num_preemptions > 0
    roomy = answers(toy_engine(), jobs, concurrency=4)
    for key, answer in found.items():
        assert answer.token_ids == roomy[key].token_ids
        assert len(answer.token_ids) == 1 + sum(step.num_tokens for step in answer.steps)
        assert answer.stats.num_draft_tokens == sum(step.num_drafted for step in answer.steps)
        assert all(step.num_nodes == step.depth == step.num_drafted for step in answer.steps[:-1])
        assert all(step.num_tokens == step.num_accepted + 1 for step in answer.steps[:-1])


def test_plain_decoding_takes_a_step_for_each_token() -> None:
    (found,) = answers(toy_engine(), {0: job(proposer="none", k=0, max_tokens=6)}).values()
    assert found.steps == tuple(Step(index, 1, 0, 0, 0, 0) for index in range(1, 6))


def test_a_draft_that_is_cut_by_the_end_had_the_positions_before_it() -> None:
    """With `max_tokens` 5 the engine itself asks for no longer draft; a stop token comes unexpected."""
    model = ScriptedModel(random_script(BYTE_VOCABULARY), BYTE_VOCABULARY)
    engine = toy_engine(model, proposers={"oracle": OracleProposer(model, K)})
    (plain,) = answers(engine, {0: job(proposer="none", k=0)}).values()
    stop = SamplingParams(temperature=0, max_tokens=24, seed=0, stop_token_ids=[plain.token_ids[3]])
    ended = Job(tuple(range(97, 102)), stop, SpeculationParams("oracle", K), "s")
    (found,) = answers(engine, {0: ended}).values()
    assert found.token_ids == plain.token_ids[:4]
    assert found.steps == (Step(1, 3, num_nodes=K, num_drafted=3, depth=3, num_accepted=3),)


def test_a_tree_has_fewer_positions_than_tokens() -> None:
    """Eight nodes of depth 3, of which two are accepted; the same cut by a stop token at the first."""
    model = ScriptedModel(random_script(BYTE_VOCABULARY), BYTE_VOCABULARY)
    engine = toy_engine(model, proposers={"tree": OracleTree(model, 2)})
    (found,) = answers(engine, {0: job(proposer="tree", k=3, max_tokens=40)}).values()
    assert found.steps[0] == Step(1, 3, num_nodes=8, num_drafted=8, depth=3, num_accepted=2)
    stop = SamplingParams(temperature=0, max_tokens=24, seed=0, stop_token_ids=[found.token_ids[1]])
    ended = Job(tuple(range(97, 102)), stop, SpeculationParams("tree", 3), "s")
    (cut,) = answers(engine, {0: ended}).values()
    assert cut.steps == (Step(1, 1, num_nodes=8, num_drafted=2, depth=1, num_accepted=1),)


def test_no_more_requests_run_at_once_than_asked_for() -> None:
    engine = toy_engine()
    most = 0

    def on_step(num_tokens: int, ended: Sequence[int]) -> None:
        nonlocal most
        most = max(most, len(engine.scheduler.running))

    answer_all(engine, {key: job(proposer="ngram") for key in range(6)}, 2, on_step, {})
    assert most == 2


def test_an_interruption_keeps_what_was_finished_and_leaves_the_engine_idle() -> None:
    engine = toy_engine()
    jobs = {key: job(proposer="ngram", max_tokens=4 + 20 * key) for key in range(3)}
    found: dict[int, Answer] = {}

    def on_step(num_tokens: int, ended: Sequence[int]) -> None:
        if ended:
            raise Interrupted

    with pytest.raises(Interrupted):
        answer_all(engine, jobs, 3, on_step, found)
    assert list(found) == [0]
    assert not engine.has_unfinished_requests()
    engine.scheduler.check_integrity()


def test_a_failed_answer_says_why() -> None:
    def script(prefix: tuple[int, ...]) -> list[float]:
        value = float("nan") if len(prefix) > 9 else 0.0
        return [value] * BYTE_VOCABULARY

    engine = toy_engine(ScriptedModel(script, BYTE_VOCABULARY))
    (found,) = answers(engine, {0: job(proposer="ngram")}).values()
    assert found.error is not None


def timed_engine(monkeypatch: pytest.MonkeyPatch, clock: Clock, seconds: float) -> Engine:
    monkeypatch.setattr(time, "perf_counter", clock)
    model = timed_model(clock)
    return toy_engine(model, proposers={"oracle": TimedProposer(OracleProposer(model, 2), clock, seconds)})


def test_the_clock_of_a_group_starts_when_each_prompt_has_its_first_token(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    engine = timed_engine(monkeypatch, clock, seconds=0.5)
    jobs = [job(5, max_tokens=6, proposer="none", k=0), job(9, max_tokens=6, proposer="none", k=0)]
    group = time_group(engine, jobs, quiet)
    assert group.num_tokens == 10
    assert group.times.num_steps == 5
    assert group.times.total == group.times.forward == pytest.approx(5 * 1.125)
    assert [answer.last_token - answer.first_token for answer in group.answers] == pytest.approx([5 * 1.125] * 2)


def test_time_is_told_by_stage_and_the_watchers_own_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    engine = timed_engine(monkeypatch, clock, seconds=0.5)

    def dawdle(num_tokens: int, ended: Sequence[int]) -> None:
        clock.now += 100

    group = time_group(engine, [job(max_tokens=8)], dawdle)
    assert [step.num_tokens for step in group.answers[0].steps] == [3, 3, 1]
    assert group.times.num_steps == 3
    assert group.times.forward == pytest.approx((1 + 4 * 0.125) + (1 + 3 * 0.125) + 1)
    assert group.times.propose == pytest.approx(0.5)
    assert group.times.rest == pytest.approx(0.0)


def test_a_session_aborts_what_it_leaves_behind() -> None:
    engine = toy_engine()
    with Session(engine) as session:
        session.submit(0, job(proposer="ngram"))
        session.step()
    assert not engine.has_unfinished_requests()
