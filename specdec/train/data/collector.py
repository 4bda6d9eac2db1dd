"""From outcomes in whatever order to shards in the order of jobs: what is a duplicate is decided here, and only here.

Which of two equal answers is kept must not depend on which of them was done first. So outcomes wait until all earlier
ones are there; a shard is a function of its jobs' outcomes and of the shards before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from specdec.train.data.conversation import Answer, Outcome
from specdec.train.data.prompts import SELF_WRITTEN
from specdec.train.data.shards import Shard, ShardFile, remove_partial, write_shard


@dataclass
class Seen:
    """Digests of what was kept."""

    answers: set[int] = field(default_factory=set)
    written: set[int] = field(default_factory=set)

    def add(self, answers: Iterable[Answer]) -> None:
        for answer in answers:
            self.answers.add(answer.answer_digest)
            if answer.source == SELF_WRITTEN:
                self.written.add(answer.prompt_digest)

    def sift(self, outcome: Outcome) -> Outcome:
        """The outcome without what was kept before, which is then what was kept."""
        answers = list(outcome.answers)
        dropped = list(outcome.dropped)
        if answers and answers[0].source == SELF_WRITTEN and answers[0].prompt_digest in self.written:
            return Outcome(outcome.job, (), (*dropped, "duplicate prompt"))
        kept = []
        for answer in answers:
            if answer.answer_digest in self.answers:
                dropped.append("duplicate answer")
            else:
                kept.append(answer)
                self.add([answer])
        return Outcome(outcome.job, tuple(kept), tuple(dropped))


@dataclass
class Totals:
    """What has been kept so far, and dropped by reason."""

    samples: int = 0
    tokens: int = 0
    answer_tokens: int = 0
    finished: int = 0
    states_bytes: int = 0
    by_source: Counter[str] = field(default_factory=Counter)
    by_temperature: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)

    def add(self, answers: Iterable[Answer], dropped: Iterable[str] | Mapping[str, int]) -> None:
        self.dropped.update(dropped)
        for answer in answers:
            self.samples += 1
            self.tokens += len(answer.token_ids)
            self.answer_tokens += answer.num_answer_tokens
            self.finished += answer.finished
            self.by_source[answer.source] += 1
            self.by_temperature[f"{answer.temperature:g}"] += 1


@dataclass
class Collector:
    """Takes outcomes, and writes each shard when the last of its jobs is done.

    `num_jobs` is the length of the plan; `shard_jobs` go into a shard. States are kept until `states_budget` bytes are
    full, `row_bytes` for each token.
    """

    directory: Path
    num_jobs: int
    shard_jobs: int
    vocab_size: int
    states_budget: int = 0
    row_bytes: int = 0
    totals: Totals = field(default_factory=Totals)
    """Of all jobs before the first whose outcome is not known."""
    on_disk: Totals = field(default_factory=Totals)
    """Of the shards; at the end, of the partial one too."""
    shard: int = 0
    """The one that is being filled."""
    _seen: Seen = field(default_factory=Seen)
    _waiting: dict[int, Outcome] = field(default_factory=dict)
    _next: int = 0
    _ready: list[Outcome] = field(default_factory=list)

    @property
    def first_job(self) -> int:
        """Of the shard that is being filled."""
        return self.shard * self.shard_jobs

    @property
    def end_job(self) -> int:
        return min(self.first_job + self.shard_jobs, self.num_jobs)

    @property
    def is_done(self) -> bool:
        return self._next >= self.num_jobs

    @property
    def next_job(self) -> int:
        """The first job whose outcome is not known."""
        return self._next

    @property
    def num_jobs_done(self) -> int:
        return self._next + len(self._waiting)

    @property
    def wants_states(self) -> bool:
        """Whether there may be room for the next shard's states."""
        return self.row_bytes > 0 and self.totals.states_bytes < self.states_budget

    def done_jobs(self) -> set[int]:
        """Jobs of the shard in hand, and of later ones, that need not be run."""
        return {*self._waiting, *(outcome.job for outcome in self._ready)}

    def resume(self, shards: Iterable[ShardFile]) -> None:
        """Go on behind the whole shards; the jobs of a partial one count as outcomes."""
        for file in shards:
            if file.jobs[0] != self.first_job or (not file.paths.partial and file.jobs[1] != self.end_job):
                raise ValueError(f"{file.paths.samples} does not follow the shard before it; is a file missing?")
            answers = file.answers() if file.paths.partial else _without_states(file)
            if file.paths.partial:
                self._take_up(answers, set(file.redo))
                continue
            self._seen.add(answers)
            for totals in (self.totals, self.on_disk):
                totals.add(answers, file.dropped)
                totals.states_bytes += file.num_state_bytes
            self._next = file.jobs[1]
            self.shard += 1
            remove_partial(self.directory, file.paths.number)

    def _take_up(self, answers: list[Answer], redo: set[int]) -> None:
        by_job: dict[int, list[Answer]] = {}
        for answer in answers:
            by_job.setdefault(answer.job, []).append(answer)
        without = self.wants_states and any(answer.states is None for answer in answers)
        if not without:
            for job in sorted(by_job.keys() - redo):
                self.add(Outcome(job, tuple(by_job[job])))

    def add(self, outcome: Outcome) -> None:
        """Take an outcome; shards that it completes are written."""
        self._waiting[outcome.job] = outcome
        while self._next in self._waiting:
            sifted = self._seen.sift(self._waiting.pop(self._next))
            self.totals.add(sifted.answers, sifted.dropped)
            self._ready.append(sifted)
            self._next += 1
            if self._next == self.end_job:
                self._write(self._ready, partial=False)
                self._ready = []
                self.shard += 1

    def write_partial(self) -> None:
        """At the end, keep what is there of the shard in hand. Jobs of later ones are made again."""
        if not self._ready and not self._waiting:
            return
        seen = Seen(set(self._seen.answers), set(self._seen.written))
        waiting = [self._waiting[job] for job in sorted(self._waiting) if job < self.end_job]
        self._write([*self._ready, *map(seen.sift, waiting)], partial=True)

    def _write(self, outcomes: list[Outcome], *, partial: bool) -> None:
        answers = tuple(answer for outcome in outcomes for answer in outcome.answers)
        dropped = Counter(reason for outcome in outcomes for reason in outcome.dropped)
        redo = tuple(outcome.job for outcome in outcomes if outcome.dropped) if partial else ()
        shard = Shard(self.shard, self.first_job, self.end_job, answers, dropped, redo)
        with_states = self._fits(shard)
        write_shard(self.directory, shard, vocab_size=self.vocab_size, with_states=with_states, partial=partial)
        self.on_disk.add(answers, dropped)
        if with_states:
            self.on_disk.states_bytes += shard.num_tokens * self.row_bytes
            self.totals.states_bytes = self.on_disk.states_bytes

    def _fits(self, shard: Shard) -> bool:
        size = shard.num_tokens * self.row_bytes
        complete = all(answer.states is not None for answer in shard.answers)
        return self.wants_states and complete and self.totals.states_bytes + size <= self.states_budget


def _without_states(file: ShardFile) -> list[Answer]:
    return replace(file, has_states=False).answers()
