"""Medusa heads in training are those at inference; what they are held to; and they learn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from specdec.kernels import reference
from specdec.models.heads import load_head
from specdec.models.medusa import MedusaHead
from specdec.train.samples import Item
from specdec.train.trainees.medusa import MedusaPlan, MedusaTrainee, start_medusa
from tests.heads import CPU, HIDDEN, VOCABULARY, tiny_target
from tests.train.test_eagle3 import item
from tests.train.toys import parts_of, toy_data

HEADS = 3
KEPT = [t for t in range(VOCABULARY) if t % 5]


def trainee(
    token_ids: Sequence[int] = range(VOCABULARY), *, answers_only: bool = True, noise: float = 0.3
) -> MedusaTrainee:
    target = parts_of(tiny_target())
    weights = start_medusa(target, torch.tensor(list(token_ids)), HEADS)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in weights.parameters():
            parameter.add_(torch.randn(parameter.shape) * noise)
    return MedusaTrainee(weights, target, MedusaPlan(0.8, answers_only, torch.float32, torch.float32, CPU))


def rows_of(sample: Item, depth: int, kept: Sequence[int], answers_only: bool) -> list[int]:
    """The positions that head `depth` guesses from: its token and those before can be said, and lie in the sample."""
    first = max(0, sample.num_prompt_tokens - 1) if answers_only else 0
    tokens = sample.token_ids.tolist()
    return [
        t
        for t in range(first, len(tokens) - depth - 2)
        if all(token in kept for token in tokens[t + 2 : t + depth + 3])
    ]


@pytest.mark.parametrize("kept", [range(VOCABULARY), KEPT])
@pytest.mark.parametrize("answers_only", [True, False])
def test_the_written_heads_compute_the_same(tmp_path: Path, kept: Sequence[int], answers_only: bool) -> None:
    training = trainee(kept, answers_only=answers_only)
    training.write(tmp_path / "head")
    head = load_head(tmp_path / "head", target=tiny_target(), dtype="float32", device=CPU, kernels=reference)
    assert isinstance(head, MedusaHead)
    assert head.draft_token_ids is None if len(kept) == VOCABULARY else head.draft_token_ids.tolist() == list(kept)
    samples = [item(0, 17, 5), item(1, 9, 1), item(2, 3, 3), item(3, 12, 11)]
    logits = training.logits(training.prepare(samples, (0,)))
    for depth in range(HEADS):
        expected = [
            head(sample.states[t : t + 1, -HIDDEN:])[depth]
            for sample in samples
            for t in rows_of(sample, depth, kept, answers_only)
        ]
        torch.testing.assert_close(logits[depth], torch.cat(expected), atol=1e-5, rtol=1e-5)


def test_before_training_each_head_is_the_targets_own_output(tmp_path: Path) -> None:
    training = trainee(KEPT, noise=0.0)
    sample = item(0, 12, 4)
    matrix = parts_of(tiny_target()).output_matrix[KEPT]
    for depth, logits in enumerate(training.logits(training.prepare([sample], (0,)))):
        at = rows_of(sample, depth, KEPT, True)
        torch.testing.assert_close(logits, sample.states[at, -HIDDEN:] @ matrix.T)


@pytest.mark.parametrize("share", [0.0, 1.0, 0.3])
def test_the_loss_is_that_of_its_definition(share: float) -> None:
    training = trainee(KEPT)
    samples = [item(0, 17, 5), item(1, 9, 1)]
    loss = training.loss(training.prepare(samples, (0,)), share)
    matrix = parts_of(tiny_target()).output_matrix[KEPT]
    total = 0.0
    for depth, logits in enumerate(training.logits(training.prepare(samples, (0,)))):
        logits = logits.detach()
        held_to = torch.cat(
            [each.states[[t + 1 + depth for t in rows_of(each, depth, KEPT, True)], -HIDDEN:] for each in samples]
        )
        target, draft = torch.log_softmax(held_to @ matrix.T, -1), torch.log_softmax(logits, -1)
        divergence = (target.exp() * (target - draft)).sum(-1)
        accepted = torch.minimum(target.exp(), draft.exp()).sum(-1)
        part = (1 - share) * divergence - share * accepted.log()
        total += 0.8**depth * float(part.mean())
        torch.testing.assert_close(float(loss.divergences[depth]), float(divergence.mean()), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(float(loss.total.detach()), total, atol=1e-4, rtol=1e-4)
    assert loss.num_rows == sum(len(rows_of(each, 0, KEPT, True)) for each in samples)


def test_every_weight_has_a_gradient() -> None:
    training = trainee(noise=0.1)
    training.loss(training.prepare([item(0, 17, 5)], (0,)), 0.0).total.backward()
    gradients = [parameter.grad for parameter in training.module.parameters()]
    assert all(gradient is not None and gradient.abs().max() > 0 for gradient in gradients)


def test_what_is_measured_is_what_the_samples_say() -> None:
    """Naively: follow each chain while the guess is the target's greedy token and the sample goes on with it."""
    training = trainee(KEPT)
    target = tiny_target()
    data = toy_data(target, 4)
    samples = [data.item(i) for i in range(4)]
    head = training.module
    tried, accepted = [0] * HEADS, [0] * HEADS
    for sample in samples:
        tokens, finals = sample.token_ids.tolist(), sample.states[:, -HIDDEN:]
        best = (finals @ parts_of(target).output_matrix.T).argmax(-1).tolist()
        for t in range(sample.num_prompt_tokens - 1, len(tokens) - 2):
            for depth in range(HEADS):
                if t + depth + 2 >= len(tokens):
                    break
                tried[depth] += 1
                hidden = finals[t] + torch.nn.functional.silu(head.weights[depth] @ finals[t] + head.biases[depth])
                guess = KEPT[int((head.lm_heads[depth] @ hidden).argmax())]
                if guess != best[t + depth + 1]:
                    break
                accepted[depth] += 1
                if guess != tokens[t + depth + 2]:
                    break
    tally = training.measure(training.prepare_held_out(samples))
    assert (tally.tried, tally.accepted) == (tuple(tried), tuple(accepted))
    assert 0 < tally.overlap < tally.num_first == tried[0]


def test_too_short_samples_are_left_out() -> None:
    training = trainee()
    with pytest.raises(ValueError, match=r"no sample has the 3 tokens"):
        training.prepare([item(0, 2, 1)], (0,))
    assert len(training.prepare([item(0, 2, 1), item(1, 9, 1)], (0,)).finals) == 9


def test_heads_learn_their_own_data() -> None:
    """Answers that repeat: from a state the next tokens can be known."""
    data = toy_data(tiny_target(), 6, length=12)
    training = trainee(noise=0.0)
    items = [data.item(i) for i in range(6)]
    prepared, held_out = training.prepare(items, (0,)), training.prepare_held_out(items)
    before = training.measure(held_out)
    optimiser = torch.optim.Adam(training.module.parameters(), lr=0.02)
    for _ in range(150):
        optimiser.zero_grad()
        training.loss(prepared, 0.0).total.backward()
        optimiser.step()
    after = training.measure(held_out)
    assert after.accepted[0] > 0.85 * after.tried[0] > before.accepted[0]
    assert after.tried[1] > before.tried[1]
