"""The contract of a kernel backend: one function per op. A module of functions is a backend.

Shapes: T tokens of B ragged rows (row b owns tokens `query_start_loc[b] : query_start_loc[b + 1]`), H query heads,
G key-value heads, D head size, N blocks of S slots.
"""

from __future__ import annotations

from typing import Protocol

import torch


class Kernels(Protocol):
    """What a model and a sampler may ask of the device. Nothing here keeps state."""

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """x [T, in] times weight [out, in] transposed, plus bias [out]."""
        ...

    def embedding(self, token_ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Rows of weight [V, hidden] at int64 [T]."""
        ...

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float, unit_offset: bool = False) -> torch.Tensor:
        """Root-mean-square norm of the last dimension, float32 or wider, times weight (1 + weight with the offset)."""
        ...

    def rotary(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Rotate the first R of each head's D entries, halves convention: x [T, heads, D], cos and sin [T, R / 2]."""
        ...

    def silu_and_mul(self, x: torch.Tensor) -> torch.Tensor:
        """silu(gate) * up for x = [gate | up], [T, 2 * I] -> [T, I]."""
        ...

    def gelu_tanh_and_mul(self, x: torch.Tensor) -> torch.Tensor:
        """gelu(gate, tanh form) * up for x = [gate | up], [T, 2 * I] -> [T, I]."""
        ...

    def write_kv(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        """Store key and value [T, G, D] at the slots (int64 [T]) of caches [N, S, G, D]."""
        ...

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
        """Ragged attention of the step's tokens over their rows' cached keys, this step's included.

        query [T, H, D]; caches [N, S, G, D]; the rest as in `specdec.step.Batch`. Entry t of a row with C committed
        entries is visible to a query at position p if t < C and t <= p, or if t >= C and bit t - C of the query's
        ancestor mask is set. With a sliding window W also the entry's position must be above p - W (of a draft node
        seen, C plus the number of bits set below its own). `soft_cap` c turns a score s into c * tanh(s / c). Entries
        before `first_entry` are invisible to everybody and may hold anything, NaN included; every query must see one
        of the others. -> [T, H, D]
        """
        ...

    def argmax(self, logits: torch.Tensor) -> torch.Tensor:
        """The first index of each row's maximum, [L, V] -> int64 [L]; a NaN counts as the maximum."""
        ...
