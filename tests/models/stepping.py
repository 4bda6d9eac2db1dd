"""Run a decoder over token lists, step by step, through a paged cache whose blocks lie scattered and full of NaN."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import torch

from specdec.core.scheduler import Schedule, ScheduledRow
from specdec.core.sequence import Sequence
from specdec.models.decoder import Decoder
from specdec.models.eagle import EagleHead
from specdec.step.batch import Batch
from specdec.step.kv_cache import KVCache
from specdec.types import EMPTY_DRAFT, Draft, Request, SamplingParams

BLOCK_SIZE = 4


@dataclass(frozen=True)
class Span:
    """What a step computes of one row: `count` committed tokens from `start`, then a draft."""

    sequence: Sequence
    start: int
    count: int
    draft: Draft = EMPTY_DRAFT


@dataclass
class Stepper:
    """A decoder or a head, its cache, and a shuffled list of free blocks."""

    decoder: Decoder | EagleHead
    num_blocks: int = 256
    free: list[int] = field(init=False)
    kv: KVCache = field(init=False)

    def __post_init__(self) -> None:
        self.kv = KVCache(self.decoder.kv_layout(), self.num_blocks, BLOCK_SIZE, torch.device("cpu"))
        self.kv.poison()
        self.free = list(range(self.num_blocks))
        random.Random(0).shuffle(self.free)

    def sequence(self, token_ids: list[int], name: str = "row") -> Sequence:
        request = Request(name, tuple(token_ids), SamplingParams(), seed=0, arrival=0)
        return Sequence(request, 0, list(token_ids))

    def batch(self, spans: list[Span]) -> Batch:
        """The tensors of a step over the spans, which get the blocks they lack."""
        rows = [ScheduledRow(s.sequence, s.start, s.count + len(s.draft), s.draft) for s in spans]
        for row in rows:
            while len(row.sequence.block_table) * BLOCK_SIZE < row.end:
                row.sequence.block_table.append(self.free.pop())
        return Batch.build(Schedule(tuple(rows)), BLOCK_SIZE, torch.device("cpu"))

    @torch.inference_mode()
    def step(self, spans: list[Span]) -> list[torch.Tensor]:
        """Logits of every position of every span, [count + draft, vocab] each."""
        batch = self.batch(spans)
        hidden = self.decoder(batch, self.kv)
        return list(self.decoder.compute_logits(hidden).split([row.num_scheduled_tokens for row in batch.rows]))


def chunked_logits(decoder: Decoder, prompts: list[list[int]], chunk: int) -> list[torch.Tensor]:
    """Logits at every position of every prompt, all rows advancing together by `chunk` tokens a step."""
    stepper = Stepper(decoder)
    sequences = [stepper.sequence(prompt, f"row {i}") for i, prompt in enumerate(prompts)]
    parts: list[list[torch.Tensor]] = [[] for _ in prompts]
    for start in range(0, max(map(len, prompts)), chunk):
        active = [i for i, prompt in enumerate(prompts) if start < len(prompt)]
        spans = [Span(sequences[i], start, min(chunk, len(prompts[i]) - start)) for i in active]
        for i, logits in zip(active, stepper.step(spans), strict=True):
            parts[i].append(logits)
    return [torch.cat(part) for part in parts]


def drafted_logits(decoder: Decoder, prompt: list[int]) -> torch.Tensor:
    """Logits at every position of `prompt`, its first token committed and all others one chain draft."""
    stepper = Stepper(decoder)
    return stepper.step([Span(stepper.sequence(prompt[:1]), 0, 1, Draft(tuple(prompt[1:])))])[0]
