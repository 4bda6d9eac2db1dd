"""What a model is to those who run it: the target of a step, or a draft model beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from specdec.step.batch import Batch
from specdec.step.kv_cache import KVCache, KVLayout


class Model(Protocol):
    """`specdec.models.decoder.Decoder` is the real one."""

    def forward(self, batch: Batch, kv: KVCache) -> torch.Tensor:
        """Hidden states [T, hidden] after the final norm; writes this step's KV."""
        ...

    def forward_with_aux(
        self, batch: Batch, kv: KVCache, aux_layers: Sequence[int]
    ) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        """The same, and by layer the input [T, hidden] of each of `aux_layers`; the number of layers stands for the
        last one's output."""
        ...

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Float32 (or float64) logits [n, vocab] of hidden states [n, hidden]."""
        ...

    def kv_layout(self) -> KVLayout: ...
