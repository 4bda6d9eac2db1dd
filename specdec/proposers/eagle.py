"""EAGLE heads draft from the target's own hidden states: one layer, its KV beside the target's (DESIGN.md, D3).

The entry of position p pairs the token there with the target's feature at p - 1. Committed positions are computed from
true features, drafted ones from the head's own outputs; these are guesses, and are computed anew once the target has
confirmed their tokens. EAGLE-1/2: arXiv 2401.15077, 2406.16858; EAGLE-3: 2503.01840.
"""

from __future__ import annotations

from collections.abc import Sequence as Many

import torch

from specdec.core.scheduler import Schedule, ScheduledRow
from specdec.core.sequence import Sequence
from specdec.models.eagle import FIRST_ENTRY, EagleHead
from specdec.proposers.base import ProposalInput, ProposerContext, TargetStates, Wants
from specdec.proposers.features import FeatureStore
from specdec.proposers.growing import Grower, Growth, Guesses, Vocabulary, grown
from specdec.proposers.heads import HeadSettings
from specdec.proposers.own_kv import LengthLimit, level_batch, missing_row, parts, start_growth
from specdec.step.batch import Batch
from specdec.step.kv_cache import KVCache
from specdec.step.model import Computed
from specdec.types import Draft


class EagleProposer:
    """Keeps of a sequence its KV, and the feature that the next entry needs."""

    def __init__(self, settings: HeadSettings, context: ProposerContext) -> None:
        assert isinstance(context.draft_model, EagleHead)
        self.context = context
        self.head: EagleHead = context.draft_model
        self.kv = KVCache(self.head.kv_layout(), context.num_blocks, context.block_size, context.device)
        self.features = FeatureStore(
            context.num_blocks, context.block_size, self.head.feature_size, self.head.dtype, context.device
        )
        shape = grown(settings.tree_choice, context.num_speculative_tokens)
        aux = self.head.aux_layers
        self.wants = Wants(hidden=not aux, aux_layers=aux, num_slots=shape.num_slots)
        self._grower = Grower(
            context.method,
            shape,
            context.kernels,
            context.verifier,
            samples=settings.samples,
            keeps_kv=False,
            vocabulary=Vocabulary.of(self.head.draft_token_ids, self.head.num_logits, context.vocab_size),
            confidence_threshold=settings.confidence_threshold,
        )
        self._limit = LengthLimit("the draft head", self.head.max_model_len)

    @property
    def kv_caches(self) -> tuple[KVCache, ...]:
        return (self.kv,)

    @property
    def sayable_token_ids(self) -> torch.Tensor | None:
        """The target's ids of the tokens that the head can guess, int64 [Vd]; None: all."""
        return self.head.draft_token_ids

    def forget(self, sequence: Sequence) -> None:
        self.features.forget(sequence)

    def propose(self, sequences: Many[Sequence], inp: ProposalInput) -> list[Draft | None]:
        """A draft per sequence; None where the features of an earlier step are lost, so that the head cannot go on."""
        growths = [
            start_growth(sequence, self._limit.reachable(sequence, length), self.kv.block_size)
            for sequence, length in zip(sequences, inp.lengths, strict=True)
        ]
        states = inp.states or [None] * len(growths)
        features = [None if each is None else self._features(each) for each in states]
        is_lost, read = self._catch_up(growths, states, features)
        outputs = read.hidden

        def step(live: list[Growth]) -> Guesses:
            """Compute the frontiers from the outputs at their parents."""
            nonlocal outputs
            above = [growth.rows[growth.parents[node]] for growth in live for node in growth.frontier]
            batch = level_batch(live, self.kv.block_size, self.context.device)
            computed = self.head.compute(batch, self.kv, outputs[above])
            outputs = computed.hidden
            return Guesses(computed.logits, computed.largest)

        drafts = self._grower.grow(growths, Guesses(read.logits, read.largest), step)
        # Only now: had anything failed, the next call would go on from where this one did.
        for sequence, own, known in zip(sequences, states, features, strict=True):
            if own is not None and known is not None:
                self.features.keep(sequence, own, known)
        return [None if lost else draft for lost, draft in zip(is_lost, drafts, strict=True)]

    def _catch_up(
        self, growths: Many[Growth], states: Many[TargetStates | None], features: Many[torch.Tensor | None]
    ) -> tuple[list[bool], Computed]:
        """Compute what the cache lacks of committed tokens. Answers which sequences cannot be followed, and what there
        is after the last token of those that draft."""
        rows: list[ScheduledRow] = []
        before: list[torch.Tensor] = []
        is_lost = []
        for growth, own, known in zip(growths, states, features, strict=True):
            row = missing_row(growth, FIRST_ENTRY, self.head.max_model_len)
            needed = None
            if row is not None and own is not None and known is not None:
                needed = self.features.of_row(row, own, known)
            is_lost.append(row is not None and needed is None)
            if row is not None and needed is not None:
                rows.append(row)
                before.append(needed)
            else:
                growth.frontier = []
        return is_lost, self._read(rows, before)

    def _features(self, states: TargetStates) -> torch.Tensor:
        """What the target computed, [n, F]."""
        if not self.head.aux_layers:
            assert states.hidden is not None
            return states.hidden
        return torch.cat([states.aux[layer] for layer in self.head.aux_layers], dim=-1)

    def _read(self, rows: Many[ScheduledRow], features: Many[torch.Tensor]) -> Computed:
        """Compute committed tokens; what there is at the sequences' ends."""
        read: list[Computed] = []
        flat, at = torch.cat([*features]) if features else torch.empty(0), 0
        for part in parts(rows, self.context.max_num_batched_tokens):
            batch = Batch.build(Schedule(part), self.kv.block_size, self.context.device)
            read.append(self.head.read(batch, self.kv, flat[at : at + batch.num_tokens]))
            at += batch.num_tokens
        if len(read) == 1:
            return read[0]
        size, vocab = self.head.hidden_size, self.head.num_logits
        hidden = [torch.empty(0, size, dtype=self.head.dtype, device=self.context.device)]
        logits = [torch.empty(0, vocab, device=self.context.device)]
        return Computed(
            torch.cat([*hidden, *(each.hidden for each in read)]),
            {},
            torch.cat([*logits, *(each.logits for each in read)]),
        )
