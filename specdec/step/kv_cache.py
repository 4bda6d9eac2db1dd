"""The paged KV tensors of one model. Block ids come from the block manager; this module only knows slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class KVLayout:
    """The shape of one model's KV cache, and so its price."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def bytes_per_token(self) -> int:
        """2 (key and value) * layers * kv_heads * head_dim * bytes of one element."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.dtype.itemsize


class KVCache:
    """Keys and values of every layer, float [num_blocks, block_size, num_kv_heads, head_dim] each.

    Slot s of a layer is row s % block_size of block s // block_size.
    """

    def __init__(self, layout: KVLayout, num_blocks: int, block_size: int, device: torch.device) -> None:
        self.layout = layout
        self.num_blocks = num_blocks
        self.block_size = block_size
        shape = (num_blocks, block_size, layout.num_kv_heads, layout.head_dim)
        # Left uninitialised: a page that no sequence ever reaches costs no memory.
        self.keys = [torch.empty(shape, dtype=layout.dtype, device=device) for _ in range(layout.num_layers)]
        self.values = [torch.empty(shape, dtype=layout.dtype, device=device) for _ in range(layout.num_layers)]

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks, (source, destination) each: what copy-on-write asks for."""
        if not copies:
            return
        sources = torch.tensor([source for source, _ in copies], device=self.keys[0].device)
        destinations = torch.tensor([destination for _, destination in copies], device=self.keys[0].device)
        for cache in (*self.keys, *self.values):
            cache[destinations] = cache[sources]

    def move(self, slots_from: torch.Tensor, slots_to: torch.Tensor) -> None:
        """Copy the entries at `slots_from` to `slots_to`, int64 [n] each, in every layer; all are read before any is
        written, so the two may overlap."""
        for cache in (*self.keys, *self.values):
            entries = cache.view(-1, *cache.shape[2:])
            entries[slots_to] = entries[slots_from]

    def read(self, layer: int, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values at `slots` (int64 [n]) of a layer: [n, num_kv_heads, head_dim] each. For tests and checks."""
        blocks, offsets = slots // self.block_size, slots % self.block_size
        return self.keys[layer][blocks, offsets], self.values[layer][blocks, offsets]
