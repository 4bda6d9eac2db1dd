"""Rejection sampling of trees: at each node the children are tried in order, and the walk goes on from the first kept.

A rejected child changes the law that the next one is judged by. Children without a draft law are fixed before looking:
child x is kept with probability target[x], else it leaves the target's law. Children drawn without replacement are
judged by recursive rejection (2305.09781, 2402.14160): the target's law becomes its residual, and the child leaves the
draft law. A tree that is a chain is verified exactly as the chain. `fixed_children` and `drawn_children` are functions
of their own, so that their laws can be enumerated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from specdec.kernels import Kernels
from specdec.sampling.emission import acceptance, emit, end_row, law, residual
from specdec.sampling.process import Span
from specdec.sampling.rng import Stream, uniform
from specdec.types import Verdict

Trial = tuple[float, torch.Tensor]
"""The probability of keeping a child given that its earlier siblings were rejected, and the law, float64 [V], that is
left when it is rejected too."""


def tree_rejection(logits: torch.Tensor, spans: Sequence[Span], kernels: Kernels) -> list[Verdict]:
    """Walk each tree from its root."""
    if not spans:
        return []
    walked = [_walk(logits, span) for span in spans]
    weights = torch.stack([weight for _, weight in walked])
    return emit(logits, spans, [path for path, _ in walked], weights, kernels)


def _walk(logits: torch.Tensor, span: Span) -> tuple[list[int], torch.Tensor]:
    """The accepted path of one tree and log weights [V] of the token behind it."""
    path: list[int] = []
    while children := span.row.draft.children(path[-1] if path else -1):
        kept, left = _first_kept(span, children, law(logits[end_row(span, path)]), len(path))
        if kept is None:
            return path, left.log()
        path.append(kept)
    return path, logits[end_row(span, path)].double()


def _first_kept(
    span: Span, children: Sequence[int], target: torch.Tensor, depth: int
) -> tuple[int | None, torch.Tensor]:
    """The first child whose coin says yes, if any, and the law that is left; a NaN probability rejects."""
    row = span.row
    for rank, (child, (chance, rest)) in enumerate(zip(children, trials(span, children, target), strict=True)):
        if uniform(row.seed, row.sample, row.num_tokens + depth, Stream.ACCEPT, rank) < chance:
            return child, target
        target = rest
    return None, target


def trials(span: Span, children: Sequence[int], target: torch.Tensor) -> Iterator[Trial]:
    """The rule that fits the draft: one trial a child."""
    draft = span.row.draft
    token_ids = [draft.token_ids[child] for child in children]
    if draft.draft_probs is None:
        return fixed_children(target, token_ids)
    return drawn_children(target, token_ids, draft.draft_probs[list(children)].double())


def fixed_children(target: torch.Tensor, token_ids: Sequence[int]) -> Iterator[Trial]:
    """Children in an order fixed before looking, against the target's law [V]. One is kept with probability
    sum(target[children])."""
    for token in token_ids:
        chance = target[token].item()
        target = target.clone()
        target[token] = 0.0
        target /= target.sum()
        yield chance, target


def drawn_children(target: torch.Tensor, token_ids: Sequence[int], draft_probs: torch.Tensor) -> Iterator[Trial]:
    """Children drawn without replacement: child i from row i of `draft_probs` [m, V] without its earlier siblings.

    A child that could not have been drawn there is passed over.
    """
    for i, token in enumerate(token_ids):
        draft = draft_probs[i]
        if i:
            draft = draft.clone()
            draft[list(token_ids[:i])] = 0.0
            draft /= draft.sum()
        if not draft[token] > 0:
            yield 0.0, target
            continue
        chance = acceptance(target[token], draft[token]).item()
        target = residual(target, draft)
        target = target / target.sum()
        yield chance, target
