"""Chooses who drafts, how much and who follows by the throw of a coin, for whoever checks that it does not matter.

Whatever `auto` may choose must change no answer. The controller chooses what pays, which on a given machine and text
may be one member at one length, or nobody; here every member has its turn at every length that it may be asked for.
Each choice is a function of the seed, of how many decisions went before, and of the sequence's place among those that
are decided together: it cannot look at a token.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from collections.abc import Sequence as Many
from random import Random

from specdec.core.control.explanation import Explanation, Tallies
from specdec.core.control.types import PLAIN, Candidate, Choice, Member, Outcome

FOLLOWS = 0.5
"""How often a member is told of a step that it does not draft for: to have missed some must not matter to it."""


class Chance:
    """A `Chooser` that believes nothing."""

    needs_hints = False

    def __init__(self, members: Iterable[Member], seed: int) -> None:
        self.members = tuple(members)
        self._seed = seed
        self._num_decisions = 0
        self._tallies = Tallies([member.name for member in self.members])
        self._drafted: dict[Hashable, str] = {}
        """Whose draft a sequence has."""

    def choose(self, candidates: Many[Candidate], rows: int) -> list[Choice]:
        """Plain decoding or one of the members, each as often; lengths from 0 to the longest, each as often."""
        self._num_decisions += 1
        choices = [self._any(candidate, self._coin(place)) for place, candidate in enumerate(candidates)]
        for choice in choices:
            self._tallies.chose(choice.proposer, choice.length, is_probe=False)
        return choices

    def _coin(self, place: object) -> Random:
        return Random(f"{self._seed}/{self._num_decisions}/{place}")

    def _any(self, candidate: Candidate, coin: Random) -> Choice:
        followers = [member.name for member in self.members if coin.random() < FOLLOWS]
        chosen = coin.choice([None, *self.members])
        if chosen is None:
            return Choice(PLAIN, followers=tuple(followers))
        limit = min(chosen.length, candidate.kv_length if chosen.has_kv else candidate.length)
        others = tuple(name for name in followers if name != chosen.name)
        return Choice(chosen.name, coin.randint(0, max(0, limit)), others)

    def prompt_followers(self, key: Hashable, num_tokens: int) -> list[str]:
        self._num_decisions += 1
        coin = self._coin("prompt")
        return [member.name for member in self.members if member.has_kv and coin.random() < FOLLOWS]

    def drafted(
        self,
        member: str,
        drafts: Many[tuple[Hashable, int, int]],
        seconds: float,
        read: Mapping[Hashable, int] | None = None,
    ) -> None:
        self._drafted.update((key, member) for key, depth, _ in drafts if depth)
        self._tallies.num_asked[member] += len(drafts)
        self._tallies.draft_seconds[member] += seconds

    def verified(self, outcomes: Iterable[Outcome], rows: int, seconds: float, propose: float, is_pure: bool) -> None:
        for each in outcomes:
            member = self._drafted.pop(each.key, None)
            if member is not None and each.depth:
                self._tallies.verified(member, each.depth, each.accepted)

    def forget(self, key: Hashable) -> None:
        self._drafted.pop(key, None)

    def explain(self) -> Explanation:
        """Counts alone: nothing was measured or expected."""
        return self._tallies.explanation({}, dict.fromkeys(self._tallies.members, 0.0), 0.0, ())

    def wanted_hints(self, num_sequences: int) -> list[str]:
        return []

    def rest(self, num_sequences: int, rows: int) -> None:
        pass

    def hinted(self, member: str, candidates: Iterable[tuple[Hashable, int]], seconds: float) -> None:
        pass

    def followed(
        self, member: str, sequences: Iterable[tuple[Hashable, int]], num_missed: int, seconds: float, in_prompt: bool
    ) -> None:
        pass
