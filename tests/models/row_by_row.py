"""An exact backend (D5) made of the reference: matrix products and attention take each token alone."""

from __future__ import annotations

from typing import Any

import torch

from specdec.kernels import reference


class RowByRow:
    """The reference kernels, except that no product ever sees two tokens. Slow, for tests."""

    def __getattr__(self, name: str) -> Any:
        return getattr(reference, name)

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return torch.cat([reference.linear(row, weight, bias) for row in x.split(1)])

    def paged_attention(
        self,
        query: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        *,
        query_start_loc: torch.Tensor,
        seq_lens: torch.Tensor,
        committed_lens: torch.Tensor,
        block_tables: torch.Tensor,
        positions: torch.Tensor,
        ancestor_masks: torch.Tensor | None,
        scale: float,
        sliding_window: int | None = None,
        soft_cap: float | None = None,
        first_entry: int = 0,
    ) -> torch.Tensor:
        out = torch.empty_like(query)
        starts, block_size = query_start_loc.tolist(), key_cache.shape[1]
        for b, length in enumerate(seq_lens.tolist()):
            rows = slice(starts[b], starts[b + 1])
            masks = None if ancestor_masks is None else ancestor_masks[rows]
            visible = reference.visible_entries(positions[rows], masks, length, int(committed_lens[b]), sliding_window)
            for at, seen in zip(range(rows.start, rows.stop), visible, strict=True):
                entries = seen.nonzero().flatten()
                entries = entries[entries >= first_entry]
                blocks, offsets = block_tables[b].long()[entries // block_size], entries % block_size
                out[at] = _attend(query[at], key_cache[blocks, offsets], value_cache[blocks, offsets], scale, soft_cap)
        return out


def _attend(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float, soft_cap: float | None
) -> torch.Tensor:
    """One query [H, D] over the entries it sees, [n, G, D]."""
    repeats = query.shape[0] // keys.shape[1]
    keys, values = keys.repeat_interleave(repeats, dim=1), values.repeat_interleave(repeats, dim=1)
    scores = (query * keys).sum(-1) * scale  # [n, H]
    if soft_cap is not None:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    return (torch.softmax(scores, dim=0)[..., None] * values).sum(0)
