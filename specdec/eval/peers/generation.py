"""What a worker asks of a library, and what it tells of a generation. Needs nothing but Python."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

Ids = Sequence[int]
Clock = Callable[[], float]


@dataclass(frozen=True)
class Load:
    """What a peer is to open. `options` are its own, texts by name."""

    model: str
    num_threads: int
    max_length: int
    """Longest prompt and answer together."""
    max_batch: int
    options: Mapping[str, str]

    def check_options(self, known: Sequence[str]) -> None:
        """ValueError for an option that the peer does not have."""
        for name in self.options:
            if name not in known:
                raise ValueError(f"there is no option {name!r}; its options are {', '.join(sorted(known)) or 'none'}")


@dataclass(frozen=True)
class Generation:
    """Answers to prompts that were given together. Times in seconds from when they were given."""

    token_ids: list[list[int]]
    first_token_s: float | None
    """When every answer had its first token; None where the library does not tell."""
    first_tokens: int
    """How many tokens there were by then."""
    total_s: float


class Peer(Protocol):
    """A library with a model loaded. A module `run_*` has a function `load` that makes one of a `Load`."""

    library: str
    """Its name and version."""
    precision: str
    """Of the weights."""

    def generate(self, prompts: Sequence[Ids], max_tokens: int) -> Generation:
        """Exactly `max_tokens` greedy tokens after each prompt, with nothing reused of earlier calls. ValueError for
        what the library cannot do."""
        ...


class Stopwatch:
    """Started when it is made; told of tokens as they come."""

    def __init__(self, num_answers: int, clock: Clock = time.perf_counter) -> None:
        self._clock = clock
        self._start = clock()
        self._num_answers = num_answers
        self._first: tuple[float, int] | None = None

    def tokens(self, num_tokens: int, num_begun: int) -> None:
        """There are `num_tokens` now, and `num_begun` answers have one at least."""
        if self._first is None and num_begun == self._num_answers:
            self._first = self._clock() - self._start, num_tokens

    def stop(self, token_ids: list[list[int]]) -> Generation:
        total = self._clock() - self._start
        first, count = self._first if self._first is not None else (None, 0)
        return Generation(token_ids, first, count, total)


def left_padded(prompts: Sequence[Ids], padding: int) -> tuple[list[list[int]], list[list[int]]]:
    """Prompts as rows of one length, and the rows' masks: 1 where a token is the prompt's."""
    longest = max(map(len, prompts))
    rows = [[padding] * (longest - len(ids)) + list(ids) for ids in prompts]
    return rows, [[0] * (longest - len(ids)) + [1] * len(ids) for ids in prompts]


def right_padded(prompts: Sequence[Ids], padding: int) -> list[list[int]]:
    """Prompts as rows of one length, padded at their ends."""
    longest = max(map(len, prompts))
    return [list(ids) + [padding] * (longest - len(ids)) for ids in prompts]
