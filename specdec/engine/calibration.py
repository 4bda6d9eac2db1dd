"""What this machine takes: steps of more and more rows, and a draft of each proposer, timed while the engine is idle.

The rows are those of one made-up sequence, after a short context of zeros. It holds blocks for as long as that takes,
is never hashed, and proposers forget it. Where there is time for a second look, the less of two times counts, since
whatever else the machine does only adds to them.
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


def step_seconds(runner: Runner, scheduler: Scheduler, clock: Callable[[], float]) -> dict[int, float]:
    """Seconds of the target's pass over so many rows, by rows."""
    most = _most(scheduler)
    found: dict[int, float] = {}
    with _made_up(runner, scheduler, most) as sequence:
        _time(runner, sequence, min(most, max(ALWAYS)), clock)
        start = clock()
        for number, size in enumerate(SIZES):
            if number >= len(ALWAYS) and clock() - start > SECONDS:
                break
            if size <= most:
                found[size] = min(found.get(size, float("inf")), _time(runner, sequence, size, clock))
    return {size: max(seconds, 1e-9) for size, seconds in found.items()}


def draft_seconds(
    runner: Runner, scheduler: Scheduler, member: Member, clock: Callable[[], float]
) -> tuple[float, float | None] | None:
    """Seconds of a member's longest draft, and of a hint where it gives any; None if it fails with a sequence that no
    step computed."""
    length = min(member.length, max(1, scheduler.max_model_len // 2 - 1))
    times = []
    hints: list[float] = []
    with _made_up(runner, scheduler, 1 + max(length, member.nodes), member) as sequence:
        for _ in range(1 + ATTEMPTS):
            record = StepRecord(clock=clock)
            (answer,) = runner.propose([sequence], [Choice(member.name, length)], record)
            if answer.draft is None:
                return None
            times.append(record.drafts[member.name])
            runner.hints(member.name, [sequence], record)
            hints += record.hints.values()
        runner.forget(sequence)
    return min(times[1:]), min(hints[1:], default=None)


def _most(scheduler: Scheduler) -> int:
    """The most rows that a step of one sequence may have."""
    return max(1, min(scheduler.max_num_batched_tokens, scheduler.max_model_len // 2, MAX_DRAFT_NODES))


@contextmanager
def _made_up(runner: Runner, scheduler: Scheduler, room: int, member: Member | None = None) -> Iterator[Sequence]:
    """A sequence that is to be taken for computed but for its last token, with slots for `room` tokens from there on.
    Its cache holds zeros, which take as long to read as what a model would have computed."""
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
    for cache in (*runner.kv.keys, *runner.kv.values):
        cache[sequence.block_table] = 0
    try:
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
