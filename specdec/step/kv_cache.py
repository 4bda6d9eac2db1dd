"""The paged KV tensors of one model. Block ids come from the block manager; this module only knows slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from specdec.kernels import Kernels
from specdec.kernels.reference import from_entries


@dataclass(frozen=True)
class KVLayout:
    """The shape of one model's KV cache, and so its price."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def bytes_per_token(self) -> int:
        """2 (key and value) * layers * kv_heads * bytes of one entry."""
        return 2 * self.num_layers * self.num_kv_heads * self.entry_size * self.dtype.itemsize

    @property
    def entry_size(self) -> int:
        """Elements of one head's key or value: head_dim, and in int8 the four bytes of its scale."""
        return self.head_dim + (4 if self.dtype == torch.int8 else 0)


class KVCache:
    """Keys and values of every layer, [num_blocks, block_size, num_kv_heads, entry_size] each.

    Slot s of a layer is row s % block_size of block s // block_size.
    """

    def __init__(self, layout: KVLayout, num_blocks: int, block_size: int, device: torch.device) -> None:
        self.layout = layout
        self.num_blocks = num_blocks
        self.block_size = block_size
        shape = (num_blocks, block_size, layout.num_kv_heads, layout.entry_size)
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

    def move(self, slots_from: torch.Tensor, slots_to: torch.Tensor, kernels: Kernels) -> None:
        """Copy the entries at `slots_from` to `slots_to`, int64 [n] each, in every layer; all are read before any is
        written, so the two may overlap."""
        kernels.move_kv((*self.keys, *self.values), slots_from, slots_to)

    def read(self, layer: int, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values at `slots` (int64 [n]) of a layer: [n, num_kv_heads, head_dim] each, of an int8 cache as
        float32. For tests and checks."""
        blocks, offsets = slots // self.block_size, slots % self.block_size
        dtype = torch.float32 if self.layout.dtype == torch.int8 else self.layout.dtype
        keys, values = self.keys[layer][blocks, offsets], self.values[layer][blocks, offsets]
        return from_entries(keys, dtype), from_entries(values, dtype)

    def poison(self) -> None:
        """Fill the cache with what is not a number: for tests and checks."""
        for cache in (*self.keys, *self.values):
            # In int8 the bytes of an entry's scale are then those of a NaN.
            cache.fill_(-1 if cache.dtype == torch.int8 else float("nan"))
