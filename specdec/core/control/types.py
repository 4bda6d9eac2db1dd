"""What goes into the controller and what comes out of it. No token is among it: it cannot look at a draft."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

PLAIN = "none"
UNKNOWN = -1
"""The hint of a proposer that gives none."""
NOTHING = 0
"""The hint of a proposer that would draft nothing."""
MOST_HINT = 7
"""Larger hints count as this one."""


@dataclass(frozen=True)
class Member:
    """A proposer that may be chosen. A chain may have any length up to `length`; a tree, of `nodes` rows, only that."""

    name: str
    length: int
    nodes: int
    is_tree: bool = False
    has_kv: bool = False
    """It must compute what was committed since it was last asked, before it can draft."""
    learns: bool = False
    """It learns from the steps at which it is asked."""
    ends_early: bool = False
    """Its chains end by themselves where it is unsure, and of the next one it knows more than is known before: alone, a
    sequence is given all that it may have, if that pays."""
    expected: tuple[float, ...] = ()
    """By position the acceptance that was seen of it elsewhere, given that all before was accepted; as far as known."""


@dataclass(frozen=True)
class DraftTimes:
    """What a proposer takes on this machine, in seconds."""

    drafts: tuple[tuple[int, float], ...]
    """Drafts for one sequence: the length that was asked for, and what it took."""
    hint: float | None = None
    """A hint; None: it gives none."""
    shared: float = 0.0
    """Of a draft, the part that drafts for other sequences in the same call do not take again."""
    reading: tuple[int, float] | None = None
    """Tokens that were new to it, and what it took to see them; None: not measured."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A sequence whose next draft is to be chosen, and what is known before drafting."""

    key: Hashable
    num_tokens: int
    length: int
    """The longest draft that could be verified."""
    kv_length: int = 0
    """The same for a member with KV, which needs slots."""
    lag: int = 0
    """Committed tokens that such a member has missed."""
    is_greedy: bool = True
    hints: Mapping[str, int] = field(default_factory=dict)
    """By member how much it has to go by: 0 for nothing."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Who drafts for a sequence and how many tokens, and who else must see its last step."""

    proposer: str = PLAIN
    length: int = 0
    followers: tuple[str, ...] = ()
    is_probe: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step made of a sequence's draft: its depth and rows as they were verified, and what was accepted."""

    key: Hashable
    depth: int
    nodes: int
    accepted: int


@dataclass(frozen=True, slots=True)
class Option:
    """A member at one length: what it is expected to bring and to cost for one sequence."""

    member: Member
    hint: int
    length: int
    gain: float
    """Expected accepted tokens."""
    rows: float
    """Expected rows beside the one of plain decoding."""
    drafting: float
    """Seconds."""
    verifying: float
    """Seconds that the rows add to the step; 0 in a batch, where they add to it together."""

    @property
    def seconds(self) -> float:
        return self.drafting + self.verifying
