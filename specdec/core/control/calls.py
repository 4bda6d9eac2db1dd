"""What a call of a member is held to have taken for its drafts or hints, and what for reading texts.

The seconds of a call are of several things. A text that is new to a member is read once, which its stake pays for; the
rest is what its drafts cost, which its account pays for and by which it is chosen. And a machine stalls now and then.
"""

from __future__ import annotations

from collections.abc import Hashable
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import TypeAlias

from specdec.core.control.beliefs import Beliefs
from specdec.core.control.budget import Budget
from specdec.core.control.step_cost import StepCost

CATCH_UP_SHARE = 0.02
"""Of a plain step, what a proposer may take for each token of a sequence that it sees for the first time: that is the
prompt's time, and the rest is decoding's."""
SURPRISE = 4.0
"""Plain steps beyond what was expected that count of a call that takes much longer than that."""
SURPRISE_GAP = 10_000
"""Steps from one such call of a member to the next of which not all is counted."""


Sequences: TypeAlias = Many[tuple[Hashable, int]]
"""Their keys, and how many tokens they have."""


@dataclass(frozen=True)
class Reading:
    """Texts that a member with KV had to read in a call for drafts."""

    num_tokens: int = 0
    """That were new to it."""
    followed: tuple[Hashable, ...] = ()
    """Sequences among them for which it drafted nothing."""


class Calls:
    """Tells the beliefs what calls cost, and the budget whom to charge."""

    def __init__(self, beliefs: Beliefs, cost: StepCost, budget: Budget) -> None:
        self._beliefs, self._cost, self._budget = beliefs, cost, budget
        self._step = 0
        self._surprised: dict[str, int] = {}

    def tick(self) -> None:
        """A step begins."""
        self._step += 1

    def hinted(self, member: str, sequences: Sequences, seconds: float) -> None:
        """A member was asked for hints about these sequences."""
        cost = self._beliefs.telling[member]
        usual = len(sequences) * cost.seconds(1)
        seconds = max(self._without_reading(member, sequences, seconds), min(seconds, usual))
        seconds = self._believed(member, usual, seconds)
        cost.observe(1, seconds / len(sequences))
        if usual > self._budget.accounts[member]:
            self._budget.probed(member, seconds)
        else:
            self.charge(member, seconds)

    def followed(self, member: str, sequences: Sequences, num_missed: int, seconds: float, in_prompt: bool) -> None:
        """A member saw so many tokens of these sequences, and drafted nothing."""
        self._beliefs.following[member].observe(num_missed, seconds)
        if in_prompt:
            self._met(member, [key for key, _ in sequences])
            self._budget.has_read(member, seconds)
        else:
            self.charge(member, self._without_reading(member, sequences, seconds))

    def drafted(self, member: str, sequences: Sequences, lengths: Many[int], seconds: float, reading: Reading) -> float:
        """What a member's drafts took of a call in which it was asked for drafts of these lengths. Nothing is charged
        before they are verified."""
        cost = self._beliefs.drafting[member]
        line = cost.line(len(lengths))
        count, length = cost.worth(lengths)
        expected = count * line.seconds(length)
        usual = min(seconds, expected)
        if not reading.num_tokens:
            own = max(self._without_reading(member, sequences, seconds), usual)
            own = self._believed(member, expected, own)
            line.observe(length, own / count)
            return own
        self._met(member, [*reading.followed, *(key for key, _ in sequences)])
        self._beliefs.following[member].observe(reading.num_tokens, seconds - usual)
        if not self._budget.pays_reading(member):
            return seconds
        self._budget.has_read(member, seconds - usual)
        return usual

    def _met(self, member: str, keys: Many[Hashable]) -> None:
        for key in keys:
            self._beliefs.known(key).met.add(member)

    def _without_reading(self, member: str, sequences: Sequences, seconds: float) -> float:
        """Seconds less what a first look at sequences may take, which the stake pays for."""
        allowance, plain = 0.0, self._cost.seconds(1)
        for key, num_tokens in sequences:
            met = self._beliefs.known(key).met
            if member not in met:
                met.add(member)
                allowance += CATCH_UP_SHARE * plain * num_tokens
        look = min(seconds, allowance) if self._budget.pays_reading(member) else 0.0
        self._budget.has_read(member, look)
        return seconds - look

    def _believed(self, member: str, expected: float, seconds: float) -> float:
        """What is held against a member of the seconds that drafts or hints took.

        A process is stopped now and then, and whoever computes just then looks dear. So of a surprise only a few plain
        steps count, but not of another one soon after.
        """
        most = expected + SURPRISE * self._cost.seconds(1)
        if seconds <= most or self._step - self._surprised.get(member, -SURPRISE_GAP) < SURPRISE_GAP:
            return seconds
        self._surprised[member] = self._step
        return most

    def charge(self, member: str, seconds: float) -> None:
        """A member took so long."""
        self._budget.add(member, -seconds, self._cost.seconds(1))
