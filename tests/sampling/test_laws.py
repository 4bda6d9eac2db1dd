"""The exact laws of rejection sampling and of the coupling, by enumeration (ALGORITHMS.md, section 2)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from specdec.sampling.rng import NoiseKey, Stream, gumbel
from tests.sampling.enumeration import (
    Table,
    enumerate_chain,
    gumbel_match_probability,
    random_table,
    table_of_laws,
    total_variation,
)
from tests.sampling.helpers import CPU
from tests.sampling.wrong import WRONG

EXACT = 1e-12
NUM_TABLES = 200


def _tables(num_draft_tokens: int, count: int = NUM_TABLES) -> list[Table]:
    return [random_table(1000 * num_draft_tokens + seed, num_draft_tokens) for seed in range(count)]


@pytest.mark.parametrize("num_draft_tokens", [1, 2, 3])
def test_tokens_have_the_targets_law_and_acceptance_is_one_minus_tv(num_draft_tokens: int) -> None:
    for table in _tables(num_draft_tokens):
        outcome = enumerate_chain(table)
        assert np.abs(outcome.first - table.target_probs(())).max() < EXACT
        assert np.abs(outcome.joint - table.continuation(())).max() < EXACT
        accepted_first = outcome.accepted[1:].sum()
        assert (
            abs(accepted_first - (1 - total_variation(table.target_probs(()), table.draft_probs[()].numpy()))) < EXACT
        )


@pytest.mark.parametrize("num_draft_tokens", [1, 2, 3])
def test_a_deterministic_draft_leaves_the_targets_law_whatever_it_says(num_draft_tokens: int) -> None:
    for table in _tables(num_draft_tokens, 40):
        for draft in table.drafts:
            outcome = enumerate_chain(table, {draft: 1.0}, deterministic=True)
            assert np.abs(outcome.joint - table.continuation(())).max() < EXACT
            assert abs(outcome.accepted[1:].sum() - table.target_probs(())[draft[0]]) < EXACT


@pytest.mark.parametrize("num_draft_tokens", [1, 2, 3, 5])
def test_expected_length_at_independent_positions(num_draft_tokens: int) -> None:
    target, draft = np.array([0.6, 0.3, 0.1]), np.array([0.2, 0.3, 0.5])
    rate = 1 - total_variation(target, draft)
    table = table_of_laws(target, draft, num_draft_tokens)  # type: ignore[arg-type]
    expected = (1 - rate ** (num_draft_tokens + 1)) / (1 - rate)
    assert abs(1 + enumerate_chain(table).mean_accepted - expected) < EXACT


def test_the_target_as_its_own_draft_is_always_accepted() -> None:
    for seed in range(50):
        table = random_table(seed, 2)
        own = {prefix: torch.softmax(logits, dim=-1) for prefix, logits in table.target_logits.items()}
        outcome = enumerate_chain(Table(3, 2, table.target_logits, own))
        assert abs(outcome.accepted[2] - 1.0) < EXACT


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_verifier_does_not_have_the_targets_law(name: str) -> None:
    acceptance_probs, emission_logits = WRONG[name]
    deviations = [
        np.abs(
            enumerate_chain(table, acceptance_probs=acceptance_probs, emission_logits=emission_logits).joint
            - table.continuation(())
        ).max()
        for table in _tables(2, 40)
    ]
    assert np.median(deviations) > 1e-3


def test_a_draft_law_with_the_temperature_left_out_fails() -> None:
    deviations = []
    for table in _tables(2, 40):
        sampled_from = {prefix: (law**2.0) / (law**2.0).sum() for prefix, law in table.draft_probs.items()}
        at_half_temperature = Table(3, 2, table.target_logits, sampled_from)
        weights = {draft: at_half_temperature.draft_law(draft) for draft in table.drafts}
        deviations.append(np.abs(enumerate_chain(table, weights).joint - table.continuation(())).max())
    assert np.median(deviations) > 1e-3


def peeking_law(target: list[float], draft: list[float]) -> np.ndarray:
    """First token's law under a scheduler that drops the draft after seeing that it is not token 0."""
    table = table_of_laws(target, draft)
    kept = enumerate_chain(table, {(0,): draft[0]}).joint.sum(axis=1)
    dropped = (1 - draft[0]) * np.array(target)
    return kept + dropped


def test_dropping_a_draft_after_looking_at_it_is_caught() -> None:
    target, draft = [0.7, 0.3], [0.5, 0.5]
    peeked = peeking_law(target, draft)
    assert np.abs(peeked - [0.85, 0.15]).max() < EXACT
    assert np.abs(peeked - target).max() > 0.1
    assert np.abs(enumerate_chain(table_of_laws(target, draft)).first - target).max() < EXACT


def test_match_probability_of_the_coupling_lies_between_its_bounds() -> None:
    rng = np.random.default_rng(3)
    for _ in range(NUM_TABLES):
        size = int(rng.integers(2, 7))
        target, draft = rng.dirichlet(np.ones(size)), rng.dirichlet(np.ones(size))
        distance = total_variation(target, draft)
        match = gumbel_match_probability(target, draft)
        assert (1 - distance) / (1 + distance) - EXACT <= match <= 1 - distance + EXACT


def test_the_noise_matches_the_couplings_closed_form() -> None:
    draws = 200_000
    noise = gumbel([NoiseKey(9, 0, position) for position in range(draws)], Stream.RESAMPLE, 3, CPU)
    for seed in range(5):
        laws = torch.tensor(np.random.default_rng(seed).dirichlet(np.ones(3), size=2))
        choices = [(law.log() + noise).argmax(dim=-1) for law in laws]
        expected = gumbel_match_probability(laws[0].numpy(), laws[1].numpy())
        observed = (choices[0] == choices[1]).double().mean().item()
        assert abs(observed - expected) < 5 * np.sqrt(expected * (1 - expected) / draws)
