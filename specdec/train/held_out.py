"""How far drafts would have come on samples kept from training, counted from unrolls along the true tokens.

A chain is followed while each guess is what the target says and what the sample goes on with: then what the head was
fed is what it would have fed itself, and the count is that of the real loop. Samples that were drawn at a temperature
leave the greedy path at some point; from there they no longer count, for or against.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

DRAFT_LENGTH = 4
"""What the mean acceptance length is told for."""


@dataclass(frozen=True)
class Tally:
    """Counts over some samples, by position of the draft."""

    tried: tuple[int, ...]
    """Guesses whose chain was right up to there."""
    accepted: tuple[int, ...]
    """Of these, those that are the target's own greedy token."""
    overlap: float
    """Sum over the first guesses of sum_v min(target, draft) at temperature 1: expected tokens accepted."""
    num_first: int
    """How many first guesses these are."""


@dataclass(frozen=True)
class Acceptance:
    """Of a held-out set; shares, by position of the draft."""

    conditional: tuple[float, ...]
    """Given that all before were accepted."""
    at_temperature_1: float
    """Of the first guess."""

    @property
    def unconditional(self) -> tuple[float, ...]:
        reached, shares = 1.0, []
        for share in self.conditional:
            reached *= share
            shares.append(reached)
        return tuple(shares)

    @property
    def mean_length(self) -> float:
        """Tokens a step with a draft of 4, the bonus or recovered one counted; positions beyond those that were
        measured are taken to be as good as the last."""
        conditional = (*self.conditional, *self.conditional[-1:] * DRAFT_LENGTH)[:DRAFT_LENGTH]
        return 1.0 + sum(Acceptance(conditional, 0.0).unconditional)


def acceptance(tallies: Sequence[Tally]) -> Acceptance:
    """The shares in all `tallies` together."""
    tried = [sum(each) for each in zip(*(tally.tried for tally in tallies), strict=True)]
    accepted = [sum(each) for each in zip(*(tally.accepted for tally in tallies), strict=True)]
    first = sum(tally.num_first for tally in tallies)
    return Acceptance(
        tuple(yes / all_ if all_ else 0.0 for yes, all_ in zip(accepted, tried, strict=True)),
        sum(tally.overlap for tally in tallies) / max(1, first),
    )
