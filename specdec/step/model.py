"""What a model is to those who run it: the target of a step, or a draft model beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

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


class Computed(NamedTuple):
    """What a forward pass computed."""

    hidden: torch.Tensor  # [T, hidden]
    aux: dict[int, torch.Tensor]
    logits: torch.Tensor  # [L, vocab]   at the batch's logits positions
    largest: tuple[torch.Tensor, torch.Tensor] | None = None
    """`Kernels.largest` of the logits, where the model found it in passing."""


def compute(model: Model, batch: Batch, kv: KVCache, aux_layers: Sequence[int] = ()) -> Computed:
    """A forward pass and the logits that the batch asks for.

    A model may have a method `compute` of its own, which does the same at once for a batch that asks for the logits of
    all of its tokens, as all do but those with prompts in them.
    """
    at_once = getattr(model, "compute", None)
    if at_once is not None and len(batch.logits_indices) == batch.num_tokens:
        computed: Computed = at_once(batch, kv, aux_layers)
        return computed
    if aux_layers:
        hidden, aux = model.forward_with_aux(batch, kv, aux_layers)
    else:
        hidden, aux = model.forward(batch, kv), {}
    return Computed(hidden, aux, model.compute_logits(hidden[batch.logits_indices]))
