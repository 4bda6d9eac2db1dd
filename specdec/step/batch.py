"""Every tensor of one step, built from the schedule in one pass over its rows.

A row is one scheduled sequence; its span is `[num_computed_tokens, num_computed_tokens + num_scheduled_tokens)`:
committed tokens first, then draft tokens (D2). Prompt chunks, decodes and drafts differ only in these numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from specdec.core.scheduler import Schedule, ScheduledRow
from specdec.kernels import StepInputs

CHAIN_MASKS = (np.uint64(2) << np.arange(64, dtype=np.uint64)) - np.uint64(1)
"""Ancestor masks of a chain: node j sees nodes 0..j."""


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
        """Lay out `schedule`. Host lists become tensors with one copy each."""
        rows = schedule.rows
        total = sum(row.num_scheduled_tokens for row in rows)
        token_ids = np.empty(total, np.int64)
        positions = np.empty(total, np.int64)
        slots = np.empty(total, np.int64)
        masks = np.zeros(total, np.uint64) if any(row.num_draft_tokens for row in rows) else None
        tables = np.zeros((len(rows), max((len(row.sequence.block_table) for row in rows), default=0)), np.int32)
        starts = np.zeros(len(rows) + 1, np.int32)
        logits: list[int] = []
        logits_start = [0]
        at = 0
        for b, row in enumerate(rows):
            end = at + row.num_scheduled_tokens
            assert row.end <= len(row.sequence.block_table) * block_size, "a span leaves its sequence's blocks"
            tables[b, : len(row.sequence.block_table)] = row.sequence.block_table
            _fill_row(row, token_ids[at:end], positions[at:end], None if masks is None else masks[at:end])
            indices = np.arange(row.start, row.end)
            slots[at:end] = tables[b, indices // block_size].astype(np.int64) * block_size + indices % block_size
            logits.extend(range(end - row.num_logits, end))
            logits_start.append(len(logits))
            starts[b + 1] = at = end

        def tensor(array: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(array).to(device, non_blocking=True)

        return Batch(
            token_ids=tensor(token_ids),
            positions=tensor(positions),
            slot_mapping=tensor(slots),
            query_start_loc=tensor(starts),
            seq_lens=tensor(np.array([row.end for row in rows], np.int32)),
            committed_lens=tensor(np.array([row.end - row.num_draft_tokens for row in rows], np.int32)),
            block_tables=tensor(tables),
            ancestor_masks=None if masks is None else tensor(masks.view(np.int64)),
            logits_indices=tensor(np.array(logits, np.int64)),
            rows=rows,
            logits_start=tuple(logits_start),
        )

    @staticmethod
    def of_drafts(
        token_ids: np.ndarray,
        positions: np.ndarray,
        entries: np.ndarray,
        counts: np.ndarray,
        committed_lens: np.ndarray,
        block_tables: np.ndarray,
        ancestor_masks: np.ndarray | None,
        block_size: int,
        device: torch.device,
    ) -> Batch:
        """Drafted tokens of B rows that a proposer computes itself, logits wanted after each.

        Row b has `counts[b]` of the T tokens. `token_ids`, `positions` and `entries`, where in the row their KV goes,
        are int64 [T], `counts` and `committed_lens` int64 [B], `block_tables` int32 [B, max blocks of a row],
        `ancestor_masks` uint64 [T]. Without masks every row sees all that is before it, as if it were committed.
        """
        rows = np.repeat(np.arange(len(counts)), counts)
        starts = np.zeros(len(counts) + 1, np.int32)
        np.cumsum(counts, out=starts[1:])
        slots = block_tables[rows, entries // block_size].astype(np.int64) * block_size + entries % block_size
        seq_lens = (np.maximum.reduceat(entries, starts[:-1]) + 1).astype(np.int32)

        def tensor(array: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(array).to(device, non_blocking=True)

        return Batch(
            token_ids=tensor(token_ids),
            positions=tensor(positions),
            slot_mapping=tensor(slots),
            query_start_loc=tensor(starts),
            seq_lens=tensor(seq_lens),
            committed_lens=tensor(seq_lens if ancestor_masks is None else committed_lens.astype(np.int32)),
            block_tables=tensor(block_tables),
            ancestor_masks=None if ancestor_masks is None else tensor(ancestor_masks.view(np.int64)),
            logits_indices=torch.arange(len(token_ids), device=device),
            rows=(),
            logits_start=tuple(starts.tolist()),
        )


def _fill_row(row: ScheduledRow, token_ids: np.ndarray, positions: np.ndarray, masks: np.ndarray | None) -> None:
    """Tokens, positions and ancestor masks of one row's span."""
    committed = row.num_scheduled_tokens - row.num_draft_tokens
    token_ids[:committed] = row.sequence.token_ids[row.start : row.start + committed]
    positions[:committed] = np.arange(row.start, row.start + committed)
    if not row.num_draft_tokens:
        return
    assert masks is not None
    draft = row.draft
    token_ids[committed:] = draft.token_ids
    base = row.start + committed
    if draft.parents is None:
        positions[committed:] = np.arange(base, base + len(draft))
        masks[committed:] = CHAIN_MASKS[: len(draft)]
        return
    for node, parent in enumerate(draft.parents):
        own = np.uint64(1) << np.uint64(node)
        masks[committed + node] = own if parent < 0 else masks[committed + parent] | own
        positions[committed + node] = base if parent < 0 else positions[committed + parent] + 1
