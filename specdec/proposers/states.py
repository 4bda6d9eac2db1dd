"""What the target's step leaves for those who draft from it: the tensors of a whole step, cut by sequence."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Many
from dataclasses import replace

import torch

from specdec.core.scheduler import ScheduledRow
from specdec.core.sequence import Sequence
from specdec.proposers.base import TargetStates, Wants
from specdec.step.batch import Batch
from specdec.types import Verdict

MOST_POSITIONS = 4096
"""How many positions are kept of a sequence whose proposer fails."""


def target_states(
    batch: Batch,
    verdicts: Many[Verdict],
    wants: Mapping[str, Wants],
    hidden: torch.Tensor,
    aux: Mapping[int, torch.Tensor],
    logits: torch.Tensor,
) -> dict[Sequence, TargetStates]:
    """By sequence what its proposer wants; `wants` is by proposer.

    `hidden` [T, hidden] and `aux` by layer [T, hidden] are of the batch's tokens, `logits` [L, vocab] of its logits
    positions, `verdicts` one a row.
    """
    states, at = {}, 0
    for row, verdict, first in zip(batch.rows, verdicts, batch.logits_start, strict=False):
        wanted = wants[row.proposer]
        if wanted.states:
            committed = row.num_scheduled_tokens - row.num_draft_tokens
            tokens = _token_rows(at, committed, verdict.accepted_path)
            verified = wanted.logits and bool(row.num_logits)
            states[row.sequence] = TargetStates(
                start=row.start,
                num_tokens=committed + verdict.num_accepted,
                hidden=hidden[tokens] if wanted.hidden else None,
                aux={layer: aux[layer][tokens] for layer in wanted.aux_layers},
                judged=_judged(row) if verified else (),
                logits=logits[first : first + row.num_logits] if verified else None,
                path=verdict.accepted_path,
            )
        at += row.num_scheduled_tokens
    return states


def join_states(earlier: TargetStates, later: TargetStates) -> TargetStates:
    """The states of two steps, of which a proposer that goes by positions has seen neither; the later one's logits.

    The later ones alone where the two do not follow each other, because the sequence was computed anew, and where they
    are too many to keep.
    """
    if earlier.end != later.start or earlier.num_tokens + later.num_tokens > MOST_POSITIONS:
        return later
    hidden = None
    if earlier.hidden is not None and later.hidden is not None:
        hidden = torch.cat((earlier.hidden, later.hidden))
    return replace(
        later,
        start=earlier.start,
        num_tokens=earlier.num_tokens + later.num_tokens,
        hidden=hidden,
        aux={layer: torch.cat((earlier.aux[layer], states)) for layer, states in later.aux.items()},
    )


def _token_rows(at: int, committed: int, path: Many[int]) -> slice | list[int]:
    """The step's token rows of a row that begins at `at`: its committed tokens, then the accepted nodes."""
    if list(path) == list(range(len(path))):
        return slice(at, at + committed + len(path))
    return [*range(at, at + committed), *(at + committed + node for node in path)]


def _judged(row: ScheduledRow) -> tuple[int, ...]:
    return (row.sequence.token_ids[row.num_tokens - 1], *row.draft.token_ids)
