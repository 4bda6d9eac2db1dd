"""A smaller model drafts, or the target's own first layers: one token after the other, from a KV cache of its own.

The cache is addressed by the target's block tables (D3), and `Sequence.num_draft_computed_tokens` says how far it has
come, so there is one kind of step: compute from there to the sequence's end, then draft (D1). Prompt chunks, prefix
hits, preemption, pauses and the token after a whole accepted draft are all the same. What is drawn goes through the
sampling pipeline as if it were the target's: the law is the one after temperature, filters and penalties.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from specdec.config import unknown_name
from specdec.core.scheduler import Schedule, ScheduledRow
from specdec.core.sequence import Sequence
from specdec.proposers.base import NOTHING, DraftModel, ProposalInput, ProposerContext
from specdec.sampling.emission import law
from specdec.sampling.process import SamplingRow, process_logits
from specdec.sampling.rng import NoiseKey, Stream, gumbel_argmax
from specdec.step.batch import Batch
from specdec.step.kv_cache import KVCache
from specdec.types import Draft

METHOD = "draft"
SAMPLE_METHODS = ("probabilistic", "greedy")


@dataclass(frozen=True)
class DraftModelSettings:
    """Who drafts: `model`, which is an alias, a path or a hub name (vLLM's key), or `num_draft_layers` of the target.

    With `draft_sample_method` "probabilistic" (vLLM's key) a request that samples is drafted by sampling from the
    draft's law; "greedy" always takes its likeliest token.
    """

    model: str | None = None
    num_draft_layers: int | None = None
    draft_sample_method: str = "probabilistic"

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
        if self.draft_sample_method not in SAMPLE_METHODS:
            raise ValueError(unknown_name("draft_sample_method", self.draft_sample_method, SAMPLE_METHODS))

    def num_nodes(self, num_speculative_tokens: int) -> int:
        """A chain's."""
        return num_speculative_tokens


@dataclass
class _Drafting:
    """One sequence's draft as it grows."""

    sequence: Sequence
    length: int
    token_ids: list[int]
    """The committed tokens and the drafted ones."""
    laws: list[torch.Tensor] = field(default_factory=list)  # float64 [vocab] each, where drafted tokens were drawn
    ended: bool = False
    """No further token can be drawn, though more were wanted."""

    @property
    def num_drafted(self) -> int:
        return len(self.token_ids) - self.sequence.num_tokens

    @property
    def goes_on(self) -> bool:
        return not self.ended and self.num_drafted < self.length

    def draft(self) -> Draft:
        drafted = tuple(self.token_ids[self.sequence.num_tokens :])
        return Draft(drafted, None, torch.stack(self.laws) if self.laws else None, METHOD, has_kv=True)


class DraftModelProposer:
    """Keeps nothing of a sequence but its KV."""

    wants = NOTHING

    def __init__(self, settings: DraftModelSettings, context: ProposerContext) -> None:
        assert context.draft_model is not None
        self.settings = settings
        self.context = context
        self.draft_model: DraftModel = context.draft_model
        self.model = self.draft_model.model
        self.kv = KVCache(self.model.kv_layout(), context.num_blocks, context.block_size, context.device)
        self._has_warned = False

    @property
    def kv_caches(self) -> tuple[KVCache, ...]:
        return (self.kv,)

    def forget(self, sequence: Sequence) -> None:
        """Nothing to do: blocks are the engine's."""

    def propose(self, sequences: Many[Sequence], inp: ProposalInput) -> list[Draft]:
        """One chain per sequence, shorter than asked at the draft model's own limit or where its law is unusable."""
        draftings = [
            _Drafting(sequence, self._reachable(sequence, length), list(sequence.token_ids) if length else [])
            for sequence, length in zip(sequences, inp.lengths, strict=True)
        ]
        logits = self._catch_up(draftings)
        live = [drafting for drafting in draftings if drafting.length]
        while live:
            self._draw(live, logits)
            live = [drafting for drafting in live if drafting.goes_on]
            if live:
                logits = self._step(live)
        return [drafting.draft() for drafting in draftings]

    def _reachable(self, sequence: Sequence, length: int) -> int:
        """How many of `length` tokens the draft model's limit allows; the last one is drawn, but not computed."""
        room = max(0, self.draft_model.max_model_len - sequence.num_tokens + 1)
        if length > room and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"the draft model takes at most {self.draft_model.max_model_len} tokens; past them nothing is drafted",
                stacklevel=2,
            )
        return min(length, room)

    def _catch_up(self, draftings: Many[_Drafting]) -> torch.Tensor:
        """Compute what the cache lacks of committed tokens; logits [n, vocab] after the last, of those that draft."""
        rows = []
        for drafting in draftings:
            sequence = drafting.sequence
            end = sequence.num_tokens if drafting.length else sequence.num_computed_tokens
            start = sequence.num_draft_computed_tokens
            missing = min(end, self.draft_model.max_model_len) - start
            if missing > 0:
                rows.append(ScheduledRow(sequence, start, missing))
        logits = []
        for part in _parts(rows, self.context.max_num_batched_tokens):
            batch = Batch.build(Schedule(part), self.kv.block_size, self.context.device)
            logits.append(self._forward(batch))
        return torch.cat(logits) if logits else torch.empty(0, self.context.vocab_size)

    def _step(self, live: Many[_Drafting]) -> torch.Tensor:
        """Compute each draft's last token; logits [n, vocab] after it."""
        tables = np.zeros((len(live), max(len(drafting.sequence.block_table) for drafting in live)), np.int32)
        for row, drafting in zip(tables, live, strict=True):
            row[: len(drafting.sequence.block_table)] = drafting.sequence.block_table
        token_ids = np.array([drafting.token_ids[-1] for drafting in live])
        positions = np.array([len(drafting.token_ids) - 1 for drafting in live])
        return self._forward(Batch.of_tokens(token_ids, positions, tables, self.kv.block_size, self.context.device))

    def _forward(self, batch: Batch) -> torch.Tensor:
        """Logits at the batch's logits positions over the target's vocabulary: what the draft lacks is -inf."""
        own, wanted = self.draft_model.vocab_size, self.context.vocab_size
        if own < wanted:
            # Ids beyond the draft's are padding, so hardly ever there; as its last one they do no harm.
            batch = replace(batch, token_ids=batch.token_ids.clamp(max=own - 1))
        hidden = self.model.forward(batch, self.kv)
        logits = self.model.compute_logits(hidden[batch.logits_indices])[:, :wanted]
        return torch.nn.functional.pad(logits, (0, wanted - logits.shape[1]), value=float("-inf"))

    def _draw(self, live: Many[_Drafting], logits: torch.Tensor) -> None:
        """Add a token to each draft, from logits [len(live), vocab]."""
        processed = process_logits(logits, [_sampling_row(drafting) for drafting in live])
        drawn = [i for i, drafting in enumerate(live) if self._is_drawn(drafting)]
        tokens = self.context.kernels.argmax(processed).tolist()
        if drawn:
            # The coupled verifier draws the target's choice of the same position with the same noise.
            is_coupled = self.context.verifier == "coupled"
            keys = [_noise_key(live[i], 0 if is_coupled else live[i].num_drafted) for i in drawn]
            chosen, scores = gumbel_argmax(processed[drawn], keys, Stream.RESAMPLE if is_coupled else Stream.DRAFT)
            laws = None if is_coupled else law(processed[drawn])
            for j, (i, token, score) in enumerate(zip(drawn, chosen.tolist(), scores.tolist(), strict=True)):
                live[i].ended = not math.isfinite(score)
                tokens[i] = token
                if laws is not None and not live[i].ended:
                    live[i].laws.append(laws[j])
        for drafting, token in zip(live, tokens, strict=True):
            if not drafting.ended:
                drafting.token_ids.append(token)

    def _is_drawn(self, drafting: _Drafting) -> bool:
        """Whether the draft samples; otherwise it takes the likeliest token."""
        is_greedy = drafting.sequence.request.params.is_greedy or self.settings.draft_sample_method == "greedy"
        return not is_greedy


def _sampling_row(drafting: _Drafting) -> SamplingRow:
    """The next drafted token as if it were the next one after committed tokens: the same law."""
    request = drafting.sequence.request
    return SamplingRow(
        params=request.params,
        seed=request.seed,
        sample=drafting.sequence.index,
        token_ids=drafting.token_ids,
        num_prompt_tokens=drafting.sequence.num_prompt_tokens,
        min_tokens_ban=request.min_tokens_ban,
        bad_word_ids=request.bad_word_ids,
    )


def _noise_key(drafting: _Drafting, depth: int) -> NoiseKey:
    """Whose noise draws the next drafted token: that of its absolute position, and of its depth in the draft."""
    return NoiseKey(drafting.sequence.request.seed, drafting.sequence.index, len(drafting.token_ids), depth)


def _parts(rows: Many[ScheduledRow], budget: int) -> Iterator[tuple[ScheduledRow, ...]]:
    """The rows in order, cut where more than `budget` tokens would be computed at once."""
    part: list[ScheduledRow] = []
    room = budget
    for row in rows:
        start = row.start
        while start < row.end:
            count = min(room, row.end - start)
            part.append(ScheduledRow(row.sequence, start, count))
            start, room = start + count, room - count
            if not room:
                yield tuple(part)
                part, room = [], budget
    if part:
        yield tuple(part)
