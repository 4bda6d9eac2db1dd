"""The fused loss against what it means, written plainly."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.train import losses
from specdec.train.losses import law_loss, target_law


def naive(
    hidden: torch.Tensor, matrix: torch.Tensor, target: torch.Tensor, share: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sums over rows of loss, forward KL and accepted mass; `target` are probabilities [n, Vd]."""
    draft = torch.log_softmax(hidden @ matrix.T, -1)
    divergence = (torch.special.xlogy(target, target) - target * draft).sum(-1)
    accepted = torch.minimum(target, draft.exp()).sum(-1)
    return ((1 - share) * divergence - share * accepted.log()).sum(), divergence.sum(), accepted.sum()


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 9),
    states=st.integers(1, 6),
    size=st.integers(1, 5),
    vocab=st.integers(1, 11),
    share=st.sampled_from([0.0, 0.3, 1.0]),
    soft_cap=st.sampled_from([None, 2.0]),
    chunk=st.integers(1, 10),
    seed=st.integers(0, 999),
)
def test_loss_and_gradients(
    rows: int, states: int, size: int, vocab: int, share: float, soft_cap: float | None, chunk: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)

    def noise(*dims: int) -> torch.Tensor:
        return torch.randn(*dims, generator=generator, dtype=torch.float64)

    finals, output_rows, at = noise(states, size), noise(vocab, size), torch.randint(0, states, (rows,))
    logits = finals @ output_rows.T
    target = torch.softmax(logits if soft_cap is None else soft_cap * torch.tanh(logits / soft_cap), -1)
    ours = [noise(rows, size).requires_grad_(), noise(vocab, size).requires_grad_()]
    theirs = [tensor.detach().clone().requires_grad_() for tensor in ours]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(losses, "CHUNK_ROWS", chunk)
        found = law_loss(*ours, target_law(finals, output_rows, soft_cap), at, share)
        assert found.total.requires_grad
        assert not found.divergence.requires_grad
        assert not found.acceptance.requires_grad
    total, divergence, accepted = naive(*theirs, target[at], share)
    (found.total * 0.7).backward()
    (total * 0.7).backward()
    torch.testing.assert_close(found.total.double(), total, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found.divergence.double(), divergence, atol=1e-4, rtol=1e-4)
    if share > 0:
        torch.testing.assert_close(found.acceptance.double(), accepted, atol=1e-4, rtol=1e-4)
    for mine, reference in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad, reference.grad, atol=1e-6, rtol=1e-5)


def test_a_matrix_that_does_not_learn_gets_no_gradient() -> None:
    hidden, matrix = torch.randn(3, 4, requires_grad=True), torch.randn(5, 4)
    law_loss(hidden, matrix, target_law(torch.randn(2, 4), matrix), torch.tensor([0, 1, 1]), 0.0).total.backward()
    assert hidden.grad is not None
    assert matrix.grad is None


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_bfloat16_comes_close(share: float) -> None:
    torch.manual_seed(0)
    finals, matrix, hidden = torch.randn(64, 32), torch.randn(200, 32), torch.randn(64, 32)
    at = torch.arange(64)
    exact = hidden.clone().requires_grad_()
    law_loss(exact, matrix, target_law(finals, matrix), at, share).total.backward()
    rough = hidden.bfloat16().requires_grad_()
    half = matrix.bfloat16()
    law_loss(rough, half, target_law(finals, half), at, share).total.backward()
    assert exact.grad is not None
    assert rough.grad is not None
    assert torch.nn.functional.cosine_similarity(exact.grad.flatten(), rough.grad.float().flatten(), 0) > 0.99
