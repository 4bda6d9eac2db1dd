"""How many steps an answer would take, from how much of the draft at each of its places is right.

A greedy answer is fixed, and a draft is a function of the tokens before it: so it is enough to know, for every output
token at which a step could start, how far each proposer's draft there agrees with what follows. A place is such a
token. Place 0 is the answer's second one, as its first comes with the prompt: an answer of n tokens has n - 1 places.

Pure functions over these tables; what made the drafts is unknown here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specdec.types import Draft


@dataclass(frozen=True)
class Agreement:
    """The draft at one place against the answer's tokens from there on."""

    depth: int
    """Its positions; where the answer ends inside what agrees, those before the end."""
    agreed: int
    """Its leading tokens that the answer has too; in a tree those of the path that goes on longest."""


Track = Sequence[Agreement]
"""One proposer's at every place of one answer."""


def agreement(draft: Draft, following: Sequence[int]) -> Agreement:
    """The draft against the answer's tokens that follow where it begins, up to the answer's end."""
    node, agreed = -1, 0
    for token_id in following:
        child = next((child for child in draft.children(node) if draft.token_ids[child] == token_id), None)
        if child is None:
            return Agreement(draft.depth, agreed)
        node, agreed = child, agreed + 1
    return Agreement(agreed, agreed)


def num_steps(gains: Sequence[int]) -> int:
    """Steps from the first place to the answer's end. A step at place i keeps `gains[i]` draft tokens, and one more
    unless the answer ends."""
    steps = place = 0
    while place < len(gains):
        place += gains[place] + 1
        steps += 1
    return steps


def fewest_steps(gains: Sequence[int]) -> int:
    """The same where a step may keep fewer draft tokens than there are: the fewest of all choices.

    Most is not always best: a shorter step may end where a much longer draft begins.
    """
    fewest = [0] * (len(gains) + 1)  # from each place on
    for place in reversed(range(len(gains))):
        fewest[place] = 1 + min(fewest[place + 1 : place + 2 + gains[place]], default=0)
    return fewest[0]


def gains(track: Track) -> list[int]:
    """What each place's draft brings."""
    return [each.agreed for each in track]


def longest(tracks: Sequence[Track]) -> list[int]:
    """At each place what the best draft brings."""
    return [max(each.agreed for each in place) for place in zip(*tracks, strict=True)]


def first_to_draft(tracks: Sequence[Track]) -> list[int]:
    """At each place what the first proposer brings, in their order, that drafts anything there."""
    return [next((each.agreed for each in place if each.depth), 0) for place in zip(*tracks, strict=True)]


def perfect_steps(num_places: int, length: int) -> int:
    """Steps with drafts that are always right, `length` tokens each."""
    return -(-num_places // (length + 1))


def in_a_row(marks: Sequence[bool], length: int) -> list[int]:
    """At each place how many marks there are from it on before the first gap, at most `length`."""
    found, run = [], 0
    for mark in reversed(marks):
        run = run + 1 if mark else 0
        found.append(min(run, length))
    return found[::-1]


def histogram(tracks: Sequence[Track]) -> tuple[int, ...]:
    """Entry a: the places, of all tracks, where exactly a tokens agree."""
    found = [each.agreed for track in tracks for each in track]
    return tuple(found.count(agreed) for agreed in range(max(found, default=-1) + 1))
