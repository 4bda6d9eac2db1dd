"""What may be lost: an account for each proposer against plain decoding, and a credit for probes.

Estimates may be wrong, and an adversary may make them so. Therefore each proposer has an account in seconds: what its
drafts saved comes in, up to a limit, and all that it took goes out, whether anything came of it or not. Below zero it
is switched off until the trickle, a small share of the time that was spent decoding, has paid for it: nobody can stop a
call that takes long, but after a second one it rests until that is made up for (of the first the controller counts
only a little, for it may be the machine's fault). To read a text for the first time is an advance on the drafts of it.
It has a limit of its own, the stake: who does not earn it is let read no more.

Probes, which go against the estimates, are paid from another such share, in equal parts for all proposers: a cheap one
is looked at often and a dear one rarely, and neither at the other's cost. A third share pays for plain steps where
drafting is all that is done, since what it is judged by is what a plain step takes. So what all of it loses is at most
the grants, these three shares, and two calls beyond each.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

PROBE_SHARE = 0.006
"""Of the time spent decoding, what probes may lose."""
LOSS_SHARE = 0.004
"""The same for all accounts together."""
PLAIN_SHARE = 0.003
"""The same for plain steps that go against the plan."""
GRANT = 0.4
"""Plain steps that an account begins with: enough for a few failures, since few prove nothing."""
KNOWN_GRANT = 0.9
"""The same of who was seen to be good elsewhere: a few more failures, as there is more that they speak against."""
FIRST_CREDIT = 0.1
"""The same for probes."""
STAKE = 5.0
"""Plain steps that reading texts may take before drafts have made up for it."""
READ_SHARE = 0.01
"""Of the time spent on prompts, what reading them may lose."""
MOST_SAVED = 50.0
"""Plain steps that an account may hold, at first."""
SAVED_SHARE = 0.02
"""The same of a longer session: of its steps."""
DEEPEST = -100.0
"""Plain steps that an account may owe, and as many more as the session had steps: a debt is paid back, unless by then
everything else would be over."""
MOST_CREDIT = 1.0
"""Plain steps that a credit may hold, unless a probe costs more."""


class Budget:
    """Seconds. `plain` arguments are those of a plain step of one sequence."""

    def __init__(self, members: Iterable[str], plain: float, known: Container[str] = ()) -> None:
        """`known`: members of which more is known than what they will show here."""
        names = tuple(members)
        self._share = 1 / max(1, len(names))
        self.accounts = {name: (KNOWN_GRANT if name in known else GRANT) * plain for name in names}
        self.credits = dict.fromkeys(names, FIRST_CREDIT * plain)
        """For probes."""
        self.stakes = dict.fromkeys(names, STAKE * plain)
        """The accounts less what reading texts took."""
        self._set_aside = dict.fromkeys(names, 0.0)
        """Of the stakes, what the texts that are read in this step are expected to take."""
        self._num_steps = 0
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
        self._num_steps += 1
        for member in self.accounts:
            self.add(member, LOSS_SHARE * own, plain)
            most = max(MOST_CREDIT * plain, self._wanted[member])
            self.credits[member] = min(most, self.credits[member] + PROBE_SHARE * own)
        self.plain_credit = min(0.0, self.plain_credit + PLAIN_SHARE * seconds)

    def add(self, member: str, seconds: float, plain: float) -> None:
        """A member saved so many seconds, or lost them if negative."""
        lowest, most = DEEPEST - self._num_steps, max(MOST_SAVED, SAVED_SHARE * self._num_steps)
        self.accounts[member] = min(most * plain, max(lowest * plain, self.accounts[member] + seconds))
        most = max(most, STAKE)
        self.stakes[member] = min(most * plain, max(lowest * plain, self.stakes[member] + seconds))

    def pays_reading(self, member: str) -> bool:
        """Whether reading is at the stake's cost, and not yet at the account's."""
        return self.stakes[member] >= 0 and not self.is_off(member)

    def may_read(self, member: str) -> bool:
        """Whether a member may read another text in this step."""
        return self.stakes[member] >= self._set_aside[member] and not self.is_off(member)

    def set_aside(self, member: str, seconds: float) -> None:
        """A member is to read a text in this step, which is expected to take so long."""
        self._set_aside[member] += seconds

    def end_step(self) -> None:
        """What was set aside was spent, or is free again."""
        self._set_aside = dict.fromkeys(self._set_aside, 0.0)

    def has_read(self, member: str, seconds: float) -> None:
        """A member read texts that were new to it, which took so long."""
        self.stakes[member] -= seconds

    def prompts_took(self, seconds: float, plain: float) -> None:
        """So much time was spent on prompts."""
        most = max(STAKE, SAVED_SHARE * self._num_steps)
        for member, stake in self.stakes.items():
            self.stakes[member] = max(stake, min(most * plain, stake + READ_SHARE * self._share * seconds))

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
