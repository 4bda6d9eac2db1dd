"""What proposers with KV of their own share: which committed tokens a cache lacks, and the next level of a draft.

The cache is addressed by the target's block tables (D3), and `Sequence.num_draft_computed_tokens` says how far it has
come, so there is one kind of step: compute from there to the sequence's end, then draft (D1).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from collections.abc import Sequence as Many

import torch

from specdec.core.scheduler import ScheduledRow
from specdec.core.sequence import Sequence
from specdec.proposers.growing import ROOT, Growth
from specdec.step.batch import Batch, DraftTokens
from specdec.types import ProposerWarning


def start_growth(sequence: Sequence, length: int, block_size: int) -> Growth:
    """An empty draft of at most `length` tokens, whose computed nodes fit the sequence's blocks."""
    room = len(sequence.block_table) * block_size - sequence.num_tokens
    return Growth(sequence, length, room, frontier=[ROOT] if length else [])


class LengthLimit:
    """The longest text that a proposer's model takes. Past it nothing is drafted, which is said once."""

    def __init__(self, whose: str, max_model_len: int) -> None:
        self.whose = whose
        self.max_model_len = max_model_len
        self._has_warned = False

    def reachable(self, sequence: Sequence, length: int) -> int:
        """How many of `length` tokens can be drafted; the last one is drawn, but not computed."""
        room = max(0, self.max_model_len - sequence.num_tokens + 1)
        if length > room and not self._has_warned:
            self._has_warned = True
            text = f"{self.whose} takes at most {self.max_model_len} tokens; past them nothing is drafted"
            warnings.warn(ProposerWarning(text, (self.whose, "length")), stacklevel=2)
        return min(length, room)


def missing_row(growth: Growth, first: int, limit: int) -> ScheduledRow | None:
    """The committed tokens that the cache lacks: all of a sequence that drafts, else those that the target computed.

    `first` is the first position that has an entry, `limit` the most that the cache's model takes.
    """
    sequence = growth.sequence
    start = max(first, sequence.num_draft_computed_tokens)
    end = min(limit, sequence.num_tokens if growth.length else sequence.num_computed_tokens)
    return ScheduledRow(sequence, start, end - start) if end > start else None


def parts(rows: Many[ScheduledRow], budget: int) -> Iterator[tuple[ScheduledRow, ...]]:
    """The rows in order, cut where more than `budget` tokens would be computed at once."""
    part: list[ScheduledRow] = []
    room = budget
    for row in rows:
        start = row.start
        while start < row.end:
            count = min(room, row.end - start)
            part.append(ScheduledRow(row.sequence, start, count))
            start, room = start + count, room - count
            if not room:
                yield tuple(part)
                part, room = [], budget
    if part:
        yield tuple(part)


def level_batch(live: Many[Growth], block_size: int, device: torch.device) -> Batch:
    """The frontier nodes of the growths, to be computed at their slots."""
    # A node that is all of its level sees all that is before it, if it also was so in the levels above.
    is_chain = all(
        growth.masks[growth.frontier[-1]] == (2 << growth.places[growth.frontier[-1]]) - 1 for growth in live
    )
    return Batch.of_drafts([_level(growth, is_chain) for growth in live], block_size, device)


def _level(growth: Growth, is_chain: bool) -> DraftTokens:
    committed, frontier = growth.sequence.num_tokens, growth.frontier
    return DraftTokens(
        growth.sequence.block_table,
        committed,
        token_ids=[growth.token_ids[node] for node in frontier],
        positions=[committed + growth.depths[node] - 1 for node in frontier],
        entries=[committed + growth.places[node] for node in frontier],
        masks=None if is_chain else [growth.masks[node] for node in frontier],
    )
