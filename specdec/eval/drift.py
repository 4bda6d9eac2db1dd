"""Rounding, measured: the same text computed one token at a time, as plain decoding does, and as verified drafts.

Kernels may round a row otherwise when more rows are computed with it. Where two tokens are closer than that, either may
come out on top without anything being wrong: a tie. Both ways are computed here from scratch, in a cache of their own,
so that nothing that went wrong in the engine can pass for rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass

import torch

from specdec.core.scheduler import Schedule, ScheduledRow
from specdec.core.sequence import Sequence
from specdec.engine import Engine
from specdec.kernels import reference
from specdec.sampling.process import SamplingRow, process_logits
from specdec.sampling.rng import NoiseKey, Stream, gumbel
from specdec.step.batch import Batch
from specdec.step.kv_cache import KVCache
from specdec.types import Draft, Request, SamplingParams

TIE_FACTOR = 4.0
"""A gap of up to this many times the drift is a tie. Two roundings that differ by d can swap tokens 2 d apart; they are
not the very roundings of the run, hence twice that."""

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.3, torch.int8: 0.3}
"""By dtype, how far rounding may move a vector, relative to its length; a wrong token moves it by about 1."""


@dataclass(frozen=True)
class Context:
    """A text at whose end two runs differ: the prompt, what both said, and how the next token is chosen."""

    token_ids: tuple[int, ...]
    num_prompt_tokens: int
    params: SamplingParams
    """With a seed, unless it is greedy."""


@dataclass(frozen=True)
class Gap:
    """`margin` separates the two best scores, `gap` the worse of two tokens from the best score; scores are logits, or
    for a sampled token logits by temperature with noise. `drift` is the largest difference of such a score between a
    verify row and a decode row of the same position; `relative_drift` that of the logits by their size."""

    margin: float
    gap: float
    drift: float
    relative_drift: float

    @property
    def is_tie(self) -> bool:
        return self.gap < TIE_FACTOR * self.drift


@torch.inference_mode()
def measure_gap(engine: Engine, context: Context, tokens: tuple[int, int], longest_draft: int, copies: int) -> Gap:
    """How near the two `tokens` are at the end of `context`, and the drift over all of its generated part.

    Drafts have up to `longest_draft` tokens; `copies` sequences are computed at once in one of the ways compared.
    """
    plain = torch.stack([*_replay(engine, context, (), 1)])
    drift = largest = 0.0
    room = max(0, min(longest_draft, engine.max_model_len - len(context.token_ids)))
    for filler in {(), tokens[:room][:1], tokens[:1] * room}:
        for count in {1, copies}:
            for ours, theirs in zip(plain, _replay(engine, context, filler, count), strict=True):
                drift = max(drift, _difference(ours, theirs))
                largest = max(largest, float(ours[ours.isfinite()].abs().max()))
    scores = _scores(plain[-1], context)
    best = scores.topk(2).values
    worse = min(float(scores[token]) for token in tokens)
    scale = 1.0 if context.params.is_greedy else 1.0 / context.params.temperature
    relative = drift / largest if largest else 0.0
    return Gap(float(best[0] - best[1]), float(best[0]) - worse, drift * scale, relative)


def _difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The largest difference of two rows [V] of logits; what is -inf in both is equal."""
    return float(torch.where(ours == theirs, 0.0, (ours - theirs).abs()).max())


def _replay(engine: Engine, context: Context, filler: tuple[int, ...], copies: int) -> Iterator[torch.Tensor]:
    """Logits [V] after the prompt and after each generated token of `context`: each computed with as many tokens
    drafted behind it as `filler` has, which stand behind the context's end. Of `copies` sequences, the last one's."""
    runner, size = engine.runner, engine.config.block_size
    text, end_of_context = (*context.token_ids, *filler), len(context.token_ids)
    num_blocks = -(-len(text) // size)
    kv = KVCache(runner.model.kv_layout(), copies * num_blocks, size, runner.device)
    tables = [list(range(i * num_blocks, (i + 1) * num_blocks)) for i in range(copies)]
    start = 0
    while start < end_of_context:
        committed = max(start + 1, context.num_prompt_tokens)
        end = min(committed + len(filler), len(text)) if start else committed
        rows = tuple(_row(context, text[:end], table, start, committed) for table in tables)
        batch = Batch.build(Schedule(rows), size, runner.device)
        hidden = runner.model.forward(batch, kv)
        logits = runner.model.compute_logits(hidden[batch.logits_indices[batch.logits_start[-2] :]])
        yield from logits[: end_of_context - committed + 1]
        start = end


def _row(context: Context, text: tuple[int, ...], table: list[int], start: int, committed: int) -> ScheduledRow:
    request = Request("replay", text[: context.num_prompt_tokens], context.params, seed=0, arrival=0)
    sequence = Sequence(request, 0, list(text[:committed]), block_table=table)
    return ScheduledRow(sequence, start, len(text) - start, Draft(text[committed:]))


def _scores(logits: torch.Tensor, context: Context) -> torch.Tensor:
    """What the next token is the argmax of, float64 [V]."""
    params, seed = context.params, context.params.seed or 0
    row = SamplingRow(params, seed, 0, context.token_ids, context.num_prompt_tokens)
    scores = process_logits(logits[None], [row], reference)[0].double()
    if params.is_greedy:
        return scores
    key = NoiseKey(seed, 0, len(context.token_ids))
    return scores + gumbel([key], Stream.RESAMPLE, len(scores), scores.device)[0]


def common_length(one: Many[int], other: Many[int]) -> int:
    """How many leading tokens two lists share."""
    shorter = min(len(one), len(other))
    return next((i for i in range(shorter) if one[i] != other[i]), shorter)
