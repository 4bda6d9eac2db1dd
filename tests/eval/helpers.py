"""Prompts, engines and clocks for evaluations that take milliseconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from specdec.core.sequence import Sequence as Sample
from specdec.engine import Engine
from specdec.eval.measure import Plan, Variant, prepare
from specdec.eval.prompts import EvalPrompt
from specdec.eval.session import Answer, Step
from specdec.proposers.base import NOTHING, ProposalInput, Proposer
from specdec.step.batch import Batch
from specdec.step.kv_cache import KVCache
from specdec.types import Draft, SpeculationStats
from tests.toys import BYTE_VOCABULARY, EOS, Script, ScriptedModel, byte_tokenizer, make_engine, random_script

PROMPTS = tuple(
    EvalPrompt(task, category, f"{category}-{number}", f"{category} number {number}: abcabcabcabc")
    for task, category in (("chat", "chat"), ("code", "python"), ("code", "rust"))
    for number in range(2)
)


def copying_script(period: int = 3) -> Script:
    """A loop of letters with a slip at every eleventh position: what copies is mostly right, and sometimes wrong."""
    noise = random_script(BYTE_VOCABULARY)

    def script(prefix: tuple[int, ...]) -> np.ndarray:
        logits = noise(prefix).copy()
        if len(prefix) % 11:
            logits[ord("a") + len(prefix) % period] += 12
        return logits

    return script


def toy_model(max_model_len: int = 256) -> ScriptedModel:
    return ScriptedModel(copying_script(), BYTE_VOCABULARY, max_model_len=max_model_len)


def toy_engine(
    model: ScriptedModel | None = None,
    *,
    proposer: str = "ngram",
    proposers: Mapping[str, Proposer] | None = None,
    max_num_batched_tokens: int = 256,
    kv_cache_tokens: int = 8192,
    **options: Any,
) -> Engine:
    return make_engine(
        model or toy_model(),
        proposer=proposer,
        proposers=proposers,
        tokenizer=byte_tokenizer(),
        eos=(EOS,),
        max_num_batched_tokens=max_num_batched_tokens,
        kv_cache_tokens=kv_cache_tokens,
        **options,
    )


def toy_plan(
    engine: Engine,
    variants: Sequence[tuple[str, int]] = (("ngram", 4),),
    *,
    prompts: Sequence[EvalPrompt] = PROMPTS,
    temperatures: Sequence[float] = (0.0,),
    max_tokens: int = 24,
    timing_prompts: int = 2,
    batch_sizes: Sequence[int] = (1, 2),
    concurrency: int = 16,
) -> Plan:
    chosen, ids, skipped = prepare(engine, prompts, None, max_tokens)
    return Plan(
        prompts=tuple(chosen),
        token_ids=tuple(ids),
        variants=tuple(Variant(*variant) for variant in variants),
        temperatures=tuple(temperatures),
        max_tokens=max_tokens,
        seed=0,
        timing_prompts=timing_prompts,
        batch_sizes=tuple(batch_sizes),
        concurrency=concurrency,
        skipped=tuple(skipped),
    )


def answer(
    steps: Sequence[Step], *, tokens: Sequence[int] | None = None, first: float = 0.0, last: float = 0.0
) -> Answer:
    """An answer of these steps after one first token; its tokens are their numbers unless given."""
    stats = SpeculationStats()
    for step in steps:
        stats.record(step.num_drafted, step.num_accepted)
    count = 1 + sum(step.num_tokens for step in steps)
    ids = tuple(range(count) if tokens is None else tokens)
    return Answer(ids, ("bonus",) * len(ids), tuple(steps), stats, "greedy", "bytes", None, first, last)


def drafted(index: int, length: int, accepted: int) -> Step:
    """A step that verified a whole chain."""
    return Step(index, accepted + 1, length, length, length, accepted)


def undrafted(index: int) -> Step:
    return Step(index, 1, 0, 0, 0, 0)


class Clock:
    """Stands still but for what models and proposers say they took."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class TimedModel(ScriptedModel):
    """A scripted model whose pass over M tokens takes `first + more * (M - 1)` seconds of a clock.

    `num_logits` has how many tokens' logits each pass was asked for.
    """

    clock: Clock
    num_logits: list[int]
    first = 1.0
    more = 0.125

    def forward(self, batch: Batch, kv: KVCache) -> torch.Tensor:
        self.clock.now += self.first + self.more * (batch.num_tokens - 1)
        self.num_logits.append(len(batch.logits_indices))
        return super().forward(batch, kv)


def timed_model(clock: Clock) -> TimedModel:
    model = TimedModel(copying_script(), BYTE_VOCABULARY)
    model.clock, model.num_logits = clock, []
    return model


class TimedProposer:
    """Takes `seconds` for each draft that is wanted."""

    kv_caches = ()
    wants = NOTHING

    def __init__(self, inner: Proposer, clock: Clock, seconds: float) -> None:
        self.inner, self.clock, self.seconds = inner, clock, seconds

    def propose(self, sequences: Sequence[Sample], inp: ProposalInput) -> list[Draft]:
        self.clock.now += self.seconds * sum(length > 0 for length in inp.lengths)
        return self.inner.propose(sequences, inp)

    def forget(self, sequence: Sample) -> None:
        self.inner.forget(sequence)
