"""What every verifier is made of: laws in float64, and the one token that each sequence adds after its accepted path.

The token of absolute position i is drawn as argmax(log law + Gumbel noise of i) whatever the verifier, so without a
draft all of them give the same tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from specdec.kernels import Kernels
from specdec.sampling.process import SamplingRow, Span
from specdec.sampling.rng import NoiseKey, Stream, gumbel_argmax
from specdec.types import Verdict

CHUNK_ROWS = 32
"""Rows whose float64 law is held at a time."""


def law(logits: torch.Tensor) -> torch.Tensor:
    """The distribution that processed logits [..., V] stand for: their softmax, float64 [..., V]."""
    return torch.softmax(logits, dim=-1, dtype=torch.float64)


def acceptance(target_prob: torch.Tensor, draft_prob: torch.Tensor) -> torch.Tensor:
    """The probability of keeping drafted tokens, from their probabilities under both laws (2211.17192)."""
    return (target_prob / draft_prob).clamp(max=1.0)


def residual(target_probs: torch.Tensor, draft_probs: torch.Tensor) -> torch.Tensor:
    """Weights of the token that takes a rejected one's place, from both laws [..., V]: the target's excess.

    Where rounding leaves no excess at all, so that the laws are equal, the target's own law.
    """
    excess = (target_probs - draft_probs).clamp(min=0.0)
    return torch.where(excess.sum(dim=-1, keepdim=True) == 0, target_probs, excess)


def node_rows(span: Span) -> list[int]:
    """For each draft node the row of logits that judges it: its parent's."""
    parents = span.row.draft.parents
    if parents is None:
        return list(range(span.start, span.start + len(span.row.draft)))
    return [span.start + parent + 1 for parent in parents]


def end_row(span: Span, path: Sequence[int]) -> int:
    """The row of logits behind an accepted path."""
    return span.start + (path[-1] + 1 if path else 0)


def emit(
    logits: torch.Tensor,
    spans: Sequence[Span],
    paths: Sequence[Sequence[int]],
    weights: torch.Tensor,
    kernels: Kernels,
) -> list[Verdict]:
    """The accepted paths, and behind each a token drawn from its log weights [len(spans), V].

    Where the row behind a path has no usable law, the path stands and an error takes the token's place.
    """
    keys = [noise_key(span.row, len(path)) for span, path in zip(spans, paths, strict=True)]
    tokens, scores = gumbel_argmax(weights, keys, Stream.RESAMPLE, kernels)
    verdicts = []
    for span, path, token, score in zip(spans, paths, tokens.tolist(), scores.tolist(), strict=True):
        kept = tuple(span.row.draft.token_ids[node] for node in path)
        if math.isfinite(score):
            verdicts.append(Verdict((*kept, token), tuple(path)))
        else:
            top = logits[end_row(span, path)].amax().item()
            verdicts.append(Verdict(kept, tuple(path), error=fault(top, span.row.num_tokens + len(path))))
    return verdicts


def noise_key(row: SamplingRow, depth: int) -> NoiseKey:
    """Whose noise draws the token that follows `depth` draft tokens."""
    return NoiseKey(row.seed, row.sample, row.num_tokens + depth)


def fault(score: float, position: int) -> str:
    """Why no token can be chosen where the best score is `score`."""
    if math.isnan(score):
        return f"the model's logits for the token at position {position} are not numbers (NaN)"
    if score > 0:
        return f"the model's logits for the token at position {position} are infinite"
    return f"no token is possible at position {position}: every logit is -inf; allow at least one token"
