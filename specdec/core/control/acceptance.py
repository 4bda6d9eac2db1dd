"""How likely drafted tokens are to be accepted: moving counts by position, of one sequence and of all before it.

Acceptance is conditional: of position j, given that j - 1 was accepted. What is known of few trials leans on what is
known of more: a sequence's own counts on those of the same proposer and hint in all sequences, these on the proposer's
counts whatever the hint, and these on a guess; a position that was never tried on the position before it.
"""

from __future__ import annotations

from collections.abc import Sequence

PRIOR = 0.5
PROPOSER_WEIGHT, HINT_WEIGHT, OWN_WEIGHT = 2.0, 3.0, 4.0
"""How many trials the level above is worth."""
PROPOSER_FADE, HINT_FADE, OWN_FADE = 0.98, 0.97, 0.93
"""What a trial is still worth after the next one."""
DOUBT = 0.1
"""Drafts that are taken to have come, beside those that were asked for: little, as a few of nothing tell enough."""


KNOWN_OWN_WEIGHT = 12.0
"""The same above a sequence's own trials where more is known: a model's guesses differ less from text to text than
what is found by looking back."""
OWN_REST = 0.98
"""What a sequence's own trials are still worth after a step without one: else a few failures in a row would count for
ever, as who is not asked cannot do better."""
EXPECTED_WEIGHT = 16.0
"""Drafts that what was seen elsewhere is worth, before there are others."""


class Tally:
    """Discounted counts by position, from 0."""

    __slots__ = ("_fade", "given", "kept", "nodes", "num_drafts", "tried", "wanted")

    def __init__(self, fade: float, expected: Sequence[float] = ()) -> None:
        """`expected`: acceptance by position to begin with, as if so many drafts had shown it."""
        self._fade = fade
        self.tried: list[float] = [EXPECTED_WEIGHT] * len(expected)
        self.kept: list[float] = [EXPECTED_WEIGHT * share for share in expected]
        self.wanted: list[float] = []
        """Drafts that were to have this position."""
        self.given: list[float] = []
        """Of these, those that had it."""
        self.num_drafts = 0
        self.nodes = 0.0
        """Rows of a draft that was not empty, a moving mean."""

    def verified(self, depth: int, accepted: int) -> None:
        """A draft that deep was verified, and so many of its positions accepted."""
        for position in range(min(accepted + 1, depth)):
            if position == len(self.tried):
                self.tried.append(0.0)
                self.kept.append(0.0)
            self.tried[position] = self._fade * self.tried[position] + 1
            self.kept[position] = self._fade * self.kept[position] + (position < accepted)

    def drafted(self, length: int, depth: int, nodes: int) -> None:
        """Of `length` positions that were asked for a draft had `depth`, in so many rows."""
        for position in range(min(length, depth + 1)):
            if position == len(self.wanted):
                self.wanted.append(0.0)
                self.given.append(0.0)
            self.wanted[position] = self._fade * self.wanted[position] + 1
            self.given[position] = self._fade * self.given[position] + (position < depth)
        if nodes:
            self.num_drafts += 1
            self.nodes += (nodes - self.nodes) * max(1 - self._fade, 1 / self.num_drafts)

    def share_given(self, position: int) -> float:
        """Of the drafts that had the position before it, and were to have this one, the share that had it."""
        if position >= len(self.wanted):
            return 1.0
        return (self.given[position] + DOUBT) / (self.wanted[position] + DOUBT)


def conditional(
    proposer: Tally,
    hint: Tally,
    own: Tally | None,
    position: int,
    before: float,
    still: float = 1.0,
    own_weight: float = OWN_WEIGHT,
) -> float:
    """The estimate for a position; `before` is that of the position before it (`PRIOR` for the first), `still` what the
    trials of `own` are still worth, and `own_weight` how many of them the level above is."""
    mean = before
    if position < len(proposer.tried):
        mean = (PROPOSER_WEIGHT * mean + proposer.kept[position]) / (PROPOSER_WEIGHT + proposer.tried[position])
    if position < len(hint.tried):
        mean = (HINT_WEIGHT * mean + hint.kept[position]) / (HINT_WEIGHT + hint.tried[position])
    if own is None:
        return mean
    if position:
        mean = (mean + before) / 2  # what holds for this sequence's first positions tells about the next
    if position < len(own.tried):
        mean = (own_weight * mean + still * own.kept[position]) / (own_weight + still * own.tried[position])
    return mean
