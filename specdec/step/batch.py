"""Every tensor of one step, built from the schedule in one pass over its rows.

A row is one scheduled sequence; its span is `[num_computed_tokens, num_computed_tokens + num_scheduled_tokens)`:
committed tokens first, then draft tokens (D2). Prompt chunks, decodes and drafts differ only in these numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import NamedTuple

import numpy as np
import torch

from specdec.core.scheduler import Schedule, ScheduledRow
from specdec.kernels import StepInputs


def _signed(mask: int) -> int:
    """64 bits as the signed integer that they are in an int64."""
    return mask - (1 << 64) if mask >> 63 else mask


CHAIN_MASKS = tuple(_signed((2 << node) - 1) for node in range(64))
"""Ancestor masks of a chain: node j sees nodes 0..j."""


class DraftTokens(NamedTuple):
    """Drafted tokens of a sequence that a proposer computes itself; one of each list for every token."""

    block_table: list[int]
    num_committed: int
    token_ids: list[int]
    positions: list[int]
    entries: list[int]
    """Where in the sequence their KV goes."""
    masks: list[int] | None
    """Which draft nodes each sees, itself included, as bits; None: all that is before it. Of some sequences of a batch
    and not of others they cannot be None."""


@dataclass(frozen=True)
class Batch:
    """T tokens of B rows, ragged and flat; L positions whose logits are needed."""

    token_ids: torch.Tensor  # int64 [T]
    positions: torch.Tensor  # int64 [T]   a draft node's position is its depth after the last committed token
    slot_mapping: torch.Tensor  # int64 [T]   where each token's KV is written
    query_start_loc: torch.Tensor  # int32 [B + 1]   row b owns tokens [query_start_loc[b], query_start_loc[b + 1])
    seq_lens: torch.Tensor  # int32 [B]   KV entries of the row after this step, draft included
    committed_lens: torch.Tensor  # int32 [B]   of these, how many come before the draft
    block_tables: torch.Tensor  # int32 [B, max blocks of a row]   padded with 0
    ancestor_masks: torch.Tensor | None  # int64 [T]   bit j: sees draft node j; 0 for committed tokens; None: no draft
    logits_indices: torch.Tensor  # int64 [L]   token rows whose logits are needed, row by row
    rows: tuple[ScheduledRow, ...]
    logits_start: tuple[int, ...]  # [B + 1]   row b owns logits [logits_start[b], logits_start[b + 1])

    def inputs(self) -> StepInputs:
        """What a recorded program is run with."""
        return (
            self.token_ids,
            self.positions,
            self.slot_mapping,
            self.query_start_loc,
            self.seq_lens,
            self.committed_lens,
            self.block_tables,
            self.ancestor_masks,
        )

    @staticmethod
    def placeholder() -> Batch:
        """Two tokens that stand for any number while a program is recorded; nothing is computed with them."""
        position, zero = torch.zeros(2, dtype=torch.int64), torch.zeros(1, dtype=torch.int32)
        return Batch(
            token_ids=position.clone(),
            positions=position.clone(),
            slot_mapping=position.clone(),
            query_start_loc=torch.tensor([0, 2], dtype=torch.int32),
            seq_lens=zero.clone(),
            committed_lens=zero.clone(),
            block_tables=zero.view(1, 1),
            ancestor_masks=position.clone(),
            logits_indices=position.clone(),
            rows=(),
            logits_start=(0, 2),
        )

    @property
    def num_tokens(self) -> int:
        return self.token_ids.shape[0]

    @staticmethod
    def build(schedule: Schedule, block_size: int, device: torch.device) -> Batch:
        """Lay out `schedule`: two host arrays, one an integer type, become the step's tensors with one copy each."""
        rows = schedule.rows
        step = _Columns(any(row.num_draft_tokens for row in rows))
        for row in rows:
            step.add(row, block_size)
        long = _tensors([step.token_ids, step.positions, step.slots, step.masks, step.logits], np.int64, device)
        width = max((len(row.sequence.block_table) for row in rows), default=0)
        tables = [block for row in rows for block in _padded(row.sequence.block_table, width)]
        short = _tensors([step.starts, step.seq_lens, step.committed_lens, tables], np.int32, device)
        return Batch(
            token_ids=long[0],
            positions=long[1],
            slot_mapping=long[2],
            query_start_loc=short[0],
            seq_lens=short[1],
            committed_lens=short[2],
            block_tables=short[3].view(len(rows), width),
            ancestor_masks=long[3] if step.has_drafts else None,
            logits_indices=long[4],
            rows=rows,
            logits_start=tuple(step.logits_start),
        )

    @staticmethod
    def of_drafts(drafts: Sequence[DraftTokens], block_size: int, device: torch.device) -> Batch:
        """Drafted tokens of B rows that a proposer computes itself, logits wanted after each."""
        seq_lens = [max(draft.entries) + 1 for draft in drafts]
        starts = [0, *accumulate(len(draft.entries) for draft in drafts)]
        sees_all = all(draft.masks is None for draft in drafts)
        slots = [
            draft.block_table[entry // block_size] * block_size + entry % block_size
            for draft in drafts
            for entry in draft.entries
        ]
        masks = [] if sees_all else [_signed(mask) for draft in drafts for mask in draft.masks or ()]
        long = _tensors(
            [
                [*chain.from_iterable(draft.token_ids for draft in drafts)],
                [*chain.from_iterable(draft.positions for draft in drafts)],
                slots,
                masks,
                range(starts[-1]),
            ],
            np.int64,
            device,
        )
        width = max(len(draft.block_table) for draft in drafts)
        tables = [block for draft in drafts for block in _padded(draft.block_table, width)]
        # What is seen whole may as well be committed.
        committed = seq_lens if sees_all else [draft.num_committed for draft in drafts]
        short = _tensors([starts, seq_lens, committed, tables], np.int32, device)
        return Batch(
            token_ids=long[0],
            positions=long[1],
            slot_mapping=long[2],
            query_start_loc=short[0],
            seq_lens=short[1],
            committed_lens=short[2],
            block_tables=short[3].view(len(drafts), width),
            ancestor_masks=None if sees_all else long[3],
            logits_indices=long[4],
            rows=(),
            logits_start=tuple(starts),
        )


class _Columns:
    """The columns of a batch as lists, filled row by row. Most steps are a few tokens, where lists beat arrays."""

    def __init__(self, has_drafts: bool) -> None:
        self.has_drafts = has_drafts
        self.token_ids: list[int] = []
        self.positions: list[int] = []
        self.slots: list[int] = []
        self.masks: list[int] = []
        self.logits: list[int] = []
        self.starts, self.logits_start = [0], [0]
        self.seq_lens: list[int] = []
        self.committed_lens: list[int] = []

    def add(self, row: ScheduledRow, block_size: int) -> None:
        """The next row."""
        draft, table, end = row.draft, row.sequence.block_table, row.end
        committed = end - len(draft)
        assert end <= len(table) * block_size, "a span leaves its sequence's blocks"
        self.token_ids += row.sequence.token_ids[row.start : committed]
        self.token_ids += draft.token_ids
        self.positions += range(row.start, committed)
        self.positions += [committed - 1 + depth for depth in draft.depths]
        self.slots += [table[i // block_size] * block_size + i % block_size for i in range(row.start, end)]
        if self.has_drafts:
            self.masks += [0] * (committed - row.start)
            self.masks += CHAIN_MASKS[: len(draft)] if draft.parents is None else _tree_masks(draft.parents)
        self.seq_lens.append(end)
        self.committed_lens.append(committed)
        self.starts.append(len(self.token_ids))
        self.logits += range(self.starts[-1] - row.num_logits, self.starts[-1])
        self.logits_start.append(len(self.logits))


def _tree_masks(parents: Sequence[int]) -> list[int]:
    """For each node of a tree, the bits of its ancestors and its own."""
    masks: list[int] = []
    for node, parent in enumerate(parents):
        masks.append(1 << node | (0 if parent < 0 else masks[parent]))
    return [_signed(mask) for mask in masks]


def _padded(table: list[int], width: int) -> list[int]:
    return table + [0] * (width - len(table))


def _tensors(
    columns: Sequence[Sequence[int]], dtype: type[np.signedinteger], device: torch.device
) -> tuple[torch.Tensor, ...]:
    """Each column as a tensor, all of them parts of one."""
    whole = torch.from_numpy(np.array([*chain.from_iterable(columns)], dtype))
    if device.type != "cpu":
        whole = whole.to(device, non_blocking=True)
    return whole.split_with_sizes([len(column) for column in columns])
