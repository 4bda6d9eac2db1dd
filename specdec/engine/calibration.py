"""What this machine takes: steps of more and more rows, and a draft of each proposer, timed while the engine is idle.

The rows are those of one made-up sequence, after a short context. It holds blocks for as long as that takes, is never
hashed, and proposers forget it. Times are the least of a few, since whatever else the machine does only adds to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from specdec.config import AUTO
from specdec.core.control.types import Choice, Member
from specdec.core.scheduler import Schedule, ScheduledRow, Scheduler
from specdec.core.sequence import Sequence
from specdec.runner import Runner
from specdec.step.batch import Batch
from specdec.step.model import compute
from specdec.step.record import StepRecord
from specdec.types import MAX_DRAFT_NODES, Draft, Request, SamplingParams

SIZES = (1, 2, 3, 5, 8, 12, 16, 24, 32, 48, 64)
ALWAYS = 8
"""Sizes up to this are measured however slow the model is; larger ones while time is left."""
ROUNDS = 4
SECONDS = 0.3
"""After which no further round begins, and no further size."""
CONTEXT = 64
PERIOD = 7
"""The made-up text repeats itself, so that proposers that copy find something."""
ATTEMPTS = 3
"""Drafts that are timed, after one that is not."""


def step_seconds(runner: Runner, scheduler: Scheduler, clock: Callable[[], float]) -> dict[int, float]:
    """Seconds of the target's pass over so many rows, by rows."""
    sizes = _sizes(scheduler)
    found: dict[int, float] = {}
    with _made_up(runner, scheduler, sizes[-1]) as sequence:
        _time(runner, sequence, 1, clock)
        start = clock()
        for number in range(ROUNDS):
            for size in sizes:
                late = clock() - start > SECONDS
                if late and (number or size > ALWAYS):
                    break
                found[size] = min(found.get(size, float("inf")), _time(runner, sequence, size, clock))
    return {size: max(seconds, 1e-9) for size, seconds in found.items()}


def draft_seconds(
    runner: Runner, scheduler: Scheduler, member: Member, clock: Callable[[], float]
) -> tuple[float, float] | None:
    """Seconds of a member's longest draft and of a hint; None if it fails with a sequence that no step computed."""
    length = min(member.length, max(1, scheduler.max_model_len // 2 - 1))
    times = []
    hints = [0.0]
    with _made_up(runner, scheduler, 1 + max(length, member.nodes), member) as sequence:
        for _ in range(1 + ATTEMPTS):
            record = StepRecord(clock=clock)
            (answer,) = runner.propose([sequence], [Choice(member.name, length)], record)
            if answer.draft is None:
                return None
            times.append(record.drafts[member.name])
            if runner.hints(member.name, [sequence], record) is not None:
                hints.append(record.hints[member.name])
        runner.forget(sequence)
    return min(times[1:]), min(hints[1:], default=0.0)


def _sizes(scheduler: Scheduler) -> list[int]:
    most = min(scheduler.max_num_batched_tokens, scheduler.max_model_len // 2, MAX_DRAFT_NODES)
    return [size for size in SIZES if size <= max(1, most)]


@contextmanager
def _made_up(runner: Runner, scheduler: Scheduler, room: int, member: Member | None = None) -> Iterator[Sequence]:
    """A sequence whose context is computed but for its last token, with slots for `room` tokens from there on."""
    context = max(1, min(CONTEXT, scheduler.max_model_len - room))
    tokens = [i % min(PERIOD, runner.vocab_size) for i in range(context)]
    owner = member.name if member is not None and member.has_kv else None
    request = Request(
        "calibration",
        tuple(tokens),
        SamplingParams(temperature=0),
        0,
        0,
        cache_salt="calibration",
        proposer=AUTO,
        draft_kv=owner,
    )
    sequence = Sequence(request, 0, tokens)
    grown = scheduler.blocks.grow(sequence, min(context + room, scheduler.max_model_len))
    assert grown is not None, "an idle engine has room for one sequence"
    try:
        for start in range(0, context - 1, scheduler.max_num_batched_tokens):
            count = min(scheduler.max_num_batched_tokens, context - 1 - start)
            _forward(runner, ScheduledRow(sequence, start, count))
        sequence.num_draft_computed_tokens = 0
        yield sequence
    finally:
        scheduler.blocks.free(sequence)


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
