"""Verifiers that choose each token as plain decoding does and follow the draft while it agrees: greedy and coupled.

The tokens do not depend on the draft at all, and chains and trees are one walk.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from specdec.kernels import Kernels
from specdec.sampling.emission import fault, noise_key
from specdec.sampling.process import Span
from specdec.sampling.rng import Stream, gumbel_argmax
from specdec.types import Draft, Verdict


def coupled(logits: torch.Tensor, spans: Sequence[Span], kernels: Kernels) -> list[Verdict]:
    """Gumbel-max coupling (2408.07978): commit what plain sampling would choose, go on while it equals the draft.

    Rows are sampled one depth at a time, all sequences together, so that noise is made only for rows that are reached.
    """
    walks = [_Walk(span) for span in spans]
    live = walks
    while live:
        keys = [noise_key(walk.span.row, walk.depth) for walk in live]
        tokens, scores = gumbel_argmax(logits, keys, Stream.RESAMPLE, kernels, [walk.at for walk in live])
        steps = zip(live, tokens.tolist(), scores.tolist(), strict=True)
        live = [walk for walk, token, score in steps if walk.commit(token, score)]
    return [walk.verdict() for walk in walks]


def greedy(
    logits: torch.Tensor,
    spans: Sequence[Span],
    kernels: Kernels,
    largest: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> list[Verdict]:
    """Commit the argmax, go on while it equals the draft. `largest` is that of all logits, if it is known."""
    if not spans:
        return []
    tokens, tops = (each.tolist() for each in largest or kernels.largest(logits))
    walks = [_Walk(span) for span in spans]
    for walk in walks:
        while walk.commit(tokens[walk.at], tops[walk.at]):
            pass
    return [walk.verdict() for walk in walks]


@dataclass
class _Walk:
    """How far the verification of one sequence has come: it stands at row `row` of its span and `depth` tokens deep."""

    span: Span
    row: int = 0
    token_ids: list[int] = field(default_factory=list)
    path: list[int] = field(default_factory=list)
    error: str | None = None

    @property
    def at(self) -> int:
        """The row of logits to read next."""
        return self.span.start + self.row

    @property
    def depth(self) -> int:
        return len(self.token_ids)

    def commit(self, token: int, score: float) -> bool:
        """Commit what this row chose with `score`, unless that is not finite; answers whether the draft goes on."""
        if not math.isfinite(score):
            self.error = fault(score, self.span.row.num_tokens + self.depth)
            return False
        self.token_ids.append(token)
        child = _child(self.span.row.draft, self.row - 1, token)
        if child is None:
            return False
        self.path.append(child)
        self.row = child + 1
        return True

    def verdict(self) -> Verdict:
        return Verdict(tuple(self.token_ids), tuple(self.path), error=self.error)


def _child(draft: Draft, node: int, token: int) -> int | None:
    """The node under `node` that holds `token`, if there is one."""
    return next((child for child in draft.children(node) if draft.token_ids[child] == token), None)
