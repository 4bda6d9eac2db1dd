"""What an engine tells the controller of `auto`, and whom it asks on its behalf. The clock is the test's."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence as Many
from dataclasses import dataclass, field

import pytest

from specdec.core.control.controller import Controller
from specdec.core.control.types import PLAIN, Candidate, Choice, Outcome
from specdec.core.sequence import Sequence
from specdec.engine import Engine
from specdec.proposers.base import NOTHING, ProposalInput
from specdec.step.kv_cache import KVCache
from specdec.types import Draft, SamplingParams, SpeculationParams
from tests.engine.test_auto import (
    STEP,
    VOCABULARY,
    Clock,
    Timed,
    TimedModel,
    auto_engine,
    by_chance,
    model,
    with_draft_model,
)
from tests.engine.test_auto import scripted as drafting_model
from tests.toys import OracleProposer, generate, make_engine, random_script, run

GREEDY = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)


def timed_engine(clock: Clock, seconds: float = 0.02 * STEP) -> Engine:
    target = TimedModel(clock, random_script(VOCABULARY), VOCABULARY, max_model_len=600)
    return auto_engine(target, {"oracle": Timed(OracleProposer(target, 4), clock, seconds)}, clock=clock)


@dataclass
class Told:
    """Listens to what a controller is told of steps that are over."""

    engine: Engine
    is_pure: list[bool] = field(default_factory=list)
    propose: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        controller = self.engine.speculation.controller
        assert isinstance(controller, Controller)
        self._inner = controller.verified
        controller.verified = self  # type: ignore[method-assign, assignment]

    def __call__(self, outcomes: Many[Outcome], rows: int, seconds: float, propose: float, is_pure: bool) -> None:
        self.is_pure.append(is_pure)
        self.propose.append(propose)
        self._inner(outcomes, rows, seconds, propose, is_pure)


def test_only_steps_without_prompts_tell_of_its_machine() -> None:
    engine = timed_engine(Clock())
    told = Told(engine)
    engine.add_request("a", [1, 2, 3, 4], GREEDY)
    for _ in range(3):
        engine.step()
    engine.add_request("b", [5, 6, 7, 8], GREEDY)
    for _ in range(3):
        engine.step()
    assert told.is_pure == [False, True, True, False, True, True]


def test_a_steps_drafts_are_those_that_it_verified() -> None:
    """Drafting takes longer from step to step; a step is told with what its own drafts took."""
    clock = Clock()
    engine = timed_engine(clock)
    timed, told, took = engine.runner.proposers["oracle"], Told(engine), []
    assert isinstance(timed, Timed)
    engine.add_request("a", [1, 2, 3], GREEDY)
    for number in range(6):
        timed.seconds = 0.001 * (number + 1) * STEP
        engine.step()
        took.append(engine.last_step.propose)
    assert len(set(took)) > 3
    assert told.propose[1:] == pytest.approx(took[:-1])


def test_requests_that_name_their_proposer_are_not_counted() -> None:
    clock = Clock()
    engine = timed_engine(clock)
    for number in range(4):
        wanted = SpeculationParams("oracle" if number else "auto")
        engine.add_request(str(number), [1, 2, 3 + number], GREEDY, speculation=wanted)
    outputs = run(engine)
    explanation = engine.explain_speculation()
    assert explanation is not None
    stats = outputs["0"].outputs[0].speculation
    assert 30 < explanation.num_tokens <= GREEDY.max_tokens
    assert sum(explanation.proposers[0].kept) == stats.num_accepted_tokens


def test_what_a_shared_proposer_takes_is_shared() -> None:
    """It is asked once for both: for one that names it, and for one whose choice is `auto`'s."""
    clock = Clock()
    engine = timed_engine(clock, 0.1 * STEP)
    before = engine.explain_speculation()
    assert before is not None
    for wanted in ("auto", "oracle"):
        engine.add_request(wanted, [1, 2, 3], GREEDY, speculation=SpeculationParams(wanted))
    run(engine)
    account = engine.explain_speculation().proposers[0]  # type: ignore[union-attr]
    assert account.num_asked > 5
    assert account.draft_seconds == pytest.approx(account.num_asked * 0.05 * STEP, rel=0.25)


def test_an_engine_keeps_nothing_of_those_that_are_done() -> None:
    engine = timed_engine(Clock())
    engine.add_request("a", [1, 2, 3], GREEDY)
    engine.add_request("b", [4, 5, 6], GREEDY)
    for _ in range(4):
        engine.step()
    kept = [weakref.ref(sequence) for sequence in engine.scheduler.running]
    assert len(kept) == 2
    engine.abort("a")
    run(engine, check=False)
    engine.add_request("c", [7, 8, 9], GREEDY)
    run(engine, check=False)
    gc.collect()
    assert [each() for each in kept] == [None, None]


def test_steps_that_nobody_can_draft_for_are_counted_as_plain() -> None:
    """Nothing repeats itself in these answers, and copies are all there is."""
    engine = make_engine(drafting_model(), proposer="auto", k=4)
    assert isinstance(engine.speculation.controller, Controller)
    told = Told(engine)
    generate(engine, [[1, 2, 3]], SamplingParams(temperature=0, max_tokens=100, ignore_eos=True))
    explanation = engine.explain_speculation()
    assert explanation is not None
    assert explanation.num_steps == explanation.num_choices == sum(told.is_pure) - 1, "the last one cannot be drafted"


def test_traffic_that_never_pauses_is_learned_from() -> None:
    """A prompt arrives at every step. The proposer is no good for the first forty requests, and right from then on."""
    clock = Clock()
    target = TimedModel(clock, random_script(VOCABULARY), VOCABULARY, max_model_len=200)

    class Late(OracleProposer):
        def propose(self, sequences: Many[Sequence], inp: ProposalInput) -> list[Draft]:
            found = []
            for sequence, length in zip(sequences, inp.lengths, strict=True):
                self.correct = 8 if sequence.request.arrival >= 40 else 0
                found.append(self._draft(tuple(sequence.token_ids), length))
            return found

    engine = auto_engine(target, {"late": Timed(Late(target, 8), clock, 0.02 * STEP)}, clock=clock)
    accepted = 0
    for number in range(220):
        prompt = [(7 * number + i) % VOCABULARY for i in range(20)]
        engine.add_request(str(number), prompt, SamplingParams(temperature=0, max_tokens=8, ignore_eos=True))
        for output in engine.step():
            if output.finished and number >= 150:
                accepted += output.outputs[0].speculation.num_accepted_tokens
    assert accepted > 0.5 * 8 * 70


def test_those_that_learn_are_known_for_it() -> None:
    engine = make_engine(model(), proposer="auto", k=4, settings={"proposers": ["ngram", "recycling"]}, proposers=None)
    assert engine.speculation.controller is not None
    assert {each.name: each.learns for each in engine.speculation.controller.members} == {
        "ngram": False,
        "recycling": True,
    }


@dataclass
class Listens:
    """Drafts nothing, and remembers which sequences it was asked about, and for how much."""

    asked: list[tuple[int, int]] = field(default_factory=list)
    kv_caches: tuple[KVCache, ...] = ()
    wants = NOTHING

    def propose(self, sequences: Many[Sequence], inp: ProposalInput) -> list[Draft]:
        self.asked += [(each.num_tokens, n) for each, n in zip(sequences, inp.lengths, strict=True)]
        return [Draft() for _ in sequences]

    def forget(self, sequence: Sequence) -> None:
        pass


class Follows:
    """Chooses nobody, and has one member follow all."""

    def __init__(self, controller: Controller, member: str) -> None:
        self.controller, self.member = controller, member

    def __call__(self, candidates: Many[Candidate], rows: int) -> list[Choice]:
        self.controller.choose_plainly(candidates, rows)  # type: ignore[attr-defined]
        return [Choice(PLAIN, followers=(self.member,)) for _ in candidates]


def test_whoever_follows_sees_every_step_and_drafts_nothing() -> None:
    listens, target = Listens(), model()
    engine = auto_engine(target, {"listens": listens})
    controller = engine.speculation.controller
    assert isinstance(controller, Controller)
    controller.choose_plainly = controller.choose  # type: ignore[attr-defined]
    controller.choose = Follows(controller, "listens")  # type: ignore[method-assign]
    listens.asked.clear()
    generate(engine, [[1, 2, 3]], SamplingParams(temperature=0, max_tokens=10, ignore_eos=True))
    assert listens.asked == [(3 + number, 0) for number in range(1, 9)], "the last one cannot be drafted"


def test_a_draft_models_kv_follows_where_others_draft() -> None:
    """What it is told of without being asked to draft is no lag later."""
    engine = by_chance(with_draft_model(drafting_model(), drafting_model()))
    for number in range(3):
        engine.add_request(str(number), [number, 1, 2] * 3, GREEDY)
    followed = 0
    while engine.has_unfinished_requests():
        before = {each: each.num_draft_computed_tokens for each in engine.scheduler.running}
        engine.step()
        for sequence, computed in before.items():
            grew = sequence.num_draft_computed_tokens > computed
            followed += grew and sequence.draft.proposer != "draft" and not sequence.is_finished
    assert followed > 5
