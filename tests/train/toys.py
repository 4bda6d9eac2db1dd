"""A tiny target for training: its parts, samples of its own, and its states at them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from specdec.core.scheduler import Schedule, ScheduledRow
from specdec.core.sequence import Sequence as Row
from specdec.models.decoder import Decoder
from specdec.step.batch import Batch
from specdec.step.kv_cache import KVCache
from specdec.train.loop import TrainingData
from specdec.train.samples import Item
from specdec.train.survey import survey
from specdec.train.target import TargetParts
from specdec.types import Request, SamplingParams
from tests.heads import CPU

AUX_LAYERS = (1, 2, 4)


def row(token_ids: Sequence[int]) -> Row:
    """A sequence that owns the blocks 0, 1, ... of 4 tokens."""
    found = Row(Request("toy", tuple(token_ids), SamplingParams(), 0, 0), 0, list(token_ids))
    found.block_table = list(range(64))
    return found


def parts_of(target: Decoder) -> TargetParts:
    last = dict(target.layers[-1].named_parameters())
    return TargetParts(
        target.config,
        target.embed_tokens.weight.float(),
        target.output_matrix().float(),
        target.norm.weight.float(),
        {name: value.float() for name, value in last.items()},
    )


@torch.no_grad()
def states_of(target: Decoder, token_ids: Sequence[int]) -> torch.Tensor:
    """[n, (A + 1) * H], in the target's dtype."""
    kv = KVCache(target.kv_layout(), 64, 4, CPU)
    batch = Batch.build(Schedule((ScheduledRow(row(token_ids), 0, len(token_ids)),)), 4, CPU)
    final, aux = target.forward_with_aux(batch, kv, AUX_LAYERS)
    return torch.cat([*(aux[layer] for layer in AUX_LAYERS), final], -1)


@torch.no_grad()
def greedy(target: Decoder, prompt: Sequence[int], length: int) -> list[int]:
    """The prompt and the target's own answer of `length` tokens."""
    tokens = list(prompt)
    for _ in range(length):
        final = states_of(target, tokens)[-1:, -target.config.hidden_size :]
        tokens.append(int(target.compute_logits(final).argmax()))
    return tokens


@dataclass(frozen=True)
class ToySample:
    token_ids: np.ndarray
    num_prompt_tokens: int


@dataclass
class ToyData:
    """Samples and states in memory."""

    samples: list[ToySample] = field(default_factory=list)
    kept: list[torch.Tensor] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> ToySample:
        return self.samples[index]

    def states(self, index: int) -> torch.Tensor:
        return self.kept[index]

    def item(self, index: int) -> Item:
        sample = self.samples[index]
        return Item(torch.from_numpy(sample.token_ids), sample.num_prompt_tokens, self.kept[index])


def toy_data(target: Decoder, count: int, *, length: int = 20, prompt: int = 4, seed: int = 0) -> ToyData:
    """Greedy answers of the target to random prompts, states in float32."""
    rng = np.random.default_rng(seed)
    data = ToyData()
    for _ in range(count):
        tokens = greedy(target, rng.integers(0, target.config.vocab_size, prompt).tolist(), length)
        data.samples.append(ToySample(np.array(tokens), prompt))
        data.kept.append(states_of(target, tokens).float())
    return data


def surveyed(data: ToyData, vocab_size: int, held_out_share: float = 0.0) -> TrainingData:
    return TrainingData(data, data, survey(data, vocab_size, held_out_share), {"name": "toy"})
