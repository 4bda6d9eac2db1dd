"""What `specdec bench overhead` measures of draft heads: the time of a drafted token outside the head itself.

The proposer is the real one, around an EAGLE-3 head that answers at once: what is left is catching up, laying out
batches, the reduced vocabulary, choosing tokens and keeping features.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from specdec.config import SpeculativeConfig
from specdec.core.sequence import Sequence as Sample
from specdec.kernels import choose_backend
from specdec.models.config import LayerConfig, ModelConfig, RopeConfig
from specdec.models.decoder import Decoder
from specdec.models.eagle import EagleHead
from specdec.models.head_config import EagleConfig
from specdec.proposers.base import ProposalInput, ProposerContext, TargetStates
from specdec.proposers.registry import build_proposer
from specdec.step.batch import Batch
from specdec.step.kv_cache import KVCache
from specdec.step.model import Computed
from specdec.types import Request, SamplingParams

VOCAB_SIZE = 49_152
DRAFT_VOCAB_SIZE = 8_192
HIDDEN = 64
AUX_LAYERS = (1, 2, 3)
BLOCK_SIZE = 16
CONTEXT = 512
COMMITTED = 3
"""Tokens that a step adds."""
NUM_SPECULATIVE_TOKENS = 4
STEPS = 200
TARGET_US = 300.0


@dataclass(frozen=True)
class HeadTime:
    """Median time of a drafted token outside the head, in microseconds."""

    batch_size: int
    median_us: float
    target_us: float


class InstantHead(EagleHead):
    """An EAGLE-3 head of the right shapes that computes nothing."""

    def read(self, batch: Batch, kv: KVCache, features: torch.Tensor) -> Computed:
        return self._answered(features[batch.logits_indices, :HIDDEN])

    def compute(self, batch: Batch, kv: KVCache, features: torch.Tensor) -> Computed:
        return self._answered(features)

    def _answered(self, hidden: torch.Tensor) -> Computed:
        count = len(hidden)
        return Computed(hidden, {}, self.answer[:count], (self.largest[0][:count], self.largest[1][:count]))

    def prepare(self, rows: int) -> None:
        """What it is going to say, as if it had always been there."""
        self.answer = torch.randn(rows, DRAFT_VOCAB_SIZE, generator=torch.Generator().manual_seed(0))
        self.largest = self.answer.argmax(-1), self.answer.amax(-1)
        self.draft_token_ids = torch.arange(0, VOCAB_SIZE, VOCAB_SIZE // DRAFT_VOCAB_SIZE)


def measure_heads(num_steps: int = STEPS) -> tuple[HeadTime, ...]:
    """At 1 row and at 16."""
    return tuple(measure_head(size, num_steps) for size in (1, 16))


def measure_head(batch_size: int, num_steps: int) -> HeadTime:
    """Sequences that gain `COMMITTED` tokens a step, a chain drafted after each."""
    blocks = -(-(CONTEXT + COMMITTED * num_steps + BLOCK_SIZE) // BLOCK_SIZE)
    config = SpeculativeConfig("eagle3", NUM_SPECULATIVE_TOKENS, {"model": "instant"})
    proposer = build_proposer(config, _context(batch_size, blocks))
    samples = [_sample(i, blocks) for i in range(batch_size)]
    times = []
    with torch.inference_mode():
        for _ in range(num_steps):
            states = [_advance(sample) for sample in samples]
            start = time.perf_counter()
            drafts = proposer.propose(samples, ProposalInput([NUM_SPECULATIVE_TOKENS] * batch_size, states))
            times.append(time.perf_counter() - start)
            assert all(draft is not None and len(draft) == NUM_SPECULATIVE_TOKENS for draft in drafts)
            for sample in samples:
                sample.num_draft_computed_tokens = sample.num_tokens
    drafted = batch_size * NUM_SPECULATIVE_TOKENS
    return HeadTime(batch_size, 1e6 * statistics.median(times) / drafted, TARGET_US)


def _context(batch_size: int, blocks: int) -> ProposerContext:
    kernels = choose_backend("cpu")
    head = InstantHead(
        EagleConfig("eagle3", _model(1), HIDDEN, AUX_LAYERS, DRAFT_VOCAB_SIZE),
        Decoder(_model(4), kernels, blocks * BLOCK_SIZE),
        kernels,
        blocks * BLOCK_SIZE,
    )
    for name, parameter in [*head.named_parameters()]:
        owner, _, attribute = name.rpartition(".")
        filled = torch.nn.Parameter(torch.zeros(parameter.shape), requires_grad=False)
        setattr(head.get_submodule(owner), attribute, filled)
    head.prepare(batch_size)
    return ProposerContext(
        vocab_size=VOCAB_SIZE,
        num_blocks=batch_size * blocks,
        block_size=BLOCK_SIZE,
        max_num_batched_tokens=2048,
        verifier="auto",
        kernels=kernels,
        device=torch.device("cpu"),
        num_speculative_tokens=NUM_SPECULATIVE_TOKENS,
        method="eagle3",
        draft_model=head,
    )


def _model(layers: int) -> ModelConfig:
    return ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=VOCAB_SIZE,
        hidden_size=HIDDEN,
        intermediate_size=HIDDEN,
        num_heads=1,
        num_kv_heads=1,
        head_dim=HIDDEN,
        max_position_embeddings=1 << 20,
        layers=(LayerConfig(rope=RopeConfig(rotary_dim=HIDDEN)),) * layers,
    )


def _sample(index: int, blocks: int) -> Sample:
    request = Request(str(index), (1,) * CONTEXT, SamplingParams(temperature=0), seed=0, arrival=index)
    table = list(range(index * blocks, (index + 1) * blocks))
    return Sample(request, 0, [1] * CONTEXT, num_computed_tokens=CONTEXT - 1, block_table=table)


def _advance(sample: Sample) -> TargetStates:
    """A step of the target: what it computed, all of it the first time."""
    start = sample.num_computed_tokens if sample.num_draft_computed_tokens else 0
    sample.token_ids.extend([1] * COMMITTED)
    sample.num_computed_tokens = sample.num_tokens - 1
    count = sample.num_computed_tokens - start
    return TargetStates(start, count, aux={layer: torch.zeros(count, HIDDEN) for layer in AUX_LAYERS})


def head_lines(times: Sequence[HeadTime]) -> list[str]:
    """The measurements as lines of a table for a person."""
    lines = [
        "An EAGLE-3 head's proposer outside the head, in microseconds a drafted token; "
        f"k = {NUM_SPECULATIVE_TOKENS}, medians of {STEPS} steps",
        "  ".join(f"{name:>8}" for name in ("rows", "median", "target")),
    ]
    for each in times:
        met = "<" if each.median_us < each.target_us else "NOT <"
        lines.append(f"{each.batch_size:8}  {each.median_us:8.1f}  {f'{met} {each.target_us:g}':>8}")
    return lines
