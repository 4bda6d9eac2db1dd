"""What this machine takes: steps of more and more rows, and a draft of each proposer, timed while the engine is idle.

The rows are those of one made-up sequence, after a short context of zeros; drafts are for one, and for a few at once.
They hold blocks for as long as that takes, are never hashed, and proposers forget them. Where there is time for a
second look, the less of two times counts, since whatever else the machine does only adds to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Many
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from specdec.config import AUTO
from specdec.core.control.types import Choice, DraftTimes, Member
from specdec.core.scheduler import Schedule, ScheduledRow, Scheduler
from specdec.core.sequence import Sequence
from specdec.runner import Runner
from specdec.step.batch import Batch
from specdec.step.model import compute
from specdec.step.record import StepRecord
from specdec.types import MAX_DRAFT_NODES, Draft, Request, SamplingParams

ALWAYS = (16, 8, 4, 2, 1)
"""Sizes that are measured however slow the model is, the largest first: it has memory laid out for all."""
SIZES = (*ALWAYS, 12, 6, 3, 32, 8, 4, 2, 1, 16, 12, 6, 3, 64, 24, 48, 32)
"""What is measured while time is left, by what it tells beyond the earlier ones; some twice, and the less counts."""
SECONDS = 0.3
"""After which nothing further begins."""
CONTEXT = 64
PERIOD = 7
"""The made-up text repeats itself, so that proposers that copy find something."""
ATTEMPTS = 3
"""Drafts that are timed, after one that is not."""
ATTEMPTS_SECONDS = 0.075
"""After which no further one begins."""
TOGETHER = 4
"""Sequences that are drafted for at once, to see what they share."""


def step_seconds(runner: Runner, scheduler: Scheduler, clock: Callable[[], float]) -> dict[int, float]:
    """Seconds of the target's pass over so many rows, by rows."""
    most = _most(scheduler)
    found: dict[int, float] = {}
    with _made_up(runner, scheduler, most) as (sequence,):
        _time(runner, sequence, min(most, max(ALWAYS)), clock)
        start = clock()
        for number, size in enumerate(SIZES):
            if number >= len(ALWAYS) and clock() - start > SECONDS:
                break
            if size <= most:
                found[size] = min(found.get(size, float("inf")), _time(runner, sequence, size, clock))
    return {size: max(seconds, 1e-9) for size, seconds in found.items()}


def draft_times(runner: Runner, scheduler: Scheduler, member: Member, clock: Callable[[], float]) -> DraftTimes | None:
    """What a member's shortest and longest drafts take, and a hint where it gives any; None if it drafts nothing for a
    made-up text although it has a model. What would take too long is left out. Who ends drafts early may end the
    longest there, and then seems cheap until it is seen at work."""
    longest = min(member.length, max(1, scheduler.max_model_len // 2 - 1))
    has_kv, count = member.has_kv, min(TOGETHER, scheduler.max_num_seqs)
    with _made_up(runner, scheduler, 1 + max(longest, member.nodes), member, count) as sequences:
        asking = _Asking(runner, member, clock, clock())
        seen = max(0, sequences[0].num_computed_tokens - 1)
        try:
            reads = has_kv and seen > 0 and not asking.wants_states
            whole = asking.draft(sequences[:1], longest) if reads else None
            for sequence in sequences:
                sequence.num_draft_computed_tokens = seen if has_kv else 0
            alone = asking.draft(sequences[:1], longest)
            if alone is None:
                return None
            short = asking.draft(sequences[:1], 1) if has_kv and longest > 1 and asking.has_time else None
            together = asking.draft(sequences, longest) if len(sequences) > 1 and asking.has_time else None
            hint = asking.hint(sequences[0])
        finally:
            for sequence in sequences:
                runner.forget(sequence)
    return DraftTimes(
        ((longest, alone),) if short is None else ((1, short), (longest, alone)),
        hint,
        0.0 if together is None else _shared(alone, together, len(sequences)),
        None if whole is None else (seen, max(0.0, whole - alone)),
    )


def _shared(alone: float, together: float, count: int) -> float:
    """The part of one draft's time that so many in one call take but once."""
    if alone <= 0:
        return 0.0
    return min(1.0, max(0.0, (count - together / alone) / (count - 1)))


@dataclass(frozen=True)
class _Asking:
    """Asks one member again and again."""

    runner: Runner
    member: Member
    clock: Callable[[], float]
    start: float

    @property
    def has_time(self) -> bool:
        return self.clock() - self.start <= SECONDS

    @property
    def wants_states(self) -> bool:
        return self.runner.proposers[self.member.name].wants.states

    def _attempts(self) -> Iterator[int]:
        """One at least."""
        start = self.clock()
        for attempt in range(1 + ATTEMPTS):
            if attempt and self.clock() - start > ATTEMPTS_SECONDS:
                return
            yield attempt

    def draft(self, sequences: Many[Sequence], length: int) -> float | None:
        """Seconds of drafts for these sequences; None if one fails, or is empty although there is a model."""
        times: list[float] = []
        choices = [Choice(self.member.name, length)] * len(sequences)
        for _ in self._attempts():
            if self.wants_states:
                _compute_last(self.runner, sequences, self.clock)
            record = StepRecord(clock=self.clock)
            answers = self.runner.propose(sequences, choices, record)
            if any(answer.draft is None or (self.member.has_kv and not answer.draft) for answer in answers):
                return None
            times.append(record.drafts[self.member.name])
        return min(times[1:] or times)

    def hint(self, sequence: Sequence) -> float | None:
        """Seconds of a hint, None if there is none."""
        times: list[float] = []
        for _ in self._attempts():
            record = StepRecord(clock=self.clock)
            self.runner.hints(self.member.name, [sequence], record)
            times += record.hints.values()
        return min(times[1:] or times, default=None)


def _compute_last(runner: Runner, sequences: Many[Sequence], clock: Callable[[], float]) -> None:
    """A step over the last two of the tokens that are to be taken for computed, for who drafts from what it leaves."""
    counts = [min(2, sequence.num_computed_tokens) for sequence in sequences]
    rows = [ScheduledRow(s, s.num_computed_tokens - count, count) for s, count in zip(sequences, counts, strict=True)]
    if all(counts):
        runner.execute(Schedule(tuple(rows)), StepRecord(clock=clock))


def _most(scheduler: Scheduler) -> int:
    """The most rows that a step of one sequence may have."""
    return max(1, min(scheduler.max_num_batched_tokens, scheduler.max_model_len // 2, MAX_DRAFT_NODES))


@contextmanager
def _made_up(
    runner: Runner, scheduler: Scheduler, room: int, member: Member | None = None, count: int = 1
) -> Iterator[list[Sequence]]:
    """Sequences that are to be taken for computed but for their last token, with slots for `room` tokens from there on:
    `count` of them, or as many as there are blocks for. Their caches hold zeros, which take as long to read as what a
    model would have computed."""
    context = max(1, min(CONTEXT, scheduler.max_model_len - room))
    tokens = [i % min(PERIOD, runner.vocab_size) for i in range(context)]
    owner = member.name if member is not None and member.has_kv else None
    sequences: list[Sequence] = []
    try:
        for number in range(count):
            request = Request(
                f"calibration-{number}",
                tuple(tokens),
                SamplingParams(temperature=0),
                0,
                0,
                cache_salt="calibration",
                proposer=AUTO,
                draft_kv=owner,
            )
            sequence = Sequence(request, 0, list(tokens))
            if scheduler.blocks.grow(sequence, min(context + room, scheduler.max_model_len)) is None:
                break
            sequences.append(sequence)
        assert sequences, "an idle engine has room for one sequence"
        for sequence in sequences:
            sequence.num_computed_tokens = context - 1
            _clear(runner, sequence, owner)
        yield sequences
    finally:
        for sequence in sequences:
            scheduler.blocks.free(sequence)


def _clear(runner: Runner, sequence: Sequence, owner: str | None) -> None:
    """Zeros in a sequence's blocks, in the target's cache and in those of a proposer."""
    own = () if owner is None else runner.proposers[owner].kv_caches
    for kv in (runner.kv, *own):
        for cache in (*kv.keys, *kv.values):
            cache[sequence.block_table] = 0


def _time(runner: Runner, sequence: Sequence, size: int, clock: Callable[[], float]) -> float:
    """One pass over the last token and a draft behind it."""
    tokens = tuple(token % min(PERIOD, runner.vocab_size) for token in range(size - 1))
    row = ScheduledRow(sequence, sequence.num_tokens - 1, size, Draft(tokens, proposer=AUTO))
    start = clock()
    _forward(runner, row)
    return clock() - start


@torch.inference_mode()
def _forward(runner: Runner, row: ScheduledRow) -> None:
    batch = Batch.build(Schedule((row,)), runner.kv.block_size, runner.device)
    compute(runner.model, batch, runner.kv)
