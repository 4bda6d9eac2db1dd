"""Medusa heads (arXiv 2401.10774): each guesses one more token ahead from the target's last hidden state alone.

They keep no KV and see nothing of each other's guesses, so a tree of them costs no more than a chain.
"""

from __future__ import annotations

from collections.abc import Sequence as Many

import torch

from specdec.core.sequence import Sequence
from specdec.models.medusa import MedusaHead
from specdec.proposers.base import ProposalInput, ProposerContext, Wants
from specdec.proposers.growing import ROOT, Grower, Growth, Guesses, Vocabulary, grown
from specdec.proposers.heads import HeadSettings
from specdec.step.kv_cache import KVCache
from specdec.types import Draft


class MedusaProposer:
    """Keeps nothing of a sequence: the state after its last token comes with the question."""

    kv_caches: tuple[KVCache, ...] = ()
    wants = Wants(hidden=True)

    def __init__(self, settings: HeadSettings, context: ProposerContext) -> None:
        assert isinstance(context.draft_model, MedusaHead)
        self.head: MedusaHead = context.draft_model
        shape = grown(settings.tree_choice, min(context.num_speculative_tokens, self.head.num_heads))
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

    @property
    def sayable_token_ids(self) -> torch.Tensor | None:
        """The target's ids of the tokens that the heads can guess, int64 [Vd]; None: all."""
        return self.head.draft_token_ids

    def forget(self, sequence: Sequence) -> None:
        """Nothing to do."""

    def propose(self, sequences: Many[Sequence], inp: ProposalInput) -> list[Draft | None]:
        """A draft per sequence, as deep as there are heads; empty for one that the last step did not compute."""
        hidden: list[torch.Tensor] = []
        growths = []
        for i, (sequence, length) in enumerate(zip(sequences, inp.lengths, strict=True)):
            states = inp.states[i] if inp.states else None
            growth = Growth(sequence, min(length, self.head.num_heads))
            if growth.length and states is not None:
                assert states.hidden is not None
                hidden.append(states.hidden[-1])
                growth.frontier = [ROOT]
            growths.append(growth)
        if not hidden:
            return [*self._grower.grow(growths, Guesses(torch.empty(0)), _no_step)]
        logits = self.head.forward(torch.stack(hidden))  # [heads, n, Vd]
        own = {id(growth): row for row, growth in enumerate(growth for growth in growths if growth.frontier)}

        def step(live: list[Growth]) -> Guesses:
            depth = live[0].depth_of(live[0].frontier[0])
            return Guesses(logits[depth][[own[id(growth)] for growth in live for _ in growth.frontier]])

        return [*self._grower.grow(growths, Guesses(logits[0]), step)]


def _no_step(live: list[Growth]) -> Guesses:
    raise AssertionError("nothing grows")
