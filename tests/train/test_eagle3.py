"""The head in training is the head at inference, entry by entry; and it learns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from specdec.core.scheduler import Schedule, ScheduledRow
from specdec.kernels import reference
from specdec.models.eagle import EagleHead
from specdec.models.heads import load_head
from specdec.step.batch import Batch
from specdec.step.kv_cache import KVCache
from specdec.train.samples import Item
from specdec.train.trainees.eagle3 import Eagle3Plan, Eagle3Trainee
from specdec.train.trainees.eagle3_start import Eagle3Weights, shape_for, start_from_target
from tests.heads import CPU, VOCABULARY, tiny_target
from tests.train.toys import AUX_LAYERS, parts_of, row, states_of

UNROLLS = 4


def trainee(
    token_ids: Sequence[int] = range(VOCABULARY),
    *,
    unrolls: int = UNROLLS,
    answers_only: bool = True,
    share: float = 1.0,
    output_from_first: bool = False,
) -> Eagle3Trainee:
    """Loud noise for weights, so that every part of the head matters."""
    target = parts_of(tiny_target())
    weights = Eagle3Weights(shape_for(target.config, AUX_LAYERS), torch.tensor(list(token_ids)), seed=3)
    with torch.no_grad():
        for parameter in weights.parameters():
            parameter.add_(
                torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel())) * 0.3
            )
    plan = Eagle3Plan(unrolls, 0.8, share, answers_only, output_from_first, torch.float32, torch.float32, CPU)
    return Eagle3Trainee(weights, target, plan, "tiny")


def item(seed: int, length: int, prompt: int) -> Item:
    tokens = np.random.default_rng(seed).integers(0, VOCABULARY, length)
    return Item(torch.from_numpy(tokens), prompt, states_of(tiny_target(), tokens.tolist()).float())


@torch.no_grad()
def chain_logits(head: EagleHead, sample: Item, start: int, unrolls: int) -> list[torch.Tensor]:
    """Token by token as the engine does: logits [Vd] of the entries at `start`, and of those that follow from the
    head's own outputs."""
    tokens = sample.token_ids.tolist()
    kv = KVCache(head.kv_layout(), 64, 4, CPU)
    for cache in (*kv.keys, *kv.values):
        cache.fill_(float("nan"))
    features = head.combine(sample.states[:start, : head.feature_size])
    out = head.forward(Batch.build(Schedule((ScheduledRow(row(tokens), 1, start),)), 4, CPU), kv, features)[-1:]
    logits = [head.compute_logits(out)[0]]
    for position in range(start + 1, min(start + unrolls, len(tokens) - 1)):
        out = head.forward(Batch.build(Schedule((ScheduledRow(row(tokens), position, 1),)), 4, CPU), kv, out)
        logits.append(head.compute_logits(out)[0])
    return logits


@pytest.mark.parametrize("kept", [range(VOCABULARY), [t for t in range(VOCABULARY) if t % 5]])
@pytest.mark.parametrize("answers_only", [True, False])
def test_unrolls_are_what_the_written_head_computes(tmp_path: Path, kept: Sequence[int], answers_only: bool) -> None:
    training = trainee(kept, answers_only=answers_only)
    training.write(tmp_path / "head")
    head = load_head(tmp_path / "head", target=tiny_target(), dtype="float32", device=CPU, kernels=reference)
    assert isinstance(head, EagleHead)
    samples = [item(0, 17, 5), item(1, 9, 1), item(2, 12, 11)]
    chains = training.prepare(samples, (0,))
    rows = [iter(out) for out in training.logits(chains)]
    for sample in samples:
        tokens = sample.token_ids.tolist()
        first = max(1, sample.num_prompt_tokens - 1) if answers_only else 1
        expected = {start: chain_logits(head, sample, start, UNROLLS) for start in range(first, len(tokens) - 1)}
        for depth in range(UNROLLS):
            for start, logits in expected.items():
                said = tokens[start + 1 : start + depth + 2]
                if depth < len(logits) and all(token in kept for token in said):
                    torch.testing.assert_close(next(rows[depth]), logits[depth], atol=2e-5, rtol=2e-5)
    assert all(next(each, None) is None for each in rows)


@pytest.mark.parametrize("unrolls", [1, UNROLLS])
def test_where_the_draft_can_say_none_of_the_tokens_there_is_nothing_to_learn(unrolls: int) -> None:
    """A vocabulary so small that a step has no row at all, in the first unroll or in later ones."""
    sample = item(0, 12, 4)
    absent = next(t for t in range(VOCABULARY) if t not in sample.token_ids.tolist())
    training = trainee([absent], unrolls=unrolls)
    found = training.loss(training.prepare([sample], (0,)), 0.5)
    assert float(found.total.detach()) == 0.0
    assert found.num_rows == 0
    found.total.backward()
    assert all(each.grad is None or not each.grad.any() for each in training.module.parameters())


def test_some_chains_are_those_chains() -> None:
    samples = [item(0, 17, 5), item(1, 30, 2)]
    every, some = trainee(), trainee(share=0.4)
    all_chains, chains = every.prepare(samples, (0,)), some.prepare(samples, (1, 2, 3))
    assert torch.equal(chains.unrolls[0].at, all_chains.unrolls[0].at)
    for one, other, depth in zip(all_chains.unrolls, chains.unrolls, range(UNROLLS), strict=True):
        starts = (other.at - depth)[:, None] == (one.at - depth)[None]
        assert depth == 0 or 0 < len(other.at) < len(one.at)
        expected = every.logits(all_chains)[depth][starts.nonzero()[:, 1]]
        torch.testing.assert_close(some.logits(chains)[depth], expected, atol=1e-5, rtol=1e-5)
    again = some.prepare(samples, (1, 2, 3))
    assert all(torch.equal(one.at, two.at) for one, two in zip(chains.unrolls, again.unrolls, strict=True))
    assert any(
        len(one.at) != len(two.at) or not torch.equal(one.at, two.at)
        for one, two in zip(chains.unrolls, some.prepare(samples, (9,)).unrolls, strict=True)
    )


def test_the_loss_is_the_mean_over_rows_of_each_unroll() -> None:
    training = trainee([t for t in range(VOCABULARY) if t % 5])
    chains = training.prepare([item(0, 17, 5), item(1, 9, 1)], (0,))
    found = training.loss(chains, 0.0)
    target = torch.log_softmax(chains.finals @ parts_of(tiny_target()).output_matrix[training.module.token_ids].T, -1)
    total = torch.zeros(())
    for depth, (unroll, logits) in enumerate(zip(chains.unrolls, training.logits(chains), strict=True)):
        law = target[unroll.at]
        divergence = (law.exp() * (law - torch.log_softmax(logits, -1))).sum(-1).mean()
        torch.testing.assert_close(found.divergences[depth], divergence, atol=1e-4, rtol=1e-4)
        total += 0.8**depth * divergence
    torch.testing.assert_close(found.total, total, atol=1e-4, rtol=1e-4)


def test_gradients_are_those_of_finite_differences() -> None:
    """Through the chains' keys, values and states: every parameter is moved along a direction of its own."""
    training = trainee(unrolls=3)
    chains = training.prepare([item(0, 12, 3), item(1, 9, 4)], (0,))
    training.loss(chains, 0.5).total.backward()
    generator = torch.Generator().manual_seed(0)
    for name, parameter in training.module.named_parameters():
        assert parameter.grad is not None, name
        direction = torch.randn(parameter.shape, generator=generator)
        direction *= 1e-2 / direction.norm()
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter.add_(direction, alpha=sign)
                values.append(training.loss(chains, 0.5).total.item())
                parameter.sub_(direction, alpha=sign)
        slope = (values[0] - values[1]) / 2
        assert slope == pytest.approx((parameter.grad * direction).sum().item(), abs=3e-5, rel=0.05), name


def test_the_output_matrix_may_learn_from_the_first_unroll_alone() -> None:
    samples = [item(0, 12, 3)]
    slopes = {}
    for key, training in {
        "all": trainee(),
        "first": trainee(output_from_first=True),
        "one unroll": trainee(unrolls=1),
    }.items():
        training.loss(training.prepare(samples, (0,)), 0.0).total.backward()
        slopes[key] = training.module.lm_head.grad
    assert torch.allclose(slopes["first"], slopes["one unroll"])
    assert not torch.allclose(slopes["first"], slopes["all"])


def test_starting_from_the_target_is_its_last_layer() -> None:
    """With nothing to say about the token, the head is the target's last layer on the highest auxiliary state."""
    target = tiny_target()
    parts = parts_of(target)
    weights = Eagle3Weights(shape_for(parts.config, AUX_LAYERS), torch.arange(VOCABULARY), seed=0)
    start_from_target(weights, parts)
    with torch.no_grad():
        weights.fc[:, :-16] = 0
        weights.fc[:, -16:] = torch.eye(16)
        for matrix in (weights.q_proj, weights.k_proj, weights.v_proj):
            matrix[:, :16] = 0
    plan = Eagle3Plan(1, 0.8, 1.0, False, False, torch.float32, torch.float32, CPU)
    training = Eagle3Trainee(weights, parts, plan, "tiny")
    sample = item(0, 10, 1)
    (found,) = training.logits(training.prepare([sample], (0,)))
    states = sample.states[:, 2 * 16 : 3 * 16]  # inputs of layer 4, the last of five
    kv = KVCache(target.kv_layout(), 64, 4, CPU)
    batch = Batch.build(Schedule((ScheduledRow(row(sample.token_ids.tolist()), 0, 10),)), 4, CPU)
    rope = target.ropes[0]
    rotation = (rope.get_buffer("cos"), rope.get_buffer("sin"))
    hidden = target.layers[4](states.double(), rotation, batch, kv.keys[4], kv.values[4])
    expected = target.compute_logits(target.norm(hidden))[:-2].float()
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
