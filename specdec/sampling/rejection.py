"""Rejection sampling of chains (2211.17192, 2302.01318).

Its decisions are functions of their own, `acceptance_probs` and `emission_logits`, so that their laws can be
enumerated.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specdec.kernels import Kernels
from specdec.sampling.emission import acceptance, emit, law, node_rows, residual
from specdec.sampling.process import SamplingRow, Span
from specdec.sampling.rng import Stream, uniform
from specdec.types import Verdict


def rejection(logits: torch.Tensor, spans: Sequence[Span], kernels: Kernels) -> list[Verdict]:
    """Keep draft tokens up to the first that a coin of its acceptance probability rejects."""
    if not spans:
        return []
    accepted = [
        _num_accepted(span.row, kept)
        for span, kept in zip(spans, acceptance_probs(logits, spans, kernels), strict=True)
    ]
    weights = emission_logits(logits, spans, accepted)
    return emit(logits, spans, [range(count) for count in accepted], weights, kernels)


def acceptance_probs(logits: torch.Tensor, spans: Sequence[Span], kernels: Kernels) -> list[list[float]]:
    """For each sequence and draft token the probability that rejection sampling keeps it, given those before."""
    at = [row for span in spans for row in node_rows(span)]
    if not at:
        return [[] for _ in spans]
    first, stop = min(at), max(at) + 1  # what lies between belongs to few others, and is cheaper than a copy
    rows = torch.tensor(at, device=logits.device) - first
    token_ids = torch.tensor([t for span in spans for t in span.row.draft.token_ids], device=logits.device)
    judging = logits[first:stop]
    target_prob = (judging[rows, token_ids].double() - kernels.logsumexp(judging)[rows]).exp()
    kept = acceptance(target_prob, _draft_prob(spans, token_ids)).tolist()
    ends = iter(kept)
    return [[next(ends) for _ in span.row.draft.token_ids] for span in spans]


def _draft_prob(spans: Sequence[Span], token_ids: torch.Tensor) -> torch.Tensor:
    """float64 [len(token_ids)]: each draft token's probability under its draft law, 1 where it was not drawn."""
    probs = torch.ones(token_ids.shape[0], dtype=torch.float64, device=token_ids.device)
    start = 0
    for span in spans:
        stop = start + len(span.row.draft)
        if span.row.draft.draft_probs is not None and stop > start:
            drawn = span.row.draft.draft_probs.gather(-1, token_ids[start:stop, None])
            probs[start:stop] = drawn[:, 0].double()
        start = stop
    return probs


def emission_logits(logits: torch.Tensor, spans: Sequence[Span], accepted: Sequence[int]) -> torch.Tensor:
    """Log weights [len(spans), V] of the token each sequence adds after `accepted[i]` draft tokens: in the dtype of the
    logits, or float64 where a draft was drawn.

    After the whole draft it is the bonus: the target's law there. Else it is drawn from the residual; for a
    deterministic draft that is the target's law without the rejected token.
    """
    weights = logits[[span.start + count for span, count in zip(spans, accepted, strict=True)]]
    drawn = []
    for i, (span, count) in enumerate(zip(spans, accepted, strict=True)):
        if count == len(span.row.draft):
            continue
        if span.row.draft.draft_probs is None:
            weights[i, span.row.draft.token_ids[count]] -= float(
                "inf"
            )  # of an infinite logit a NaN is left, which shows
        else:
            drawn.append(i)
    if drawn:
        weights = weights.double()
        draft_probs = torch.stack([spans[i].row.draft.draft_probs[accepted[i]] for i in drawn])
        weights[drawn] = residual(law(weights[drawn]), draft_probs.double()).log()
    return weights


def _num_accepted(row: SamplingRow, kept: Sequence[float]) -> int:
    """Draft tokens kept before the first rejection; a NaN probability rejects."""
    for node, prob in enumerate(kept):
        if not uniform(row.seed, row.sample, row.num_tokens + node, Stream.ACCEPT) < prob:
            return node
    return len(kept)
