"""What is believed of each proposer: its acceptance for a sequence, its cost, and so what each length would bring."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from specdec.core.control.acceptance import (
    HINT_FADE,
    KNOWN_OWN_WEIGHT,
    OWN_FADE,
    OWN_REST,
    OWN_WEIGHT,
    PRIOR,
    PROPOSER_FADE,
    Tally,
    conditional,
)
from specdec.core.control.draft_cost import CallCost, DraftCost
from specdec.core.control.types import NOTHING, UNKNOWN, Candidate, Member, Option

NEGLIGIBLE = 0.02
"""A position less likely than this to be accepted is not worth a thought, nor are those after it."""

FRESH_FOR = 8
"""Steps for which an expectation stands, while only other sequences tell something new."""


@dataclass(slots=True)
class Reach:
    """Expected of a member for a sequence: by position the tokens accepted so far, and the share of drafts that have
    it; and the rows of a tree."""

    gains: list[float]
    shares: list[float]
    nodes: float
    until: int = 0


@dataclass(slots=True)
class Ladder:
    """What each length of a member's draft brings and costs. Lists are by position, and may end before `limit`: further
    positions bring nothing."""

    member: Member
    hint: int
    limit: int
    gains: list[float]
    shares: list[float]
    nodes: float
    first: float
    """Seconds to draft at all: what a draft for one sequence takes whatever its length."""
    each: float
    """The same for each token."""
    shared: float
    """The part of both that a call takes but once, for however many sequences."""
    late: float
    """Seconds to see what was missed of the sequence."""
    num_together: int
    """The sequences that are decided together. Where all of them draft, each bears its part of what is shared."""

    @property
    def num_steps(self) -> int:
        """How many lengths there are to choose from, for a chain."""
        return min(self.limit, len(self.gains))

    @property
    def num_rows(self) -> int:
        """The most rows of any of them."""
        return round(self.nodes) if self.member.is_tree else self.num_steps

    @property
    def entry(self) -> float:
        """Seconds of the first token of the first sequence that all of a call's sequences share."""
        return self.shared * (self.first + self.each)

    @property
    def base(self) -> float:
        """This sequence's part of the seconds to draft, whatever the length."""
        return self.late + self.first * self._part

    @property
    def slope(self) -> float:
        """The same for each token."""
        return self.each * self._part

    @property
    def _part(self) -> float:
        return 1 - self.shared + self.shared / self.num_together

    def option(self, length: int, verifying: float) -> Option:
        """One of the lengths; `verifying`: seconds that its rows add to a step."""
        if self.member.is_tree:
            gain, rows = self.gains[min(length, len(self.gains)) - 1], self.shares[0] * self.nodes
        else:
            gain, rows = self.gains[length - 1], sum(self.shares[:length])
        return Option(self.member, self.hint, length, gain, rows, self.base + self.slope * length, verifying)


@dataclass
class Known:
    """What is known of one sequence."""

    tallies: dict[tuple[str, int], Tally] = field(default_factory=dict)
    judged: dict[tuple[str, int], int] = field(default_factory=dict)
    """The step at which each of them was last told something."""
    asked: dict[str, int] = field(default_factory=dict)
    """By member the step at which it was last asked for a draft."""
    since: int | None = None
    """The step at which it was first drafted for."""
    met: set[str] = field(default_factory=set)
    """Members that have seen the sequence."""
    reaches: dict[tuple[str, int], Reach] = field(default_factory=dict)
    """What is expected, as it was last computed."""


class Beliefs:
    """Moving estimates over all sequences, and over each that lives."""

    def __init__(self, members: Iterable[Member]) -> None:
        self.members = {member.name: member for member in members}
        self.drafting = {name: CallCost() for name in self.members}
        self.following = {name: DraftCost() for name in self.members}
        """By tokens followed."""
        self.telling = {name: DraftCost() for name in self.members}
        """What a hint takes."""
        self._costs: tuple[CallCost | DraftCost, ...] = (
            *self.drafting.values(),
            *self.following.values(),
            *self.telling.values(),
        )
        self._proposers = {name: Tally(PROPOSER_FADE, member.expected) for name, member in self.members.items()}
        self._hints: dict[tuple[str, int, bool], Tally] = {}
        self._sequences: dict[Hashable, Known] = {}
        self._now = 0
        self.hinting: set[str] = set()
        """Members that give hints: where one was not asked, it is not asked for a draft either."""

    def tick(self) -> None:
        """A step begins."""
        self._now += 1
        for cost in self._costs:
            cost.rest()

    def known(self, key: Hashable) -> Known:
        """What is known of a sequence; nothing of a new one."""
        found = self._sequences.get(key)
        if found is None:
            found = self._sequences[key] = Known()
        return found

    def forget(self, key: Hashable) -> None:
        self._sequences.pop(key, None)

    def drafted(self, member: str, hint: int, is_greedy: bool, length: int, depth: int, nodes: int) -> None:
        """A draft came, for which `length` positions were asked."""
        self._by_hint(member, hint, is_greedy).drafted(length, depth, nodes)

    def verified(self, key: Hashable, member: str, hint: int, is_greedy: bool, depth: int, accepted: int) -> None:
        """A draft was verified."""
        tallies = self.known(key).tallies
        own = tallies.get((member, hint))
        if own is None:
            own = tallies[member, hint] = Tally(OWN_FADE)
        for tally in (self._proposers[member], self._by_hint(member, hint, is_greedy), own):
            tally.verified(depth, accepted)
        self.known(key).reaches.pop((member, hint), None)
        self.known(key).judged[member, hint] = self._now

    def ladder(self, candidate: Candidate, member: Member, num_together: int = 1) -> Ladder | None:
        """What each length would bring, where so many sequences are decided together; None where the member has nothing
        to go by."""
        hint = candidate.hints.get(member.name, NOTHING if member.name in self.hinting else UNKNOWN)
        limit = min(member.length, candidate.kv_length if member.has_kv else candidate.length)
        if hint == NOTHING or limit <= 0:
            return None
        cost = self.drafting[member.name]
        line = cost.line(num_together)
        late = self.catch_up_seconds(candidate, member) if member.has_kv else 0.0
        reach = self._reach(candidate, member, hint)
        return Ladder(
            member=member,
            hint=hint,
            limit=limit,
            gains=reach.gains,
            shares=reach.shares,
            nodes=reach.nodes,
            first=line.base,
            each=line.slope,
            shared=cost.shared,
            late=late,
            num_together=num_together,
        )

    def _reach(self, candidate: Candidate, member: Member, hint: int) -> Reach:
        """The expectation for a sequence, computed anew when its own counts changed, and now and then for others'."""
        known = self._sequences.get(candidate.key)
        if known is None:
            return self._expect(candidate, member, hint, None)
        found = known.reaches.get((member.name, hint))
        if found is None or found.until < self._now:
            own = known.tallies.get((member.name, hint))
            still = 1.0 if own is None else OWN_REST ** (self._now - known.judged[member.name, hint])
            found = self._expect(candidate, member, hint, own, still)
            found.until = self._now + FRESH_FOR
            known.reaches[member.name, hint] = found
        return found

    def _expect(self, candidate: Candidate, member: Member, hint: int, own: Tally | None, still: float = 1.0) -> Reach:
        shared, by_hint = self._proposers[member.name], self._by_hint(member.name, hint, candidate.is_greedy)
        before, share, alive, gain = PRIOR, 1.0, 1.0, 0.0
        weight = KNOWN_OWN_WEIGHT if member.expected else OWN_WEIGHT
        gains: list[float] = []
        shares: list[float] = []
        for position in range(member.length):
            before = conditional(shared, by_hint, own, position, before, still, weight)
            share *= by_hint.share_given(position)
            alive *= before
            gain += alive * share
            gains.append(gain)
            shares.append(share)
            if alive * share < NEGLIGIBLE:
                break
        return Reach(gains, shares, by_hint.nodes or float(member.nodes))

    def catch_up_seconds(self, candidate: Candidate, member: Member) -> float:
        """What it costs a member with KV to see what it missed of a sequence."""
        if not member.has_kv or not candidate.lag:
            return 0.0
        return self.following[member.name].seconds(candidate.lag)

    def _by_hint(self, member: str, hint: int, is_greedy: bool) -> Tally:
        key = (member, hint, is_greedy)
        found = self._hints.get(key)
        if found is None:
            expected = self.members[member].expected if hint == UNKNOWN else ()
            found = self._hints[key] = Tally(HINT_FADE, expected)
        return found
