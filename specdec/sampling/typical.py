"""Typical acceptance (2401.10774): a draft token is kept if it is likely enough. Lossy: the target's law is not kept.

It needs no draft law and draws nothing to accept. Of a tree the longest acceptable path is kept, the first of equals.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specdec.kernels import Kernels
from specdec.sampling.emission import CHUNK_ROWS, emit, end_row, law, node_rows
from specdec.sampling.process import Span
from specdec.types import Draft, Verdict

EPSILON = 0.09
"""The most probability that is ever asked of a token."""
DELTA = 0.3
"""What is asked of a token at entropy 0, if `EPSILON` allowed it; it falls with exp(-entropy)."""


def typical(logits: torch.Tensor, spans: Sequence[Span], kernels: Kernels) -> list[Verdict]:
    """Keep the longest path of acceptable tokens, then draw the next one plainly."""
    if not spans:
        return []
    at = [row for span in spans for row in node_rows(span)]
    token_ids = torch.tensor([t for span in spans for t in span.row.draft.token_ids], device=logits.device)
    kept: list[bool] = []
    for chunk in (slice(i, i + CHUNK_ROWS) for i in range(0, len(at), CHUNK_ROWS)):
        target = law(logits[at[chunk]])
        kept += (target.gather(-1, token_ids[chunk, None])[:, 0] >= threshold(target)).tolist()
    ends = iter(kept)
    paths = [_longest_path(span.row.draft, [next(ends) for _ in span.row.draft.token_ids]) for span in spans]
    rows = [end_row(span, path) for span, path in zip(spans, paths, strict=True)]
    return emit(logits, spans, paths, logits[rows], kernels)


def threshold(target: torch.Tensor) -> torch.Tensor:
    """The least probability of an acceptable token, from laws [n, V]: min(e, d * exp(-entropy)), [n]."""
    entropy = -torch.xlogy(target, target).sum(dim=-1)
    return (DELTA * torch.exp(-entropy)).clamp(max=EPSILON)


def _longest_path(draft: Draft, kept: Sequence[bool]) -> list[int]:
    """The deepest node that is kept with all its ancestors, and the path to it."""
    paths: list[list[int] | None] = []
    best: list[int] = []
    for node, fine in enumerate(kept):
        parent = node - 1 if draft.parents is None else draft.parents[node]
        before: list[int] | None = [] if parent < 0 else paths[parent]
        paths.append([*before, node] if fine and before is not None else None)
        best = max(best, paths[-1] or [], key=len)
    return best
