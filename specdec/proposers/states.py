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
from specdec.step.model import Computed
from specdec.types import Verdict

MOST_POSITIONS = 4096
"""How many positions are kept of a sequence whose proposer fails."""


def target_states(
    batch: Batch,
    verdicts: Many[Verdict],
    wants: Mapping[str, Wants],
    computed: Computed,
) -> dict[Sequence, TargetStates]:
    """By sequence what its proposer wants; `wants` is by proposer.

    `computed` is of the batch; `verdicts` are one a row.
    """
    hidden, aux, logits, _ = computed
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


def with_missed(missed: Many[TargetStates], latest: TargetStates) -> tuple[TargetStates, ...]:
    """What a proposer that goes by positions has still to see: of the steps it missed the states, without logits.

    The latest ones alone where the two do not follow each other, because the sequence was computed anew, and where they
    are too many to keep.
    """
    if not missed or missed[-1].end != latest.start or latest.end - missed[0].start > MOST_POSITIONS:
        return (latest,)
    if missed[-1].logits is None:
        return (*missed, latest)
    return (*missed[:-1], replace(missed[-1], judged=(), logits=None), latest)


def join_states(steps: Many[TargetStates]) -> TargetStates:
    """The states of steps that follow each other as one; the last one's logits."""
    last = steps[-1]
    if len(steps) == 1:
        return last
    return replace(
        last,
        start=steps[0].start,
        num_tokens=last.end - steps[0].start,
        hidden=None if last.hidden is None else torch.cat([each.hidden for each in steps if each.hidden is not None]),
        aux={layer: torch.cat([each.aux[layer] for each in steps]) for layer in last.aux},
    )


def _token_rows(at: int, committed: int, path: Many[int]) -> slice | list[int]:
    """The step's token rows of a row that begins at `at`: its committed tokens, then the accepted nodes."""
    if list(path) == list(range(len(path))):
        return slice(at, at + committed + len(path))
    return [*range(at, at + committed), *(at + committed + node for node in path)]


def _judged(row: ScheduledRow) -> tuple[int, ...]:
    return (row.sequence.token_ids[row.num_tokens - 1], *row.draft.token_ids)
