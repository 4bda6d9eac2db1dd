"""What an evaluation does with an engine: every proposer's answers to every prompt, then times on some of them.

Acceptance is measured on all prompts, several at once: of most proposers it does not depend on the batch. For oracles
all prompts are answered again, each proposer drafting at every token. Times are taken on a few
prompts at each batch size, every proposer and plain decoding in turns on each group of prompts, so that what else the
machine does hits all of them alike. Nothing is concluded here; see `specdec.eval.summary`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from specdec.config import AUTO
from specdec.engine import Engine
from specdec.engine.portfolio import portfolio_members
from specdec.eval.curve import CurveTimer, sizes_for
from specdec.eval.progress import Meter, Part, Status
from specdec.eval.prompts import EvalPrompt, choose, token_ids
from specdec.eval.results import Curve
from specdec.eval.session import Answer, GroupTimes, Interrupted, Job, answer_all, time_group
from specdec.eval.shadow import Recording, passes, record_all
from specdec.types import SamplingParams, SpeculationParams

CONCURRENCY = 16

MIN_ROUNDS = 5
"""Of the curve T(M)."""


@dataclass(frozen=True)
class Variant:
    """A proposer at one draft length."""

    proposer: str
    num_speculative_tokens: int

    def __str__(self) -> str:
        return f"{self.proposer} k={self.num_speculative_tokens}" if self.proposer != "none" else "plain"


PLAIN = Variant("none", 0)


@dataclass(frozen=True)
class Choice:
    """What an oracle chooses from at each step: `auto`'s members, or the proposers that are named at one length."""

    proposer: str | None
    """`auto`; None for the named."""
    num_speculative_tokens: int
    members: tuple[Variant, ...]


@dataclass(frozen=True)
class Plan:
    """What to measure."""

    prompts: tuple[EvalPrompt, ...]
    token_ids: tuple[tuple[int, ...], ...]
    """Of each prompt, as the engine is given it."""
    variants: tuple[Variant, ...]
    """Without plain decoding, which is always measured."""
    temperatures: tuple[float, ...]
    max_tokens: int
    seed: int
    timing_prompts: int
    """0: no times."""
    batch_sizes: tuple[int, ...]
    concurrency: int = CONCURRENCY
    """Prompts that the acceptance pass answers at once: few enough that the engine never has to cut a draft."""
    limit: int | None = None
    """What the prompts of each task were limited to, for the record."""
    skipped: tuple[str, ...] = ()
    """The names of prompts that were too long to ask, for the record."""
    choices: tuple[Choice, ...] = ()
    """The oracles to make; temperature 0 must then be among the temperatures."""

    @property
    def recorded(self) -> tuple[Variant, ...]:
        """Who drafts at every token, for the oracles."""
        return tuple(dict.fromkeys(member for choice in self.choices for member in choice.members))

    @property
    def timed(self) -> tuple[int, ...]:
        """Indices of the prompts to take times on, spread evenly."""
        count = min(self.timing_prompts, len(self.prompts))
        return tuple(rank * len(self.prompts) // count for rank in range(count))

    def timed_groups(self, batch_size: int) -> list[list[tuple[int, int]]]:
        """(prompt, copy) of each place in each group. Groups are whole; too few prompts are repeated."""
        count = len(self.timed)
        num_places = -(-count // batch_size) * batch_size
        places = [(self.timed[place % count], place // count) for place in range(num_places)]
        return [places[start : start + batch_size] for start in range(0, num_places, batch_size)]

    def job(self, index: int, variant: Variant, temperature: float, salt: str) -> Job:
        """The request for a prompt. A prompt has the same seed in every variant, and the salt keeps what one pass
        computed or said out of the others."""
        prompt = self.prompts[index]
        params = SamplingParams(
            temperature=temperature, max_tokens=self.max_tokens, seed=prompt.seed(self.seed), stop=prompt.stop
        )
        speculation = SpeculationParams(variant.proposer, variant.num_speculative_tokens)
        return Job(self.token_ids[index], params, speculation, f"{variant}, T={temperature:g}, {salt}")


@dataclass
class Measured:
    """What was recorded; an interruption leaves it with what was finished by then."""

    answers: dict[tuple[float, Variant], dict[int, Answer]] = field(default_factory=dict)
    """By temperature and variant (`PLAIN` too): answers by the prompt's index. Failed ones have an `error`."""
    recordings: dict[Variant, dict[int, Recording]] = field(default_factory=dict)
    """Greedy answers by the prompt's index, with drafts at every token; by `Plan.recorded`."""
    groups: dict[tuple[float, int], dict[Variant, list[GroupTimes]]] = field(default_factory=dict)
    """By temperature and batch size: groups that every variant has decoded, in the same order for each."""
    timed: dict[tuple[float, int], list[int]] = field(default_factory=dict)
    """The same for the prompt that is the first of each group."""
    curve: Curve | None = None
    interrupted: bool = False


def prepare(
    engine: Engine, prompts: Sequence[EvalPrompt], limit: int | None, max_tokens: int
) -> tuple[list[EvalPrompt], list[tuple[int, ...]], list[str]]:
    """The prompts to ask, at most `limit` of each task, their token ids, and the names of those too long to ask.

    ValueError if a prompt cannot be put to this model, or none is left.
    """
    ids = {prompt.name: tuple(token_ids(prompt, engine.tokenizer)) for prompt in prompts}
    longest = engine.max_model_len - max_tokens
    fitting = [prompt for prompt in prompts if 0 < len(ids[prompt.name]) <= longest]
    if not fitting:
        raise ValueError(
            f"no prompt leaves room for {max_tokens} tokens after it: the model takes {engine.max_model_len} in all"
        )
    chosen = choose(fitting, limit)
    skipped = [prompt.name for prompt in prompts if len(ids[prompt.name]) > longest]
    return chosen, [ids[prompt.name] for prompt in chosen], skipped


def choices(engine: Engine, variants: Sequence[Variant]) -> tuple[Choice, ...]:
    """The oracles of some variants: one for each `auto`, and one for each draft length of the others."""
    found = []
    for variant in variants:
        if variant.proposer == AUTO:
            length = variant.num_speculative_tokens
            members = portfolio_members(engine.config, length, engine.runner.proposers)
            own = tuple(Variant(member.name, min(member.length, length)) for member in members)
            found.append(Choice(AUTO, length, own))
    named = [variant for variant in variants if variant.proposer != AUTO]
    for length in dict.fromkeys(variant.num_speculative_tokens for variant in named):
        found.append(Choice(None, length, tuple(each for each in named if each.num_speculative_tokens == length)))
    return tuple(found)


def measure(
    engine: Engine,
    plan: Plan,
    *,
    show: Callable[[Status], None] = lambda status: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Measured:
    """Carry out the plan on an idle engine. `stopped` is asked between steps; once it says yes, no more is measured."""
    return _Measurement(engine, plan, show, stopped).run()


class _Measurement:
    def __init__(self, engine: Engine, plan: Plan, show: Callable[[Status], None], stopped: Callable[[], bool]) -> None:
        self._engine = engine
        self._plan = plan
        self._stopped = stopped
        self._variants = (PLAIN, *plan.variants)
        self._measured = Measured()
        self._passes = {
            (temperature, variant): _part(
                f"acceptance, {variant}, T={temperature:g}", plan, len(plan.prompts), plan.concurrency
            )
            for temperature in plan.temperatures
            for variant in self._variants
        }
        asked = [(each.proposer, each.num_speculative_tokens) for each in plan.recorded]
        self._records = [tuple(Variant(*each) for each in together) for together in passes(engine.runner, asked)]
        recording = [_record_part(plan, together) for together in self._records]
        self._timings = {
            (temperature, batch_size): _timing_part(plan, temperature, batch_size)
            for temperature in plan.temperatures
            for batch_size in plan.batch_sizes
            if plan.timing_prompts
        }
        parts = [*self._passes.values(), *recording, *self._timings.values()]
        self._meter = Meter(parts, plan.max_tokens, show)

    def run(self) -> Measured:
        try:
            for (temperature, variant), part in self._passes.items():
                self._meter.begin(part)
                self._answer(temperature, variant)
            for together in self._records:
                self._meter.begin(_record_part(self._plan, together))
                self._record(together)
            if self._timings:
                self._take_times()
        except Interrupted:
            self._measured.interrupted = True
        return self._measured

    def _answer(self, temperature: float, variant: Variant) -> None:
        """The acceptance pass of one variant."""
        plan = self._plan
        jobs = {index: plan.job(index, variant, temperature, "acceptance") for index in range(len(plan.prompts))}
        answers = self._measured.answers[temperature, variant] = {}
        answer_all(self._engine, jobs, plan.concurrency, self._on_step, answers)

    def _record(self, together: Sequence[Variant]) -> None:
        """The same with proposers that draft at every token, and whose drafts are not verified."""
        plan = self._plan
        jobs = {index: plan.job(index, together[0], 0.0, "oracle") for index in range(len(plan.prompts))}
        found: dict[tuple[str, int], dict[int, Recording]] = {}
        for variant in together:
            self._measured.recordings[variant] = found[variant.proposer, variant.num_speculative_tokens] = {}
        record_all(self._engine, list(found), jobs, plan.concurrency, self._on_step, found)

    def _take_times(self) -> None:
        """Every temperature's and batch size's groups, and the rounds of the curve between them."""
        timer = self._curve_timer()
        try:
            rounds = self._rounds(timer)
            for (temperature, batch_size), part in self._timings.items():
                self._meter.begin(part)
                self._time(temperature, batch_size, rounds)
            for _ in rounds:
                self._check()
        finally:
            timer.close()

    def _rounds(self, timer: CurveTimer) -> Iterator[None]:
        """A round of the curve at each step: one for each group of one prompt, and `MIN_ROUNDS` at least."""
        per_temperature = len(self._plan.timed) if 1 in self._plan.batch_sizes else 0
        for _ in range(max(MIN_ROUNDS, per_temperature * len(self._plan.temperatures))):
            timer.round()
            self._measured.curve = timer.curve()
            yield

    def _time(self, temperature: float, batch_size: int, rounds: Iterator[None]) -> None:
        """Decode each group with every variant, a different one first each time."""
        plan = self._plan
        found = self._measured.groups[temperature, batch_size] = {variant: [] for variant in self._variants}
        timed = self._measured.timed[temperature, batch_size] = []
        for number, places in enumerate(plan.timed_groups(batch_size)):
            if batch_size == 1:
                next(rounds, None)
            self._check()
            first = number % len(self._variants)
            row = {
                variant: time_group(self._engine, self._jobs(places, variant, temperature), self._on_step)
                for variant in (*self._variants[first:], *self._variants[:first])
            }
            if not any(answer.error for group in row.values() for answer in group.answers):
                timed.append(places[0][0])
                for variant, group in row.items():
                    found[variant].append(group)

    def _jobs(self, places: Sequence[tuple[int, int]], variant: Variant, temperature: float) -> list[Job]:
        salt = f"batch {len(places)}, copy "
        return [self._plan.job(index, variant, temperature, f"{salt}{copy}") for index, copy in places]

    def _curve_timer(self) -> CurveTimer:
        """A context as long as the timed prompts and half their answers are, in the mean, and of such text."""
        plan = self._plan
        answers = self._measured.answers[plan.temperatures[0], PLAIN]
        lengths = [len(plan.token_ids[index]) + len(answers[index].token_ids) // 2 for index in plan.timed]
        text = [token for index in plan.timed for token in (*plan.token_ids[index], *answers[index].token_ids)]
        longest_draft = max(variant.num_speculative_tokens for variant in plan.variants)
        return CurveTimer(self._engine, text, sum(lengths) // len(lengths), sizes_for(longest_draft))

    def _on_step(self, num_tokens: int, ended: Sequence[int]) -> None:
        self._meter.advance(num_tokens, ended)
        self._check()

    def _check(self) -> None:
        if self._stopped():
            raise Interrupted


def _part(label: str, plan: Plan, num_answers: int, batch_size: int) -> Part:
    """A step is taken to cost an eighth more for each sequence beside the first."""
    num_steps = num_answers * plan.max_tokens / batch_size
    return Part(label, num_answers, num_steps * (1 + (batch_size - 1) / 8))


def _record_part(plan: Plan, together: Sequence[Variant]) -> Part:
    return _part(f"oracle, {', '.join(map(str, together))}", plan, len(plan.prompts), plan.concurrency)


def _timing_part(plan: Plan, temperature: float, batch_size: int) -> Part:
    places = sum(map(len, plan.timed_groups(batch_size)))
    label = f"timing, batch {batch_size}, T={temperature:g}"
    return _part(label, plan, places * (1 + len(plan.variants)), batch_size)
