"""One request at a time: until its first token, and for each token after that, by the length of its prompt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from specdec.engine import Engine
from specdec.eval.bench.spread import Spread, spread
from specdec.eval.bench.texts import Text
from specdec.eval.bench.variants import job, turns, variants_of
from specdec.eval.measure import PLAIN, Variant
from specdec.eval.session import Answer, time_group


@dataclass(frozen=True)
class LatencyPoint:
    """One way to decode prompts of one length. Times are in milliseconds."""

    prompt_length: int
    proposer: str
    num_speculative_tokens: int
    first_token_ms: Spread
    per_token_ms: Spread
    tokens_per_step: float
    speedup: float
    """Plain decoding's median time per token over this one's."""


@dataclass(frozen=True)
class Latency:
    model: str
    num_threads: int
    max_tokens: int
    num_rounds: int
    points: tuple[LatencyPoint, ...]
    start_up_seconds: Mapping[str, float]
    """Until the engine was ready, by part."""


def measure_latency(
    engine: Engine,
    text: Text,
    lengths: Sequence[int],
    max_tokens: int,
    num_rounds: int,
    tell: Callable[[str], None] = lambda line: None,
) -> Latency:
    """Plain decoding and every proposer of the engine in turns, on prompts that nobody has seen before.

    ValueError where a prompt and its answer do not fit the model.
    """
    _check_lengths(engine, lengths, max_tokens)
    variants = variants_of(engine)
    for variant in variants:
        _answer(engine, text, min(lengths), variant, max_tokens, -1)
    answers: dict[tuple[int, Variant], list[Answer]] = {}
    for number in range(num_rounds):
        for length in lengths:
            tell(f"round {number + 1} of {num_rounds}: prompts of {length} tokens")
            for variant in turns(variants, number):
                answer = _answer(engine, text, length, variant, max_tokens, number)
                answers.setdefault((length, variant), []).append(answer)
    points = [_point(length, variant, answers) for length in lengths for variant in variants]
    num_threads = engine.runner.kernels.num_threads()
    return Latency(
        engine.config.model,
        num_threads,
        max_tokens,
        num_rounds,
        tuple(points),
        dict(engine.start_up.seconds),
    )


def _check_lengths(engine: Engine, lengths: Sequence[int], max_tokens: int) -> None:
    if max_tokens < 2:
        raise ValueError(f"an answer needs at least 2 tokens for a time between tokens; got {max_tokens}")
    for length in lengths:
        if not 0 < length <= engine.max_model_len - max_tokens:
            raise ValueError(
                f"a prompt must have 1 to {engine.max_model_len - max_tokens} tokens, so that {max_tokens} more fit "
                f"the model's {engine.max_model_len}; got {length}"
            )


def _answer(engine: Engine, text: Text, length: int, variant: Variant, max_tokens: int, number: int) -> Answer:
    one = job(text.cut(length, number), variant, max_tokens, f"{variant}, {length} tokens, round {number}")
    (answer,) = time_group(engine, [one], lambda num_tokens, ended: None).answers
    if answer.error is not None:
        raise ValueError(f"{variant} failed on a prompt of {length} tokens: {answer.error}")
    return answer


def _point(length: int, variant: Variant, answers: dict[tuple[int, Variant], list[Answer]]) -> LatencyPoint:
    own, plain = answers[length, variant], answers[length, PLAIN]
    return LatencyPoint(
        prompt_length=length,
        proposer=variant.proposer,
        num_speculative_tokens=variant.num_speculative_tokens,
        first_token_ms=spread(1e3 * answer.first_token for answer in own),
        per_token_ms=spread(map(_per_token_ms, own)),
        tokens_per_step=sum(len(a.token_ids) - 1 for a in own) / sum(len(a.steps) for a in own),
        speedup=spread(map(_per_token_ms, plain)).median / spread(map(_per_token_ms, own)).median,
    )


def _per_token_ms(answer: Answer) -> float:
    return 1e3 * (answer.last_token - answer.first_token) / (len(answer.token_ids) - 1)
