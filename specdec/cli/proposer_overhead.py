"""What `specdec bench overhead` measures of proposers without a model: the cost of one draft, the engine left out.

A proposer is given one of three lives. "random": no token of a context is like another, so that an index has as many
entries as it can, and what comes after repeats the beginning. "loop": 40 tokens that repeat with some noise, so that
every draft has many matches to choose from. "logits", for one that learns from them: each step verifies its draft and
leaves rows of logits as the engine does, once read and out of the processor's nearest memory.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from specdec.config import SpeculativeConfig
from specdec.core.sequence import Sequence as Sample
from specdec.kernels import choose_backend
from specdec.proposers.base import ProposalInput, Proposer, ProposerContext, TargetStates
from specdec.proposers.registry import build_proposer, num_nodes
from specdec.types import EMPTY_DRAFT, Draft, Request, SamplingParams

VOCAB_SIZE = 49_152
NUM_SPECULATIVE_TOKENS = 4
WARM_UP_STEPS = 100
STEPS = 200
CONTEXTS = (512, 16_000, 32_000)
BATCH_SIZES = (1, 16)
LIVES = {"ngram": ("random",), "suffix": ("random", "loop"), "recycling": ("logits",)}
SETTINGS = {"recycling": {"tree_nodes": 16}}
TARGETS_US = {"ngram": 50.0, "suffix": 100.0, "recycling": 100.0}
GROWTH = 3
"""Tokens a step of a text that was written before."""
LOOP = 40
NOISE = 0.03
ALPHABET = 64
FAVOURED = 8
"""Of these tokens so many stand out in each row of logits: soon all are known, and a tree has its full size."""


@dataclass(frozen=True)
class ProposerTime:
    """A training-free proposer's median cost of one draft, in microseconds of the processor's time a sequence: they
    run on one thread, and what else the machine does is not their cost."""

    method: str
    life: str
    batch_size: int
    context: int
    median_us: float
    target_us: float
    drafted: float
    """Mean number of tokens of a draft."""


class Life(Protocol):
    """Sequences that a proposer drafts for, and what becomes of them in a step."""

    samples: list[Sample]

    def step(self, drafts: Sequence[Draft | None]) -> list[TargetStates | None]:
        """Let every sequence grow; what the target leaves of each."""
        ...


class Written:
    """Texts that go on as they were written, whatever was drafted."""

    def __init__(self, texts: Sequence[Sequence[int]], context: int) -> None:
        self.samples = [_sample(index, text[:context]) for index, text in enumerate(texts)]
        self._texts = texts

    def step(self, drafts: Sequence[Draft | None]) -> list[TargetStates | None]:
        for sample, text in zip(self.samples, self._texts, strict=True):
            sample.token_ids.extend(text[sample.num_tokens : sample.num_tokens + GROWTH])
        return [None] * len(drafts)


class Verified:
    """Sequences that keep the first node of each draft and then one more token, and leave logits of every node."""

    def __init__(self, batch_size: int, context: int, num_nodes: int) -> None:
        self._random = random.Random(0)
        alphabet = self._random.sample(range(VOCAB_SIZE), ALPHABET)
        self._alphabet = alphabet
        self.samples = [_sample(index, self._random.choices(alphabet, k=context)) for index in range(batch_size)]
        self._logits = torch.randn(batch_size, num_nodes + 1, VOCAB_SIZE, generator=torch.Generator().manual_seed(0))
        for row in self._logits.flatten(0, 1):
            row[self._random.sample(alphabet, FAVOURED)] += 20.0

    def step(self, drafts: Sequence[Draft | None]) -> list[TargetStates | None]:
        self._logits.numpy().argmax(axis=-1)  # what greedy verification reads
        return [
            self._commit(sample, draft or EMPTY_DRAFT, logits)
            for sample, draft, logits in zip(self.samples, drafts, self._logits, strict=True)
        ]

    def _commit(self, sample: Sample, draft: Draft, logits: torch.Tensor) -> TargetStates:
        path = (0,) if draft else ()
        states = TargetStates(
            start=sample.num_tokens - 1,
            num_tokens=1 + len(path),
            judged=(sample.token_ids[-1], *draft.token_ids),
            logits=logits[: 1 + len(draft)],
            path=path,
        )
        sample.token_ids.extend([*draft.token_ids[: len(path)], self._random.choice(self._alphabet)])
        return states


def _sample(index: int, token_ids: Sequence[int]) -> Sample:
    request = Request(str(index), tuple(token_ids), SamplingParams(temperature=0), seed=0, arrival=index)
    return Sample(request, 0, list(token_ids))


def random_text(seed: int, context: int, length: int) -> list[int]:
    """`context` random tokens, and then the same ones again."""
    tokens = random.Random(seed).choices(range(VOCAB_SIZE), k=context)
    return (tokens * -(-length // context))[:length]


def loop_text(seed: int, context: int, length: int) -> list[int]:
    """The same `LOOP` tokens over and over, but for a few that are random."""
    chance = random.Random(seed)
    loop = chance.sample(range(VOCAB_SIZE), LOOP)
    return [chance.randrange(VOCAB_SIZE) if chance.random() < NOISE else loop[i % LOOP] for i in range(length)]


def measure_proposers() -> tuple[ProposerTime, ...]:
    """Every method, life, batch size and context."""
    return tuple(
        measure_proposer(method, life, size, context, target)
        for method, target in TARGETS_US.items()
        for life in LIVES[method]
        for size in BATCH_SIZES
        for context in CONTEXTS
    )


def measure_proposer(
    method: str,
    life: str,
    batch_size: int,
    context: int,
    target_us: float,
    num_steps: int = STEPS,
    warm_up_steps: int = WARM_UP_STEPS,
) -> ProposerTime:
    """Median cost of a draft for each of some sequences of `context` tokens that grew by a few since the last one."""
    config = SpeculativeConfig(method, NUM_SPECULATIVE_TOKENS, SETTINGS.get(method, {}))
    proposer = build_proposer(config, _proposer_context(config))
    lived = _life(life, batch_size, context, num_steps + warm_up_steps, num_nodes(config))
    drafts: Sequence[Draft | None] = [None] * batch_size
    times: list[float] = []
    drafted = 0
    for step in range(num_steps + warm_up_steps):
        wanted = ProposalInput([NUM_SPECULATIVE_TOKENS] * batch_size, lived.step(drafts))
        seconds, drafts = _timed(proposer, lived.samples, wanted)
        if step >= warm_up_steps:
            times.append(seconds)
            drafted += sum(len(draft or ()) for draft in drafts)
    median_us = 1e6 * statistics.median(times) / batch_size
    return ProposerTime(method, life, batch_size, context, median_us, target_us, drafted / batch_size / num_steps)


def _life(kind: str, batch_size: int, context: int, num_steps: int, num_nodes: int) -> Life:
    if kind == "logits":
        return Verified(batch_size, context, num_nodes)
    write = {"random": random_text, "loop": loop_text}[kind]
    return Written([write(index, context, context + GROWTH * num_steps) for index in range(batch_size)], context)


def _proposer_context(config: SpeculativeConfig) -> ProposerContext:
    return ProposerContext(
        vocab_size=VOCAB_SIZE,
        num_blocks=0,
        block_size=16,
        max_num_batched_tokens=2048,
        verifier="auto",
        kernels=choose_backend("cpu"),
        device=torch.device("cpu"),
        num_speculative_tokens=config.num_speculative_tokens,
        method=config.method,
    )


def _timed(
    proposer: Proposer, samples: Sequence[Sample], wanted: ProposalInput
) -> tuple[float, Sequence[Draft | None]]:
    start = time.thread_time()
    drafts = proposer.propose(samples, wanted)
    return time.thread_time() - start, drafts


def proposer_lines(times: Sequence[ProposerTime]) -> list[str]:
    """The measurements as lines of a table for a person."""
    lines = [
        f"A proposer alone, in microseconds of the processor's time a sequence; k = {NUM_SPECULATIVE_TOKENS}, medians "
        f"of {STEPS} steps",
        f"{'':9}  {'':6}  " + "  ".join(f"{name:>8}" for name in ("rows", "context", "drafted", "median", "target")),
    ]
    for each in times:
        lines.append(
            f"{each.method:9}  {each.life:6}  {each.batch_size:8}  {each.context:8,}  {each.drafted:8.1f}  "
            f"{each.median_us:8.1f}  {verdict(each.median_us, each.target_us):>8}"
        )
    return lines


def verdict(value: float, target: float) -> str:
    """A target beside a value, and whether it is met."""
    return f"{'<' if value < target else 'NOT <'} {target:g}"
