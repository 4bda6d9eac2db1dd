"""What may be lost: an account for each proposer against plain decoding, and a credit for probes.

Estimates may be wrong, and an adversary may make them so. Therefore each proposer has an account in seconds: what its
drafts saved comes in, up to a limit, and what they cost goes out. Below zero it is switched off until the trickle, a
small share of the time that was spent decoding, has paid for it. Probes, which go against the estimates, are paid from
another such share, in equal parts for all proposers: a cheap one is looked at often and a dear one rarely, and neither
at the other's cost. A third share pays for plain steps where drafting is all that is done, since what it is judged by
is what a plain step takes. So what all of it loses is at most the grants and these three shares.
"""

from __future__ import annotations

from collections.abc import Iterable

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
        """For probes."""
        self.plain_credit = 0.0
        """Of plain steps; below 0 while one is being paid for."""
        self.spent = 0.0
        """What probes have lost."""
        self._wanted = dict.fromkeys(names, 0.0)

    def is_off(self, member: str) -> bool:
        """Whether a member's account is overdrawn."""
        return self.accounts[member] < 0

    def elapsed(self, seconds: float, plain: float) -> None:
        """So much time was spent decoding."""
        own = self._share * seconds
        for member in self.accounts:
            self.add(member, LOSS_SHARE * own, plain)
            most = max(MOST_CREDIT * plain, self._wanted[member])
            self.credits[member] = min(most, self.credits[member] + PROBE_SHARE * own)
        self.plain_credit = min(0.0, self.plain_credit + PLAIN_SHARE * seconds)

    def add(self, member: str, seconds: float, plain: float) -> None:
        """A member saved so many seconds, or lost them if negative."""
        self.accounts[member] = min(MOST_SAVED * plain, max(DEEPEST * plain, self.accounts[member] + seconds))

    def affords(self, member: str, seconds: float) -> bool:
        """Whether a probe of a member may lose so much."""
        self._wanted[member] = max(seconds, 0.99 * self._wanted[member])
        return seconds <= self.credits[member]

    def probed(self, member: str, seconds: float) -> None:
        """A probe lost so much."""
        self.credits[member] -= seconds
        self.spent += seconds

    @property
    def affords_plain_step(self) -> bool:
        """Whether earlier plain steps have been paid for; one loses at most what it takes."""
        return self.plain_credit >= 0

    def took_plain_step(self, seconds: float) -> None:
        """A plain step went against the plan, which lost so much."""
        self.plain_credit -= seconds
        self.spent += seconds
