"""What may be lost: an account for each proposer against plain decoding, and a credit for probes.

Estimates may be wrong, and an adversary may make them so. Therefore each proposer has an account in seconds: what its
drafts saved comes in, up to a limit, and what they cost goes out. Below zero it is switched off until the trickle, a
small share of the time that was spent decoding, has paid for it. Probes, which go against the estimates, are paid from
another such share, in equal parts for all proposers: a cheap one is looked at often and a dear one rarely, and neither
at the other's cost. A third share pays for plain steps where drafting is all that is done, since what it is judged by is
what a plain step takes. So what all of it loses is at most the grants and these three shares.
"""

from __future__ import annotations

from collections.abc import Iterable

from specdec.core.control.types import PLAIN

PROBE_SHARE = 0.006
"""Of the time spent decoding, what probes may lose."""
LOSS_SHARE = 0.004
"""The same for all accounts together."""
PLAIN_SHARE = 0.003
"""The same for plain steps that go against the plan."""
GRANT = 0.4
"""Plain steps that an account begins with: enough for a few failures, since few prove nothing."""
FIRST_CREDIT = 0.1
"""The same for probes."""
FIRST_PLAIN = 1.0
"""The same for plain steps: enough for one, which loses less than it takes."""
MOST_SAVED = 6.0
"""Plain steps that an account may hold."""
DEEPEST = -2.0
"""Plain steps that an account may owe: what the estimates know of by then keeps a dear proposer off."""
MOST_CREDIT = 1.0
"""Plain steps that a credit may hold, unless a probe costs more."""


class Budget:
    """Seconds. `plain` arguments are those of a plain step of one sequence."""

    def __init__(self, members: Iterable[str], plain: float) -> None:
        names = tuple(members)
        self._share = 1 / max(1, len(names))
        self.accounts = dict.fromkeys(names, GRANT * plain)
        self.credits = dict.fromkeys(names, FIRST_CREDIT * plain)
        """For probes, and under `PLAIN` for plain steps."""
        self.credits[PLAIN] = FIRST_PLAIN * plain
        self.spent = 0.0
        """What probes have lost."""
        self._wanted = dict.fromkeys(self.credits, 0.0)

    def is_off(self, member: str) -> bool:
        """Whether a member's account is overdrawn."""
        return self.accounts[member] < 0

    def elapsed(self, seconds: float, plain: float) -> None:
        """So much time was spent decoding."""
        own = self._share * seconds
        for member in self.accounts:
            self.add(member, LOSS_SHARE * own, plain)
            self._credit(member, PROBE_SHARE * own, plain)
        self._credit(PLAIN, PLAIN_SHARE * seconds, plain)

    def _credit(self, member: str, seconds: float, plain: float) -> None:
        most = max(MOST_CREDIT * plain, self._wanted[member])
        self.credits[member] = min(most, self.credits[member] + seconds)

    def add(self, member: str, seconds: float, plain: float) -> None:
        """A member saved so many seconds, or lost them if negative."""
        self.accounts[member] = min(MOST_SAVED * plain, max(DEEPEST * plain, self.accounts[member] + seconds))

    def affords(self, member: str, seconds: float) -> bool:
        """Whether a probe of a member may lose so much, or a plain step."""
        self._wanted[member] = max(seconds, 0.99 * self._wanted[member])
        return seconds <= self.credits[member]

    def probed(self, member: str, seconds: float) -> None:
        """A probe lost so much, or a plain step."""
        self.credits[member] -= seconds
        self.spent += seconds
