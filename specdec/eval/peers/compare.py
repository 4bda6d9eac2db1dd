"""One run of several engines: start each, give each group of prompts to all of them in turn, and count.

An engine that cannot be started, refuses a batch or dies leaves a line behind, and the others go on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from specdec.eval.peers.contestants import Contestant
from specdec.eval.peers.process import PeerFailed, PeerLost, PeerProcess

WARM_UP_TOKENS = 2


@dataclass(frozen=True)
class Task:
    """What everybody is asked."""

    prompts: tuple[tuple[int, ...], ...]
    max_tokens: int
    batch_sizes: tuple[int, ...]
    num_rounds: int
    num_threads: int
    timeout_s: float
    """For the start, and for each group of prompts."""

    def groups(self, batch_size: int) -> list[list[tuple[int, ...]]]:
        """Whole groups; too few prompts are repeated."""
        count = len(self.prompts)
        places = [self.prompts[place % count] for place in range(-(-count // batch_size) * batch_size)]
        return [places[start : start + batch_size] for start in range(0, len(places), batch_size)]


@dataclass(frozen=True)
class Taken:
    """What one engine took for one group."""

    token_ids: tuple[tuple[int, ...], ...]
    first_token_s: float | None
    first_tokens: int
    total_s: float

    @property
    def decode_tokens(self) -> int:
        return sum(map(len, self.token_ids)) - self.first_tokens

    @property
    def decode_s(self) -> float:
        """After the first tokens; the whole time where these are not known."""
        return self.total_s - (self.first_token_s or 0.0)


Key = tuple[int, int, int]
"""Batch size, round, group."""


@dataclass
class Entry:
    """A contestant in a run, and what came of it."""

    contestant: Contestant
    library: str = ""
    precision: str = ""
    start_s: float | None = None
    peak_memory_bytes: int | None = None
    taken: dict[Key, Taken] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    process: PeerProcess | None = None
    """While it takes part."""
    refused: set[int] = field(default_factory=set)
    """Batch sizes that it cannot do."""


def compare(
    contestants: Sequence[Contestant],
    task: Task,
    tell: Callable[[str], None] = lambda line: None,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Entry]:
    """Run the task; an entry for each contestant, in order. Their processes are ended, whatever happens."""
    entries = [Entry(contestant) for contestant in contestants]
    with ExitStack() as stack:
        for entry in entries:
            tell(f"starting {entry.contestant.label}")
            _start(entry, task, stack, clock)
        for number in range(task.num_rounds):
            for size in task.batch_sizes:
                _round(entries, task, number, size, tell)
        for entry in entries:
            _finish(entry, task)
    return entries


def _start(entry: Entry, task: Task, stack: ExitStack, clock: Callable[[], float]) -> None:
    """From nothing to the first tokens after a short prompt."""
    contestant = entry.contestant
    threads = {name: str(task.num_threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    start = clock()
    try:
        entry.process = stack.enter_context(PeerProcess(contestant.argv, {**os.environ, **threads, **contestant.env}))
        told = entry.process.ask(_load_request(contestant, task), task.timeout_s)
        entry.library, entry.precision = str(told["library"]), str(told["precision"])
        entry.process.ask(_request([task.prompts[0][:8]], max(2, WARM_UP_TOKENS)), task.timeout_s)
        entry.start_s = clock() - start
    except (PeerFailed, PeerLost) as error:
        _leave(entry, f"does not take part: {error}")


def _leave(entry: Entry, fault: str) -> None:
    """It takes part no longer, and takes no time of the others."""
    entry.faults.append(fault)
    if entry.process is not None:
        entry.process.close()
        entry.process = None


def _load_request(contestant: Contestant, task: Task) -> dict[str, object]:
    return {
        "op": "load",
        "model": contestant.model,
        "num_threads": task.num_threads,
        "max_length": max(map(len, task.prompts)) + task.max_tokens + 1,
        "max_batch": max(task.batch_sizes),
        "options": dict(contestant.options),
    }


def _request(prompts: Sequence[Sequence[int]], max_tokens: int) -> dict[str, object]:
    return {"op": "generate", "prompts": [list(ids) for ids in prompts], "max_tokens": max_tokens}


def _round(entries: list[Entry], task: Task, number: int, size: int, tell: Callable[[str], None]) -> None:
    """Every group of a batch size, another engine first each time."""
    for index, group in enumerate(task.groups(size)):
        first = (number + index) % len(entries)
        for entry in (*entries[first:], *entries[:first]):
            if entry.process is None or size in entry.refused:
                continue
            tell(f"round {number + 1} of {task.num_rounds}, batch {size}, group {index + 1}: {entry.contestant.label}")
            try:
                reply = entry.process.ask(_request(group, task.max_tokens), task.timeout_s)
                entry.taken[size, number, index] = _taken(reply, task.max_tokens)
            except PeerFailed as error:
                entry.refused.add(size)
                entry.faults.append(f"not at batch {size}: {error}")
            except PeerLost as error:
                _leave(entry, f"lost at batch {size}: {error}")


def _taken(reply: dict[str, Any], max_tokens: int) -> Taken:
    """PeerFailed where the answers are not as long as was asked for: rates would not compare."""
    taken = Taken(
        tuple(map(tuple, reply["token_ids"])), reply["first_token_s"], reply["first_tokens"], reply["total_s"]
    )
    for ids in taken.token_ids:
        if len(ids) != max_tokens:
            raise PeerFailed(f"answered {len(ids)} tokens where {max_tokens} were asked for")
    return taken


def _finish(entry: Entry, task: Task) -> None:
    if entry.process is None:
        return
    try:
        entry.peak_memory_bytes = entry.process.ask({"op": "stats"}, task.timeout_s)["peak_memory_bytes"]
    except (PeerFailed, PeerLost) as error:
        entry.faults.append(f"peak memory is not known: {error}")
