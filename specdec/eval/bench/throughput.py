"""Many requests at once: tokens a second by batch size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specdec.engine import Engine
from specdec.eval.bench.spread import Spread, spread
from specdec.eval.bench.texts import Text
from specdec.eval.bench.variants import job, turns, variants_of
from specdec.eval.measure import PLAIN, Variant
from specdec.eval.session import GroupTimes, time_group


@dataclass(frozen=True)
class ThroughputPoint:
    """One way to decode at one batch size."""

    batch_size: int
    proposer: str
    num_speculative_tokens: int
    decode_tokens_per_s: Spread
    """Once every prompt has its first token."""
    total_tokens_per_s: Spread
    """Of all the answers' tokens over all the time, prompts included."""
    tokens_per_step: float
    """Of a sequence, once it has its first token."""
    speedup: float
    """Median decoding rate over plain decoding's."""


@dataclass(frozen=True)
class Throughput:
    model: str
    num_threads: int
    prompt_length: int
    max_tokens: int
    num_rounds: int
    points: tuple[ThroughputPoint, ...]


def measure_throughput(
    engine: Engine,
    text: Text,
    batch_sizes: Sequence[int],
    prompt_length: int,
    max_tokens: int,
    num_rounds: int,
    tell: Callable[[str], None] = lambda line: None,
) -> Throughput:
    """Plain decoding and every proposer of the engine in turns; each prompt is another part of the text.

    ValueError where the model cannot hold a prompt and its answer.
    """
    if max_tokens < 2 or not 0 < prompt_length <= engine.max_model_len - max_tokens:
        raise ValueError(
            f"a prompt of {prompt_length} tokens and an answer of {max_tokens} (at least 2) must fit the model's "
            f"{engine.max_model_len}"
        )
    variants = variants_of(engine)
    for variant in variants:
        _decode(engine, text, 1, variant, (prompt_length, max_tokens), -1)
    groups: dict[tuple[int, Variant], list[GroupTimes]] = {}
    for number in range(num_rounds):
        for size in batch_sizes:
            tell(f"round {number + 1} of {num_rounds}: batch {size}")
            for variant in turns(variants, number):
                group = _decode(engine, text, size, variant, (prompt_length, max_tokens), number)
                groups.setdefault((size, variant), []).append(group)
    points = [_point(size, variant, groups) for size in batch_sizes for variant in variants]
    num_threads = engine.runner.kernels.num_threads()
    return Throughput(engine.config.model, num_threads, prompt_length, max_tokens, num_rounds, tuple(points))


def _decode(
    engine: Engine, text: Text, size: int, variant: Variant, lengths: tuple[int, int], number: int
) -> GroupTimes:
    prompt_length, max_tokens = lengths
    jobs = [
        job(text.cut(prompt_length, number * size + place), variant, max_tokens, f"{variant}, {size}, {number}")
        for place in range(size)
    ]
    group = time_group(engine, jobs, lambda num_tokens, ended: None)
    if errors := [answer.error for answer in group.answers if answer.error is not None]:
        raise ValueError(f"{variant} failed at batch {size}: {errors[0]}")
    return group


def _point(size: int, variant: Variant, groups: dict[tuple[int, Variant], list[GroupTimes]]) -> ThroughputPoint:
    own, plain = groups[size, variant], groups[size, PLAIN]
    answers = [answer for group in own for answer in group.answers]
    return ThroughputPoint(
        batch_size=size,
        proposer=variant.proposer,
        num_speculative_tokens=variant.num_speculative_tokens,
        decode_tokens_per_s=spread(map(_decode_rate, own)),
        total_tokens_per_s=spread(map(_total_rate, own)),
        tokens_per_step=sum(len(a.token_ids) - 1 for a in answers) / sum(len(a.steps) for a in answers),
        speedup=spread(map(_decode_rate, own)).median / spread(map(_decode_rate, plain)).median,
    )


def _decode_rate(group: GroupTimes) -> float:
    return group.num_tokens / group.times.total


def _total_rate(group: GroupTimes) -> float:
    return sum(len(a.token_ids) for a in group.answers) / max(a.last_token for a in group.answers)
