"""The loss of a draft's law against the target's, fused with the output matrix.

Logits over a vocabulary are by far the largest tensors of training, so they exist a few hundred rows at a time: each
chunk is multiplied, compared and turned into gradients at once, and backward only scales these. The naive definition is
in the tests.

Forward KL is what makes a small draft accepted where it cannot be right everywhere; late in training,
-log sum_v min(target, draft) sharpens what rejection sampling accepts (arXiv 2602.23881).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable

CHUNK_ROWS = 512
"""Rows whose logits exist at a time: 8 MB in bfloat16 at 8,192 tokens, which stay in a shared cache."""


@dataclass(frozen=True)
class TargetLaw:
    """The target's law over the draft's vocabulary, renormalised, at some positions."""

    probs: torch.Tensor  # [R, Vd], in the dtype of the matrices
    entropies: torch.Tensor  # float32 [R]


@torch.no_grad()
def target_law(states: torch.Tensor, matrix: torch.Tensor, soft_cap: float | None = None) -> TargetLaw:
    """The law of final states [R, H] under the output rows [Vd, H] of the draft's vocabulary."""
    probs = states.new_empty((len(states), len(matrix)), dtype=matrix.dtype)
    entropies = torch.empty(len(states), dtype=torch.float32, device=states.device)
    for start in range(0, len(states), CHUNK_ROWS):
        rows = slice(start, start + CHUNK_ROWS)
        logits = states[rows].to(matrix.dtype) @ matrix.T
        if soft_cap is not None:
            logits = soft_cap * torch.tanh(logits / soft_cap)
        chunk = torch.softmax(logits, dim=-1)
        entropies[rows] = _log_sum_exp(logits, chunk) - _dot(chunk, logits)
        probs[rows] = chunk
    return TargetLaw(probs, entropies)


@dataclass(frozen=True)
class LawLoss:
    """Sums over rows; `total` alone has a gradient."""

    total: torch.Tensor
    divergence: torch.Tensor
    """Forward KL, in nats."""
    acceptance: torch.Tensor
    """sum_v min(target, draft); zero where the loss has no part of it, which leaves it uncomputed."""


def law_loss(
    hidden: torch.Tensor, matrix: torch.Tensor, law: TargetLaw, rows: torch.Tensor, acceptance_share: float
) -> LawLoss:
    """Compare the law of `hidden` [n, H] under `matrix` [Vd, H] with rows `rows` (int64 [n]) of the target's.

    The loss of a row is (1 - a) * KL(target || draft) - a * log sum_v min(target, draft), a the `acceptance_share`.
    """
    total, divergence, acceptance = _LawLoss.apply(  # type: ignore[no-untyped-call]
        hidden, matrix, law.probs, law.entropies, rows, acceptance_share
    )
    return LawLoss(total, divergence, acceptance)


class _LawLoss(torch.autograd.Function):
    """Gradients are made in forward, of the sum over rows."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        matrix: torch.Tensor,
        probs: torch.Tensor,
        entropies: torch.Tensor,
        rows: torch.Tensor,
        share: float,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        wants_hidden, wants_matrix = ctx.needs_input_grad[0], ctx.needs_input_grad[1]
        sums = torch.zeros(3, dtype=torch.float32, device=hidden.device)
        slopes = hidden.new_empty((len(hidden) if wants_matrix else CHUNK_ROWS, len(matrix)))
        towards = torch.empty_like(hidden)
        for start in range(0, len(hidden), CHUNK_ROWS):
            part = slice(start, start + CHUNK_ROWS)
            chunk = rows[part]
            slope = slopes[part] if wants_matrix else slopes[: len(chunk)]
            logits = hidden[part] @ matrix.T
            sums += _compare(logits, probs.index_select(0, chunk), entropies[chunk], share, slope)
            if wants_hidden:
                towards[part] = slope @ matrix
        ctx.save_for_backward(towards if wants_hidden else None, slopes.T @ hidden if wants_matrix else None)
        total, divergence, acceptance = (each.clone() for each in sums.unbind())
        ctx.mark_non_differentiable(divergence, acceptance)
        return total, divergence, acceptance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: torch.Tensor, *_: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        towards, matrix = ctx.saved_tensors
        return (
            None if towards is None else towards * scale.to(towards.dtype),
            None if matrix is None else matrix * scale.to(matrix.dtype),
            None,
            None,
            None,
            None,
        )


def _compare(
    logits: torch.Tensor, target: torch.Tensor, entropies: torch.Tensor, share: float, slope: torch.Tensor
) -> torch.Tensor:
    """Fill `slope` [n, Vd], the loss by logits; the sums of loss, divergence and acceptance, float32 [3]."""
    draft = torch.softmax(logits, dim=-1, out=slope if share == 0.0 else None)
    divergence = (_log_sum_exp(logits, draft) - _dot(target, logits) - entropies).sum()
    if share == 0.0:
        slope.sub_(target)
        return torch.stack((divergence, divergence, torch.zeros_like(divergence)))
    accepted = torch.minimum(draft, target).sum(-1, dtype=torch.float32).clamp_min(1e-6)
    # What is below the target's would be accepted whole: only there does more probability help.
    below = torch.sub(target, draft).sign_().clamp_min_(0).mul_(draft)
    mass = below.sum(-1, dtype=torch.float32)
    torch.mul(draft, (mass / accepted).to(draft.dtype)[:, None], out=slope)
    slope.sub_(below.mul_((1.0 / accepted).to(draft.dtype)[:, None]))
    if share < 1.0:
        slope.mul_(share).add_(draft.sub_(target), alpha=1.0 - share)
    total = (1.0 - share) * divergence - share * accepted.log().sum()
    return torch.stack((total, divergence, accepted.sum()))


def _log_sum_exp(logits: torch.Tensor, probs: torch.Tensor) -> torch.Tensor:
    """float32 [n], from the largest logit and its probability: a pass over each instead of exponentials anew."""
    return logits.amax(-1).float() - probs.amax(-1).float().log()


def _dot(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    product: torch.Tensor = torch.linalg.vecdot(left, right)
    return product.float()
