"""The target's states, kept as the engine computes them.

A target in a target's place, so that whoever drafts, and when, is nobody's concern here: prompt chunks, decoding,
chains, trees and the last step of an answer all pass through its forward pass. What is kept rests on one fact: the
state of a position depends on the tokens up to it and on nothing else. So a committed token's state is right whenever
it was computed (and may be computed again, after a preemption), and a drafted node's is right exactly if the tokens on
its path are those that the sequence has by now: no verdict need be known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from specdec.core.scheduler import ScheduledRow
from specdec.step.batch import Batch
from specdec.step.kv_cache import KVCache, KVLayout
from specdec.step.model import Computed, Model
from specdec.step.model import compute as compute_step
from specdec.types import Draft

STATE_DTYPE = torch.bfloat16


@dataclass
class _Pending:
    """The states of a draft that is not yet judged: [nodes, width], behind `start` committed tokens."""

    start: int
    draft: Draft
    states: torch.Tensor


@dataclass
class _Kept:
    """Of one request: the states of positions 0 to `end`, and its last draft's."""

    states: torch.Tensor  # bfloat16 [capacity, width]
    end: int = 0
    pending: _Pending | None = None


@dataclass(eq=False)
class Tap:
    """`model` with the inputs of `aux_layers` kept, and its states after the final norm, for requests it is told of.

    A row is [(A + 1) * hidden] in bfloat16: the layers' in order, then the final one.
    """

    model: Model
    aux_layers: tuple[int, ...]
    _kept: dict[str, _Kept] = field(default_factory=dict)
    _capacities: dict[str, int] = field(default_factory=dict)

    def watch(self, request_id: str, capacity: int) -> None:
        """Keep the states of a request's first sample, which will have at most `capacity` tokens."""
        self._capacities[request_id] = capacity

    @torch.inference_mode()
    def take(self, request_id: str, token_ids: Sequence[int]) -> torch.Tensor | None:
        """The states [n, width] of a finished request's n tokens, which are then no longer kept; None where they were
        not all computed. The last row is zero: no step reads the last token."""
        self._capacities.pop(request_id, None)
        kept = self._kept.pop(request_id, None)
        if kept is None:
            return None
        _settle(kept, token_ids)
        if kept.end < len(token_ids) - 1:
            return None
        states = kept.states[: len(token_ids)].clone()
        states[-1] = 0
        return states

    def drop(self, request_id: str) -> None:
        """Forget a request that came to nothing."""
        self._capacities.pop(request_id, None)
        self._kept.pop(request_id, None)

    def forward(self, batch: Batch, kv: KVCache) -> torch.Tensor:
        return self.forward_with_aux(batch, kv, ())[0]

    def forward_with_aux(
        self, batch: Batch, kv: KVCache, aux_layers: Sequence[int]
    ) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        hidden, aux = self.model.forward_with_aux(batch, kv, self._all(aux_layers))
        self._keep(batch, hidden, aux)
        return hidden, aux

    def compute(self, batch: Batch, kv: KVCache, aux_layers: Sequence[int] = ()) -> Computed:
        computed = compute_step(self.model, batch, kv, self._all(aux_layers))
        self._keep(batch, computed.hidden, computed.aux)
        return computed

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.model.compute_logits(hidden)

    def kv_layout(self) -> KVLayout:
        return self.model.kv_layout()

    def _all(self, aux_layers: Sequence[int]) -> tuple[int, ...]:
        return tuple(sorted({*self.aux_layers, *aux_layers}))

    def _keep(self, batch: Batch, hidden: torch.Tensor, aux: dict[int, torch.Tensor]) -> None:
        watched = [row.sequence.request.request_id in self._capacities for row in batch.rows]
        if not any(watched):
            return
        states = pack_states(hidden, aux, self.aux_layers)
        at = 0
        for row, is_watched in zip(batch.rows, watched, strict=True):
            if is_watched and row.sequence.index == 0:
                self._keep_row(row, states[at : at + row.num_scheduled_tokens])
            at += row.num_scheduled_tokens

    def _keep_row(self, row: ScheduledRow, states: torch.Tensor) -> None:
        request_id = row.sequence.request.request_id
        kept = self._kept.get(request_id)
        if kept is None:
            capacity = self._capacities[request_id]
            kept = self._kept[request_id] = _Kept(states.new_empty(capacity, states.shape[1]))
        _settle(kept, row.sequence.token_ids)
        committed = row.num_scheduled_tokens - row.num_draft_tokens
        kept.states[row.start : row.start + committed] = states[:committed]
        if row.start <= kept.end:
            kept.end = max(kept.end, row.start + committed)
        if row.num_draft_tokens:
            kept.pending = _Pending(row.start + committed, row.draft, states[committed:].clone())


def _settle(kept: _Kept, token_ids: Sequence[int]) -> None:
    """Keep of the last draft what the sequence's tokens have become."""
    pending, kept.pending = kept.pending, None
    if pending is None or pending.start > kept.end:
        return
    node, position = -1, pending.start
    while position < len(token_ids):
        node = next((n for n in pending.draft.children(node) if pending.draft.token_ids[n] == token_ids[position]), -1)
        if node < 0:
            return
        kept.states[position] = pending.states[node]
        position += 1
        kept.end = max(kept.end, position)


def pack_states(hidden: torch.Tensor, aux: dict[int, torch.Tensor], aux_layers: Sequence[int]) -> torch.Tensor:
    """[T, (A + 1) * hidden], in bfloat16, of a step's states."""
    return torch.cat([*(aux[layer] for layer in aux_layers), hidden], dim=-1).to(STATE_DTYPE)
