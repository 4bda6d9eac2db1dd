"""What is believed of each proposer: its acceptance for a sequence, its cost, and so what each length would bring."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field

from specdec.core.control.acceptance import HINT_FADE, OWN_FADE, PRIOR, PROPOSER_FADE, Tally, conditional
from specdec.core.control.draft_cost import DraftCost
from specdec.core.control.types import NOTHING, UNKNOWN, Candidate, Member, Option

NEGLIGIBLE = 0.02
"""A position less likely than this to be accepted is not worth a thought, nor are those after it."""

More = Callable[[int], float]
"""Seconds that so many rows more add to a step."""


@dataclass
class Known:
    """What is known of one sequence."""

    tallies: dict[tuple[str, int], Tally] = field(default_factory=dict)
    asked: dict[str, int] = field(default_factory=dict)
    """By member the step at which it was last asked for a draft."""
    since: int | None = None
    """The step at which it was first drafted for."""
    met: set[str] = field(default_factory=set)
    """Members that have seen the sequence."""


class Beliefs:
    """Moving estimates over all sequences, and over each that lives."""

    def __init__(self, members: Iterable[Member]) -> None:
        self.members = {member.name: member for member in members}
        self.drafting = {name: DraftCost() for name in self.members}
        self.following = {name: DraftCost() for name in self.members}
        """By tokens followed."""
        self._proposers = {name: Tally(PROPOSER_FADE) for name in self.members}
        self._hints: dict[tuple[str, int, bool], Tally] = {}
        self._sequences: dict[Hashable, Known] = {}

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

    def options(self, candidate: Candidate, member: Member, more: More) -> list[Option]:
        """What each length would bring, shortest first; none where the member has nothing to go by."""
        hint = candidate.hints.get(member.name, UNKNOWN)
        limit = min(member.length, candidate.kv_length if member.has_kv else candidate.length)
        if hint == NOTHING or limit <= 0:
            return []
        known = self._sequences.get(candidate.key)
        own = None if known is None else known.tallies.get((member.name, hint))
        shared, by_hint = self._proposers[member.name], self._by_hint(member.name, hint, candidate.is_greedy)
        cost = self.drafting[member.name]
        late = self.catch_up_seconds(candidate, member)
        found: list[Option] = []
        before, share, alive = PRIOR, 1.0, 1.0
        gain = rows = verifying = last = 0.0
        for position in range(limit):
            before = conditional(shared, by_hint, own, position, before)
            share *= by_hint.share_given(position)
            alive *= before
            gain += alive * share
            if not member.is_tree:
                grown = more(position + 1)
                rows += share
                verifying += share * (grown - last)
                last = grown
                drafting = late + cost.seconds(position + 1)
                found.append(Option(member, hint, position + 1, gain, rows, drafting, verifying))
            if alive * share < NEGLIGIBLE:
                break
        if member.is_tree:
            share, nodes = by_hint.share_given(0), by_hint.nodes or float(member.nodes)
            verifying = share * more(round(nodes))
            return [Option(member, hint, limit, gain, share * nodes, late + cost.seconds(limit), verifying)]
        return found

    def catch_up_seconds(self, candidate: Candidate, member: Member) -> float:
        """What it costs a member with KV to see what it missed of a sequence."""
        if not member.has_kv or not candidate.lag:
            return 0.0
        return self.following[member.name].seconds(candidate.lag)

    def _by_hint(self, member: str, hint: int, is_greedy: bool) -> Tally:
        key = (member, hint, is_greedy)
        found = self._hints.get(key)
        if found is None:
            found = self._hints[key] = Tally(HINT_FADE)
        return found
