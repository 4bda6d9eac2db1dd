"""Making data: from a plan and a target to a directory of shards, as far as time and budgets go.

Killed at any time, a later run goes on behind the last whole shard; stopped between two steps, it loses nothing.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specdec.train.data.answers import Desk
from specdec.train.data.chat import Chat
from specdec.train.data.collector import Collector, Totals
from specdec.train.data.conversation import Conversation, Limits, Outcome
from specdec.train.data.filters import Exclusion
from specdec.train.data.plan import Plan
from specdec.train.data.record import Record, check_same, counts_of, read_record
from specdec.train.data.shards import STATE_BYTES, find_shards, read_shard
from specdec.train.data.target import Target


@dataclass(frozen=True)
class Bounds:
    """How far a run goes: seconds, answer tokens of the whole directory, and bytes of states; None: no bound."""

    seconds: float | None = None
    answer_tokens: int | None = None
    states_bytes: int = 0


@dataclass(frozen=True)
class Watch:
    """`tell` takes lines for a person, `stopped` says whether to stop at the next step."""

    tell: Callable[[str], None] = lambda line: None
    stopped: Callable[[], bool] = lambda: False
    clock: Callable[[], float] = time.monotonic


@dataclass(frozen=True)
class Made:
    """What a run left, and why it ended: "complete", "stopped", "time" or "tokens"."""

    totals: Totals
    ended: str
    seconds: float
    answer_tokens: int
    """That the engine generated in this run, kept or not."""
    num_jobs_done: int


@dataclass
class Maker:
    """`identity` is what decides over the samples, and `run` what is told of this run, both for data.json."""

    directory: Path
    plan: Plan
    target: Target
    limits: Limits
    exclusion: Exclusion
    shard_jobs: int
    identity: Mapping[str, Any]
    run: Mapping[str, Any]
    bounds: Bounds = Bounds()
    watch: Watch = field(default_factory=Watch)

    def make(self) -> Made:
        """ValueError, before anything is computed or written, where the directory holds other data, or the model cannot
        write prompts that it is to write."""
        chat = Chat.of(self.target.engine.tokenizer)
        if any(job.prompt.number is not None for job in self.plan.jobs):
            chat.user_header()
        self.directory.mkdir(parents=True, exist_ok=True)
        with alone_in(self.directory):
            return self._make(chat)

    def _make(self, chat: Chat) -> Made:
        record, collector = self._open()
        desk = Desk(self.target.engine, self.target.engine.config.max_num_seqs, self.target.tap)
        desk.keeps_states = lambda: collector.wants_states
        start = self.watch.clock()
        try:
            ended = self._run(chat, collector, desk, record, start)
        finally:
            desk.abandon()
            collector.write_partial()
        seconds = self.watch.clock() - start
        made = Made(collector.on_disk, ended, seconds, desk.counted.answer_tokens, collector.num_jobs_done)
        told = {**record.runs[-1], "ended": ended, "seconds": round(seconds, 1), "generated": made.answer_tokens}
        self._write_record(Record(record.identity, record.states, (*record.runs[:-1], told)), collector)
        return made

    def _open(self) -> tuple[Record, Collector]:
        target, keeps = self.target, self.target.tap is not None
        width = target.state_width
        states = {"aux_layers": list(target.aux_layers), "hidden_size": target.hidden_size, "width": width}
        collector = Collector(
            self.directory,
            len(self.plan.jobs),
            self.shard_jobs,
            target.vocab_size,
            self.bounds.states_bytes,
            width * STATE_BYTES if keeps else 0,
        )
        found = read_record(self.directory)
        if found is None and find_shards(self.directory):
            raise ValueError(f"{self.directory} has shards and no data.json; use another directory")
        if found is not None:
            check_same(self.directory, found, self.identity, states if keeps else {})
        old = found or Record(self.identity, {})
        record = Record(self.identity, states if keeps else old.states, (*old.runs, self.run))
        self.directory.mkdir(parents=True, exist_ok=True)
        kept = int(old.states.get("width", width))
        collector.resume(read_shard(paths, kept) for paths in find_shards(self.directory))
        self._write_record(record, collector)
        return record, collector

    def _write_record(self, record: Record, collector: Collector) -> None:
        counts = counts_of(collector.on_disk, self.plan.left_out)
        Record(record.identity, record.states, record.runs, counts).write(self.directory)

    def _run(self, chat: Chat, collector: Collector, desk: Desk, record: Record, start: float) -> str:
        """Keep the engine full until all is done, or a bound is met."""
        done = collector.done_jobs()
        todo = (job for job in self.plan.jobs[collector.next_job :] if job.number not in done)
        job = next(todo, None)
        while not collector.is_done:
            outcomes: list[Outcome] = []
            while job is not None and desk.has_room and job.number < self._horizon(collector):
                talk = Conversation(job, chat, self.limits, self.exclusion).run()
                outcomes += desk.begin(talk)
                job = next(todo, None)
            if (ended := self._ends(collector, start)) is not None:
                return ended
            outcomes += desk.step()
            before = collector.shard
            for outcome in outcomes:
                collector.add(outcome)
            if collector.shard > before:
                self._write_record(record, collector)
            self._tell(collector, desk, start)
        return "complete"

    def _horizon(self, collector: Collector) -> int:
        """Jobs before this one may begin: what waits for a slow one is kept in memory."""
        return collector.next_job + self.shard_jobs + 2 * self.target.engine.config.max_num_seqs

    def _ends(self, collector: Collector, start: float) -> str | None:
        if self.watch.stopped():
            return "stopped"
        if self.bounds.seconds is not None and self.watch.clock() - start >= self.bounds.seconds:
            return "time"
        if self.bounds.answer_tokens is not None and collector.totals.answer_tokens >= self.bounds.answer_tokens:
            return "tokens"
        return None

    def _tell(self, collector: Collector, desk: Desk, start: float) -> None:
        totals, seconds = collector.totals, max(self.watch.clock() - start, 1e-9)
        self.watch.tell(
            f"{collector.next_job:,} of {len(self.plan.jobs):,} jobs, {totals.samples:,} samples, "
            f"{totals.answer_tokens:,} answer tokens, {desk.counted.answer_tokens / seconds:,.0f} tokens/s, "
            f"{totals.dropped.total():,} dropped, states {totals.states_bytes / 1e9:.2f} GB"
        )


@contextmanager
def alone_in(directory: Path) -> Iterator[None]:
    """Let no other run write there meanwhile; ValueError if one does. However a run ends, its claim ends with it."""
    claim = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"another run is making data in {directory}; wait for its end, or use another directory"
            ) from None
        yield
    finally:
        os.close(claim)
