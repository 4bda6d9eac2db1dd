"""The sampling pipeline written for one row in plain Python: the definition that the vectorised one is held against."""

from __future__ import annotations

import math
from collections.abc import Sequence

from specdec.sampling.process import SamplingRow

INF = math.inf


def process_row(logits: Sequence[float], row: SamplingRow, path: Sequence[int]) -> list[float]:
    """The logits of the row that follows `row`'s committed tokens and then the drafted `path`."""
    params = row.params
    context = [*row.token_ids, *path]
    output = context[row.num_prompt_tokens :]
    out = list(logits)
    for token, addend in (params.logit_bias or {}).items():
        if token < len(out):
            out[token] += addend
    if params.allowed_token_ids is not None:
        out = [x if token in params.allowed_token_ids else -INF for token, x in enumerate(out)]
    for word in row.bad_word_ids:
        rest = len(word) - 1
        if rest <= len(output) and output[len(output) - rest :] == list(word[:-1]):
            out[word[-1]] = -INF
    if len(output) < params.min_tokens:
        for token in row.min_tokens_ban:
            out[token] = -INF
    out = [_penalise(x, token, context, output, row) for token, x in enumerate(out)]
    if params.is_greedy:
        return out
    out = [x / params.temperature for x in out]
    return _filter(out, row)


def _penalise(x: float, token: int, context: list[int], output: list[int], row: SamplingRow) -> float:
    params = row.params
    if token in context:
        x = x / params.repetition_penalty if x > 0 else x * params.repetition_penalty
    x -= params.frequency_penalty * output.count(token)
    return x - params.presence_penalty * (token in output)


def _filter(logits: list[float], row: SamplingRow) -> list[float]:
    params = row.params
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    if 0 < params.top_k < len(logits):
        order = order[: params.top_k]
    if logits[order[0]] == -INF:
        return logits
    weights = [math.exp(logits[token] - logits[order[0]]) for token in order]
    if params.top_p < 1:
        mass, kept = 0.0, 0
        while kept < len(order) and mass < params.top_p * sum(weights):
            mass, kept = mass + weights[kept], kept + 1
        order, weights = order[:kept], weights[:kept]
    order = [token for token, weight in zip(order, weights, strict=True) if weight >= params.min_p]
    return [x if token in order else -INF for token, x in enumerate(logits)]
