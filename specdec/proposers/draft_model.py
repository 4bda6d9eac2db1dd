"""A smaller model drafts, or the target's own first layers: level after level, from a KV cache of its own.

Prompt chunks, prefix hits, preemption, pauses and the token after a whole accepted draft are all the same: the cache is
computed from where it last was to the sequence's end (D1). What of a draft is accepted stays in it.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass, replace

import torch

from specdec.config import KV_CACHE_DTYPES, QUANTIZATIONS, unknown_name
from specdec.core.scheduler import Schedule
from specdec.core.sequence import Sequence
from specdec.proposers.base import DraftModel, ProposalInput, ProposerContext, Wants
from specdec.proposers.growing import Grower, Growth, Guesses, check_confidence_threshold, check_sample_method, grown
from specdec.proposers.own_kv import LengthLimit, level_batch, missing_row, parts, start_growth
from specdec.proposers.shapes import TreeChoice
from specdec.step.batch import Batch
from specdec.step.kv_cache import KVCache
from specdec.step.model import compute
from specdec.types import Draft

METHOD = "draft"


@dataclass(frozen=True)
class DraftModelSettings:
    """Who drafts: `model`, which is an alias, a path or a hub name (vLLM's key), or `num_draft_layers` of the target.

    A model of its own has the target's `quantization` and `kv_cache_dtype`, unless it is given others here.
    With `draft_sample_method` "probabilistic" (vLLM's key) a request that samples is drafted by sampling from the
    draft's law; "greedy" always takes its likeliest token. A draft goes on as long as its probability, by the
    draft model's own law, is at least `confidence_threshold`.
    """

    model: str | None = None
    num_draft_layers: int | None = None
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    draft_sample_method: str = "probabilistic"
    confidence_threshold: float = 0.0
    tree: str = TreeChoice.tree
    tree_nodes: int = TreeChoice.tree_nodes
    tree_width: int = TreeChoice.tree_width

    def __post_init__(self) -> None:
        if (self.model is None) == (self.num_draft_layers is None):
            raise ValueError(
                "the proposer 'draft' needs one of model (a draft model: --draft-model) and num_draft_layers (the "
                "target's own first layers: --draft-layers)"
            )
        if self.model is not None and (not isinstance(self.model, str) or not self.model):
            raise ValueError(f"the draft's model must be an alias, a path or a hub name; got {self.model!r}")
        layers = self.num_draft_layers
        if layers is not None and (not isinstance(layers, int) or isinstance(layers, bool) or layers < 1):
            raise ValueError(f"num_draft_layers must be a positive integer; got {layers!r}")
        self._check_precision()
        check_sample_method(self.draft_sample_method)
        check_confidence_threshold(self.confidence_threshold)
        TreeChoice(self.tree, self.tree_nodes, self.tree_width)

    def _check_precision(self) -> None:
        for name, known in (("quantization", QUANTIZATIONS), ("kv_cache_dtype", KV_CACHE_DTYPES)):
            value = getattr(self, name)
            if value is None:
                continue
            if self.model is None:
                raise ValueError(f"the draft's {name} is of a draft model; the target's own layers have the target's")
            if value not in known:
                raise ValueError(unknown_name(f"{name} of the draft", value, known))

    @property
    def tree_choice(self) -> TreeChoice:
        return TreeChoice(self.tree, self.tree_nodes, self.tree_width)

    def num_nodes(self, num_speculative_tokens: int) -> int:
        return self.tree_choice.num_nodes(num_speculative_tokens)


class DraftModelProposer:
    """Keeps nothing of a sequence but its KV."""

    def __init__(self, settings: DraftModelSettings, context: ProposerContext) -> None:
        assert isinstance(context.draft_model, DraftModel)
        self.settings = settings
        self.context = context
        self.draft_model: DraftModel = context.draft_model
        self.model = self.draft_model.model
        self.kv = KVCache(self.model.kv_layout(), context.num_blocks, context.block_size, context.device)
        shape = grown(settings.tree_choice, context.num_speculative_tokens)
        self.wants = Wants(num_slots=shape.num_slots)
        self._grower = Grower(
            METHOD,
            shape,
            context.kernels,
            context.verifier,
            samples=settings.draft_sample_method == "probabilistic",
            keeps_kv=True,
            confidence_threshold=settings.confidence_threshold,
        )
        self._limit = LengthLimit("the draft model", self.draft_model.max_model_len)

    @property
    def kv_caches(self) -> tuple[KVCache, ...]:
        return (self.kv,)

    def forget(self, sequence: Sequence) -> None:
        """Nothing to do: blocks are the engine's."""

    def propose(self, sequences: Many[Sequence], inp: ProposalInput) -> list[Draft | None]:
        """A draft per sequence, shorter than asked at the draft model's own limit or where its law is unusable."""
        growths = [
            start_growth(sequence, self._limit.reachable(sequence, length), self.kv.block_size)
            for sequence, length in zip(sequences, inp.lengths, strict=True)
        ]
        return [*self._grower.grow(growths, Guesses(self._catch_up(growths)), self._step)]

    def _catch_up(self, growths: Many[Growth]) -> torch.Tensor:
        """Compute what the cache lacks of committed tokens; logits [n, vocab] after the last, of those that draft."""
        missing = [missing_row(growth, 0, self.draft_model.max_model_len) for growth in growths]
        logits = [
            self._forward(Batch.build(Schedule(part), self.kv.block_size, self.context.device)).logits
            for part in parts([row for row in missing if row is not None], self.context.max_num_batched_tokens)
        ]
        return torch.cat(logits) if logits else torch.empty(0, self.context.vocab_size)

    def _step(self, live: list[Growth]) -> Guesses:
        """Compute the frontiers."""
        return self._forward(level_batch(live, self.kv.block_size, self.context.device))

    def _forward(self, batch: Batch) -> Guesses:
        """What may follow the batch's logits positions, of the target's vocabulary: what the draft lacks is -inf."""
        own, wanted = self.draft_model.vocab_size, self.context.vocab_size
        if own < wanted:
            # Ids beyond the draft's are padding, so hardly ever there; as its last one they do no harm.
            batch = replace(batch, token_ids=batch.token_ids.clamp(max=own - 1))
        computed = compute(self.model, batch, self.kv)
        if own == wanted:
            return Guesses(computed.logits, computed.largest)
        logits = computed.logits[:, :wanted]
        return Guesses(torch.nn.functional.pad(logits, (0, wanted - logits.shape[1]), value=float("-inf")))
