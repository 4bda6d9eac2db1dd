"""How far an evaluation is: answers, tokens a second, and how long the rest may take."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """A pass over some prompts. `weight` is its expected time in any unit that all parts share."""

    label: str
    num_answers: int
    weight: float


@dataclass(frozen=True)
class Status:
    """What a progress bar shows."""

    label: str
    num_done: int
    """Answers of this part."""
    num_answers: int
    tokens_per_second: float
    """Of this part so far, prompts included."""
    fraction: float
    """Of the whole evaluation."""
    seconds_left: float | None
    """At the pace so far; None while there is none."""


class Meter:
    """Turns what is done into `Status`es. Answers that may have `max_tokens` count by their tokens until they end."""

    def __init__(
        self,
        parts: Sequence[Part],
        max_tokens: int,
        show: Callable[[Status], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total = sum(part.weight for part in parts)
        self._max_tokens = max_tokens
        self._show = show
        self._clock = clock
        self._start = clock()
        self._done_weight = 0.0
        self._part = Part("", 0, 0.0)
        self._begin(self._part)

    def begin(self, part: Part) -> None:
        """The part before is over; this one starts, or goes on."""
        self._done_weight += self._part.weight * self._share()
        self._begin(part)

    def _begin(self, part: Part) -> None:
        self._part = part
        self._part_start = self._clock()
        self._num_done = self._num_tokens = self._credit = 0

    def advance(self, num_tokens: int, ended: Sequence[int]) -> None:
        """`num_tokens` came in a step, and answers of these lengths ended."""
        self._num_tokens += num_tokens
        self._num_done += len(ended)
        self._credit += num_tokens + sum(self._max_tokens - length for length in ended)
        self._show(self.status())

    def status(self) -> Status:
        now = self._clock()
        fraction = (self._done_weight + self._part.weight * self._share()) / self._total if self._total else 1.0
        spent, part_spent = now - self._start, now - self._part_start
        return Status(
            label=self._part.label,
            num_done=self._num_done,
            num_answers=self._part.num_answers,
            tokens_per_second=self._num_tokens / part_spent if part_spent > 0 else 0.0,
            fraction=fraction,
            seconds_left=spent / fraction - spent if fraction > 0 else None,
        )

    def _share(self) -> float:
        return min(1.0, self._credit / (self._part.num_answers * self._max_tokens)) if self._part.num_answers else 0.0
