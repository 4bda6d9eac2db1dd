"""Requests through the engine, step by step, with what each step drafted and accepted, and on a clock of its own.

The clock adds up the time spent in `Engine.step` and stands still between steps, so that watching costs nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from specdec.engine import Engine
from specdec.types import (
    EMPTY_DRAFT,
    CompletionOutput,
    Draft,
    RequestOutput,
    SamplingParams,
    SpeculationParams,
    SpeculationStats,
)

OnStep = Callable[[int, Sequence[int]], None]
"""Told after each step how many tokens came and how long the answers are that ended; may raise `Interrupted`."""


class Interrupted(Exception):
    """The user wants no more; what is finished counts."""


@dataclass(frozen=True)
class Job:
    """One request. Only jobs of the same `cache_salt` share prefixes, and past outputs to draft from."""

    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    speculation: SpeculationParams
    cache_salt: str


@dataclass(frozen=True)
class Step:
    """What one step did for one answer that had its first token."""

    index: int
    """Of the first token it committed, in the output."""
    num_tokens: int
    """Committed."""
    num_nodes: int
    """Draft tokens that the target computed."""
    num_drafted: int
    """Of these, what counts as drafted: all, or the part before the answer's end."""
    depth: int
    """Positions that the part had; in a tree fewer than tokens."""
    num_accepted: int


@dataclass(frozen=True)
class Answer:
    """A finished request."""

    token_ids: tuple[int, ...]
    provenance: tuple[str, ...]
    steps: tuple[Step, ...]
    stats: SpeculationStats
    verifier: str
    exactness: str
    error: str | None
    first_token: float
    """On the session's clock, in seconds."""
    last_token: float


@dataclass(frozen=True)
class StepTimes:
    """Seconds summed over steps, by stage."""

    num_steps: int = 0
    forward: float = 0.0
    propose: float = 0.0
    rest: float = 0.0

    @property
    def total(self) -> float:
        return self.forward + self.propose + self.rest

    def plus(self, other: StepTimes) -> StepTimes:
        return StepTimes(
            self.num_steps + other.num_steps,
            self.forward + other.forward,
            self.propose + other.propose,
            self.rest + other.rest,
        )

    def since(self, earlier: StepTimes) -> StepTimes:
        """What was added to `earlier`."""
        return StepTimes(
            self.num_steps - earlier.num_steps,
            self.forward - earlier.forward,
            self.propose - earlier.propose,
            self.rest - earlier.rest,
        )


@dataclass
class _Live:
    """A request that is not finished: its counts at the last look, and the steps so far."""

    key: int
    seen: CompletionOutput = field(default_factory=lambda: CompletionOutput(0, "", []))
    steps: list[Step] = field(default_factory=list)
    first_token: float | None = None


def request_id(key: int) -> str:
    """What the engine knows a session's job by."""
    return str(key)


class Session:
    """Requests on one engine that has no others. As a context manager it aborts what is unfinished at its end."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._live: dict[str, _Live] = {}
        self.times = StepTimes()
        """Of all steps so far; `times.total` is the clock."""
        self.num_tokens = 0
        self.num_waiting = 0
        """Requests that have no token yet."""

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._live:
            self._engine.abort(name)

    @property
    def num_live(self) -> int:
        return len(self._live)

    def submit(self, key: int, job: Job) -> None:
        """Queue a job; its answer comes back under `key`. ValueError if the engine refuses it."""
        name = request_id(key)
        self._engine.add_request(
            name, job.prompt_token_ids, job.params, cache_salt=job.cache_salt, speculation=job.speculation
        )
        self._live[name] = _Live(key)
        self.num_waiting += 1

    def step(self) -> dict[int, Answer]:
        """One step of the engine; the answers that it ended."""
        drafts = {sequence.request.request_id: sequence.draft for sequence in self._engine.scheduler.running}
        start = time.perf_counter()
        outputs = self._engine.step()
        self._count_time(time.perf_counter() - start)
        answers = {}
        for output in outputs:
            live = self._live[output.request_id]
            self._look(live, output, drafts)
            if output.finished:
                answers[live.key] = self._finish(live, output)
                del self._live[output.request_id]
        return answers

    def _count_time(self, seconds: float) -> None:
        record = self._engine.last_step
        rest = seconds - record.forward - record.propose
        self.times = self.times.plus(StepTimes(1, record.forward, record.propose, rest))

    def _look(self, live: _Live, output: RequestOutput, drafts: Mapping[str, Draft]) -> None:
        """Take over what the request gained. One that was preempted comes back without a draft."""
        sample = output.outputs[0]
        num_new = len(sample.token_ids) - len(live.seen.token_ids)
        if num_new and live.first_token is None:
            live.first_token = self.times.total
            self.num_waiting -= 1
        elif num_new:
            live.steps.append(_step(live.seen, sample, drafts.get(output.request_id, EMPTY_DRAFT)))
        self.num_tokens += num_new
        live.seen = sample

    def _finish(self, live: _Live, output: RequestOutput) -> Answer:
        sample = output.outputs[0]
        if live.first_token is None:
            self.num_waiting -= 1
        return Answer(
            token_ids=tuple(sample.token_ids),
            provenance=tuple(sample.provenance),
            steps=tuple(live.steps),
            stats=sample.speculation,
            verifier=output.verifier,
            exactness=output.exactness,
            error=sample.error,
            first_token=self.times.total if live.first_token is None else live.first_token,
            last_token=self.times.total,
        )


def _step(before: CompletionOutput, after: CompletionOutput, draft: Draft) -> Step:
    """The step between two outputs of an answer, which verified `draft` or its beginning if it verified any.

    A draft that was dropped before the step, as at a preemption, is none.
    """
    old, new = before.speculation, after.speculation
    index = len(before.token_ids)
    num_tokens = len(after.token_ids) - index
    if new.num_drafts == old.num_drafts:
        return Step(index, num_tokens, 0, 0, 0, 0)
    num_drafted = new.num_draft_tokens - old.num_draft_tokens
    num_accepted = new.num_accepted_tokens - old.num_accepted_tokens
    ended_inside = num_accepted == num_tokens
    if not ended_inside:
        draft = draft.trimmed(num_drafted)  # where blocks or the step's tokens run short, the rest was not computed
    return Step(
        index=index,
        num_tokens=num_tokens,
        num_nodes=len(draft),
        num_drafted=num_drafted,
        depth=min(draft.depth, num_tokens) if ended_inside else draft.depth,
        num_accepted=num_accepted,
    )


def answer_all(
    engine: Engine, jobs: Mapping[int, Job], concurrency: int, on_step: OnStep, answers: dict[int, Answer]
) -> None:
    """Answer every job, `concurrency` at once, a new one as soon as one ends. Answers go into `answers` as they come,
    so that an `Interrupted` leaves those that were finished."""
    with Session(engine) as session:
        waiting = list(jobs.items())[::-1]
        while waiting or session.num_live:
            while waiting and session.num_live < concurrency:
                session.submit(*waiting.pop())
            _advance(session, answers, on_step)


def _advance(session: Session, answers: dict[int, Answer], on_step: OnStep) -> None:
    """One step; its answers are kept before anybody is told."""
    before = session.num_tokens
    ended = session.step()
    answers.update(ended)
    on_step(session.num_tokens - before, [len(answer.token_ids) for answer in ended.values()])


@dataclass(frozen=True)
class GroupTimes:
    """A group of jobs that started together. The clock ran once all had their first token; see `Timing`."""

    num_tokens: int
    times: StepTimes
    answers: tuple[Answer, ...]


def time_group(engine: Engine, jobs: Sequence[Job], on_step: OnStep) -> GroupTimes:
    """Decode `jobs` together."""
    answers: dict[int, Answer] = {}
    with Session(engine) as session:
        for key, job in enumerate(jobs):
            session.submit(key, job)
        while session.num_waiting:
            _advance(session, answers, on_step)
        num_tokens, times = session.num_tokens, session.times
        while session.num_live:
            _advance(session, answers, on_step)
    ordered = tuple(answers[key] for key in range(len(jobs)))
    return GroupTimes(session.num_tokens - num_tokens, session.times.since(times), ordered)
