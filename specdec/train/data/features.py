"""The target's states of samples, for training: what the data keeps, and for the rest the target's own forward pass.

Whether kept or computed anew they are the same numbers. With the native kernels they are so bit for bit, since a
position's sums do not depend on what else is in a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from specdec.core.scheduler import Schedule, ScheduledRow
from specdec.core.sequence import Sequence as Row
from specdec.kernels import one_torch_thread
from specdec.models.decoder import Decoder
from specdec.step.batch import Batch
from specdec.step.kv_cache import KVCache
from specdec.train.data.dataset import Dataset
from specdec.train.data.tap import pack_states
from specdec.types import Request, SamplingParams

BLOCK_SIZE = 16


class StateSource(Protocol):
    """Where training gets the target's states from."""

    def states(self, index: int) -> torch.Tensor:
        """Of a sample's n tokens, bfloat16 [n, (A + 1) * hidden]; the last row is zero (see `Dataset.states`)."""
        ...


@dataclass
class Recomputed:
    """States of token lists, by the target's forward pass over each."""

    model: Decoder
    aux_layers: tuple[int, ...]
    _kv: KVCache | None = field(default=None)

    def of(self, token_ids: Sequence[int]) -> torch.Tensor:
        """bfloat16 [n, (A + 1) * hidden] of n tokens, the last row zero."""
        hidden, aux = self._forward([int(token) for token in token_ids[:-1]])
        states = pack_states(hidden, aux, self.aux_layers)
        return torch.cat((states, states.new_zeros(1, states.shape[1])))

    @torch.no_grad()
    def _forward(self, token_ids: list[int]) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        kernels, device = self.model.kernels, torch.device("cpu")
        num_blocks = -(-len(token_ids) // BLOCK_SIZE)
        if self._kv is None or self._kv.num_blocks < num_blocks:
            self._kv = KVCache(self.model.kv_layout(), num_blocks, BLOCK_SIZE, device)
        row = Row(Request("states", tuple(token_ids), SamplingParams(), seed=0, arrival=0), 0, token_ids)
        row.block_table = list(range(num_blocks))
        batch = Batch.build(Schedule((ScheduledRow(row, 0, len(token_ids)),)), BLOCK_SIZE, device)
        if not kernels.own_threads:
            return self.model.forward_with_aux(batch, self._kv, self.aux_layers)
        with one_torch_thread():
            return self.model.forward_with_aux(batch, self._kv, self.aux_layers)


@dataclass(frozen=True)
class CachedOrRecomputed:
    """The states that a dataset keeps, and those of its other samples computed anew."""

    dataset: Dataset
    recomputed: Recomputed

    def __post_init__(self) -> None:
        kept, wanted = self.dataset.aux_layers, self.recomputed.aux_layers
        if kept and kept != wanted:
            raise ValueError(
                f"{self.dataset.directory} keeps the states of layers {','.join(map(str, kept))}, and those of "
                f"{','.join(map(str, wanted))} are wanted; use the same, or data without states"
            )

    def states(self, index: int) -> torch.Tensor:
        kept = self.dataset.states(index)
        return self.recomputed.of(self.dataset[index].token_ids.tolist()) if kept is None else kept
