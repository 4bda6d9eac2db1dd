"""The small parts of training: order, schedule, vocabulary, held-out arithmetic, differentiable functions."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from specdec.train.batches import is_held_out, plan_epoch
from specdec.train.held_out import Tally, acceptance
from specdec.train.optimiser import Optimiser, learning_rate
from specdec.train.picture import learning_curve
from specdec.train.recipe import OptimiserConfig
from specdec.train.survey import survey
from specdec.train.trainees.functions import rms_norm, rotate, take_rows
from specdec.train.vocabulary import choose_vocabulary, coverage, draft_ids
from tests.train.toys import ToyData, ToySample


@given(lengths=st.lists(st.integers(1, 50), min_size=1, max_size=60), seed=st.integers(0, 9), epoch=st.integers(0, 9))
def test_an_epoch_has_every_sample_once_in_full_steps(lengths: list[int], seed: int, epoch: int) -> None:
    steps = plan_epoch(lengths, 100, seed, epoch)
    assert Counter(i for step in steps for i in step) == Counter(range(len(lengths)))
    assert all(len(step) == 1 or sum(lengths[i] for i in step) <= 100 for step in steps)
    assert steps == plan_epoch(lengths, 100, seed, epoch)


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    lengths = list(range(1, 60))
    orders = [plan_epoch(lengths, 60, seed, epoch) for seed in range(3) for epoch in range(3)]
    assert len({str(order) for order in orders}) == 9


def test_whoever_has_the_same_prompt_is_held_out_together() -> None:
    prompts = [np.arange(i, i + 5) for i in range(2000)]
    held_out = [is_held_out(prompt, 0.1) for prompt in prompts]
    assert 120 < sum(held_out) < 280
    assert held_out == [is_held_out(prompt.astype(np.int32), 0.1) for prompt in prompts]
    # A larger share keeps all that a smaller one kept.
    assert all(is_held_out(prompt, 0.2) for prompt, was in zip(prompts, held_out, strict=True) if was)


def test_the_learning_rate_rises_and_falls() -> None:
    config = OptimiserConfig(learning_rate=1.0, warmup=0.1, final_share=0.1)
    rates = [learning_rate(step, 100, config) for step in range(100)]
    assert rates[:10] == pytest.approx([0.1 * (i + 1) for i in range(10)])
    assert rates[10] == pytest.approx(1.0)
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[55] == pytest.approx(0.55)
    assert learning_rate(100, 100, config) == pytest.approx(0.1)


def test_averages_follow_the_weights_and_can_stand_in_for_them() -> None:
    weight = nn.Parameter(torch.tensor([[1.0]]))
    optimiser = Optimiser(
        [("weight", weight)], OptimiserConfig(method="adamw", learning_rate=0.1, weight_decay=0.0, ema=0.5, warmup=0.0)
    )
    average = 1.0
    for step in range(4):
        weight.grad = torch.ones(1, 1)
        optimiser.step(step, 100)
        keep = min(0.5, (1 + step) / (10 + step))
        average = keep * average + (1 - keep) * weight.item()
    now = weight.item()
    optimiser.swap_averages()
    assert weight.item() == pytest.approx(average)
    optimiser.swap_averages()
    assert weight.item() == now


def test_muon_steps_go_as_far_in_every_direction_and_are_of_inner_matrices_alone() -> None:
    torch.manual_seed(0)
    sizes = {"layer.weight": (6, 12), "lm_head": (20, 6), "norm": (6,), "fixed": (3, 3)}
    weights = {name: nn.Parameter(torch.randn(size)) for name, size in sizes.items()}
    weights["fixed"].requires_grad_(False)
    before = {name: weight.detach().clone() for name, weight in weights.items()}
    config = OptimiserConfig(method="muon", learning_rate=0.1, weight_decay=0.0, ema=0.0, warmup=0.0)
    optimiser = Optimiser(weights.items(), config)
    gradients = {name: torch.randn_like(weight) for name, weight in weights.items() if weight.requires_grad}
    for name, gradient in gradients.items():
        weights[name].grad = gradient.clone()
    optimiser.step(0, 100)
    moved = {name: before[name] - weight.detach() for name, weight in weights.items()}
    # Orthogonal up to the iteration's accuracy, as long as AdamW's steps on average, and along the gradient.
    lengths = torch.linalg.svdvals(moved["layer.weight"]) / (0.1 * 0.2 * math.sqrt(12))
    assert 0.6 < float(lengths.min()) <= float(lengths.max()) < 1.4
    assert float((moved["layer.weight"] * gradients["layer.weight"]).sum()) > 0
    # A first step of AdamW goes as far for every number.
    for name in ("lm_head", "norm"):
        torch.testing.assert_close(moved[name], 0.1 * gradients[name].sign(), atol=1e-4, rtol=1e-4)
    assert not moved["fixed"].any()


def test_the_vocabulary_is_what_is_said_most() -> None:
    counts = np.array([0, 5, 2, 5, 0, 9])
    kept = choose_vocabulary(counts, 4)
    assert kept.tolist() == [1, 2, 3, 5]
    assert choose_vocabulary(counts, 5).tolist() == [0, 1, 2, 3, 5]
    assert coverage(counts, choose_vocabulary(counts, 2)) == pytest.approx(14 / 21)
    assert draft_ids(kept, 6).tolist() == [-1, 0, 1, 2, -1, 3]
    with pytest.raises(ValueError, match="draft_vocab_size is 7, and must be between 1 and the target's 6"):
        choose_vocabulary(counts, 7)


def test_a_vocabulary_that_is_added_to_keeps_its_tokens() -> None:
    counts = np.array([0, 5, 2, 5, 0, 9])
    assert choose_vocabulary(counts, 4, [0, 2]).tolist() == [0, 1, 2, 5]
    assert choose_vocabulary(counts, 2, torch.tensor([0, 2])).tolist() == [0, 2]
    assert counts.tolist() == [0, 5, 2, 5, 0, 9]


def test_a_survey_counts_answers_of_training_samples_alone() -> None:
    data = ToyData(
        [ToySample(np.array([1, 2, 3, 3]), 2), ToySample(np.array([4, 4, 0]), 1), ToySample(np.array([1]), 1)]
    )
    found = survey(data, 5, 0.0)
    assert found.training == (0, 1)
    assert found.counts.tolist() == [1, 0, 0, 2, 1]
    assert found.digest != survey(ToyData(data.samples[:2]), 5, 0.0).digest
    with pytest.raises(ValueError, match="sample 1 has token 4, and the target's are 0 to 3"):
        survey(data, 4, 0.0)
    with pytest.raises(ValueError, match="no answers to train on"):
        survey(ToyData(data.samples[2:]), 5, 0.0)


def test_acceptance_by_position() -> None:
    found = acceptance([Tally((10, 6), (8, 3), 5.0, 10), Tally((10, 4), (2, 2), 3.0, 10)])
    assert found.conditional == (0.5, 0.5)
    assert found.unconditional == (0.5, 0.25)
    assert found.at_temperature_1 == 0.4
    assert found.mean_length == 1 + 0.5 + 0.25 + 0.125 + 0.0625
    assert acceptance([]).conditional == ()
    assert acceptance([]).mean_length == 1.0


def test_functions_have_the_gradients_of_what_they_compute() -> None:
    x = torch.randn(5, 6, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, w: rms_norm(x, w, 1e-5, torch.float64), (x, weight))
    torch.testing.assert_close(rms_norm(x, weight, 1e-5, torch.float64), nn.functional.rms_norm(x, (6,), weight, 1e-5))
    rows = torch.tensor([3, 0, 4])
    assert torch.autograd.gradcheck(lambda x: take_rows(x, rows), (x,))
    heads = torch.randn(5, 2, 6, dtype=torch.float64, requires_grad=True)
    angles = torch.randn(5, 3, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: rotate(x, angles.cos(), angles.sin()), (heads,))


def test_a_learning_curve_is_one_picture() -> None:
    look = {"tokens": 1e6, "divergences": [2.0, 3.0], "conditional": [0.4, 0.2]}
    picture = learning_curve([look, {**look, "tokens": 2e6, "conditional": [math.nan, 0.3]}])
    assert picture.startswith("<svg") or picture.startswith("<ns0:svg")
    assert picture.count("viewBox") == 3
    assert "Held-out acceptance" in picture
    assert learning_curve([])
