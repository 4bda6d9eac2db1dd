"""Block verification by exact enumeration and by draws through `verify`; wrong variants must fail both."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from specdec.kernels import reference
from specdec.sampling import block as production
from specdec.sampling.process import SamplingRow
from specdec.sampling.rng import NoiseKey, Stream, gumbel_argmax, uniform
from specdec.sampling.verify import verify
from specdec.types import Draft
from tests.sampling.enumeration import (
    SAMPLED,
    Prefix,
    Table,
    enumerate_block,
    enumerate_chain,
    random_table,
    table_of_laws,
    total_variation,
)
from tests.sampling.helpers import fingerprint, sampling_row
from tests.sampling.test_chi_square import DRAWS, LEAST_P, WRONG_DRAWS, batch_of, joint_counts, p_value

EXACT = 1e-12


def _tables(num_draft_tokens: int, count: int = 100) -> list[Table]:
    return [random_table(1000 * num_draft_tokens + seed, num_draft_tokens) for seed in range(count)]


@pytest.mark.parametrize("k", [1, 2, 3])
def test_tokens_have_the_targets_law_and_more_are_accepted_than_by_rejection(k: int) -> None:
    gains = []
    for table in _tables(k):
        outcome, by_rejection = enumerate_block(table), enumerate_chain(table)
        assert np.abs(outcome.first - table.target_probs(())).max() < EXACT
        assert np.abs(outcome.joint - table.continuation(())).max() < EXACT
        assert abs(outcome.accepted.sum() - 1) < EXACT
        gains.append(outcome.mean_accepted - by_rejection.mean_accepted)
        if k == 1:
            distance = total_variation(table.target_probs(()), table.draft_probs[()].numpy())
            assert abs(outcome.accepted[1] - (1 - distance)) < EXACT
    assert min(gains) > -EXACT
    assert max(map(abs, gains)) < EXACT if k == 1 else np.mean(gains) > 1e-3


def _prefixes(table: Table) -> list[Prefix]:
    return [draft for draft in table.target_logits if 0 < len(draft) <= table.num_draft_tokens]


def _carried(table: Table, prefix: Prefix) -> float:
    mass = 1.0
    for i, token in enumerate(prefix):
        mass = min(mass * table.target_probs(prefix[:i])[token] / float(table.draft_probs[prefix[:i]][token]), 1.0)
    return mass


def _joint(table: Table, prefix: Prefix) -> float:
    return float(np.prod([table.target_probs(prefix[:i])[token] for i, token in enumerate(prefix)]))


@pytest.mark.parametrize("k", [1, 2, 3])
def test_expected_length_is_the_carried_mass_and_not_the_overlap_of_the_joint_laws(k: int) -> None:
    errors = []
    for table in _tables(k, 40):
        drawn = [prefix for prefix in _prefixes(table) if table.draft_law(prefix) > 0]
        expected = sum(table.draft_law(prefix) * _carried(table, prefix) for prefix in drawn)
        overlap = sum(min(table.draft_law(prefix), _joint(table, prefix)) for prefix in drawn)
        observed = enumerate_block(table).mean_accepted
        assert abs(observed - expected) < EXACT
        errors.append(abs(observed - overlap))
    assert max(errors) < EXACT if k == 1 else np.median(errors) > 1e-3


def test_a_deterministic_draft_is_accepted_as_rejection_does() -> None:
    for table in _tables(3, 30):
        for draft in table.drafts[::4]:
            one_hot = {draft[:i]: torch.eye(3, dtype=torch.float64)[token] for i, token in enumerate(draft)}
            certain = Table(3, 3, table.target_logits, table.draft_probs | one_hot)
            by_block = enumerate_block(certain)
            by_rejection = enumerate_chain(table, {draft: 1.0}, deterministic=True)
            assert np.abs(by_block.joint - table.continuation(())).max() < EXACT
            assert np.abs(by_block.accepted - by_rejection.accepted).max() < EXACT


def test_without_a_draft_law_the_verdicts_are_those_of_rejection() -> None:
    generator = torch.Generator().manual_seed(3)
    rows = [sampling_row(SAMPLED, (0, i), 1, (1, 2, 0)[: i % 4], seed=i) for i in range(40)]
    logits = torch.randn(sum(row.num_logits for row in rows), 5, generator=generator)
    assert verify(logits, rows, "block", reference) == verify(logits, rows, "rejection", reference)


def test_the_target_as_its_own_draft_is_accepted_whole() -> None:
    for seed in range(30):
        table = random_table(seed, 3)
        own = {prefix: torch.softmax(logits, dim=-1) for prefix, logits in table.target_logits.items()}
        selfish = Table(3, 3, table.target_logits, own)
        assert abs(enumerate_block(selfish).accepted[3] - 1) < EXACT
        drafts = [draft for draft in selfish.drafts if selfish.draft_law(draft) > 0]
        rows = [selfish.row(draft, seed) for draft in drafts]
        verdicts = verify(torch.cat([selfish.logits(draft) for draft in drafts]), rows, "block", reference)
        assert {verdict.num_accepted for verdict in verdicts} == {3}


def test_where_nothing_is_left_and_nothing_is_missing_the_prefix_is_kept() -> None:
    law = torch.tensor([[0.5, 0.5]] * 3, dtype=torch.float64)
    assert production.prefix_chances(law, law[:2], [0, 1]) == ([1.0] * 3, [1.0] * 3)
    with pytest.raises(ZeroDivisionError):
        chances_without_the_empty_case(law, law[:2], [0, 1])


def chances_without_the_empty_case(
    target: torch.Tensor, draft: torch.Tensor, token_ids: Prefix
) -> tuple[list[float], list[float]]:
    """h = A / (A + 1 - c) even where that is 0 / 0."""
    carried, kept = production.prefix_chances(target, draft, token_ids)
    for i in range(1, len(token_ids)):
        excess = (carried[i] * target[i] - draft[i]).clamp(min=0.0).sum().item()
        kept[i] = excess / (excess + 1 - carried[i])
    return carried, kept


def break_early(kept: list[float]) -> list[float]:
    """The law of the longest run of kept prefixes, the first rejection ending it."""
    runs = [float(np.prod(kept[: i + 1])) for i in range(len(kept))]
    return [run * (1 - (kept[i + 1] if i + 1 < len(kept) else 0.0)) for i, run in enumerate(runs)]


def keep_by_mass(target: torch.Tensor, draft: torch.Tensor, token_ids: Prefix) -> tuple[list[float], list[float]]:
    """Every prefix is kept with the chance that belongs to the last one."""
    carried, _ = production.prefix_chances(target, draft, token_ids)
    return carried, list(carried)


def plain_residual(target: torch.Tensor, draft: torch.Tensor, carried: list[float], count: int) -> torch.Tensor:
    """Rejection sampling's residual: the target is not scaled by the mass that is carried."""
    return production.prefix_excess(target, draft, [1.0] * len(carried), count)


@pytest.mark.parametrize(
    "wrong", [{"count_law": break_early}, {"prefix_chances": keep_by_mass}, {"prefix_excess": plain_residual}]
)
def test_a_wrong_variant_does_not_have_the_targets_law(wrong: dict) -> None:
    tables = _tables(2, 40)
    deviations = [np.abs(enumerate_block(t, **wrong).joint - t.continuation(())).max() for t in tables]
    assert np.quantile(deviations, 0.9) > 1e-3


@pytest.fixture(scope="module")
def table() -> Table:
    return random_table(4, 2)


@pytest.fixture(scope="module")
def drawn(table: Table) -> tuple[torch.Tensor, list[SamplingRow]]:
    return batch_of(table)


def test_joint_law_and_lengths_of_draws(table: Table, drawn: tuple[torch.Tensor, list[SamplingRow]]) -> None:
    before = fingerprint(drawn[0], *(row.draft.draft_probs for row in drawn[1][:100]))
    verdicts = verify(*drawn, "block", reference)
    assert fingerprint(drawn[0], *(row.draft.draft_probs for row in drawn[1][:100])) == before
    counts = joint_counts(table, verdicts)
    assert counts.sum() == DRAWS
    assert p_value(counts, table.continuation(())) > LEAST_P
    lengths = np.bincount([verdict.num_accepted for verdict in verdicts], minlength=3)
    assert p_value(lengths, enumerate_block(table).accepted) > LEAST_P
    assert p_value(lengths, enumerate_chain(table).accepted) < 1e-12


def test_an_early_break_fails(
    table: Table, drawn: tuple[torch.Tensor, list[SamplingRow]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def first_run(row: SamplingRow, kept: list[float]) -> int:
        coins = [uniform(row.seed, row.sample, row.num_tokens + i, Stream.ACCEPT, i) for i in range(len(kept) - 1)]
        return next((i for i, coin in enumerate(coins) if coin >= kept[i + 1]), len(coins))

    monkeypatch.setattr(production, "_longest_kept", first_run)
    verdicts = verify(drawn[0][: 3 * WRONG_DRAWS], drawn[1][:WRONG_DRAWS], "block", reference)
    assert p_value(joint_counts(table, verdicts), table.continuation(())) < 1e-12


def _firsts_of_second_steps(table: Table, fresh: bool) -> tuple[np.ndarray, np.ndarray]:
    """First tokens of a second step, and their law, over sequences whose first step accepted nothing.

    The laws are the same at every position, so the second step must not know what became of the first.
    """
    seeds, counts = range(WRONG_DRAWS), np.zeros(table.vocab_size)

    def drafts(live: list[int], at: int) -> list[Prefix]:
        laws = table.draft_probs[()].log().expand(len(live), -1)
        columns = []
        for depth in range(table.num_draft_tokens):
            keys = [NoiseKey(seed, 0, at + depth, depth if fresh else 0) for seed in live]
            columns.append(gumbel_argmax(laws, keys, Stream.DRAFT, reference)[0].tolist())
        return list(zip(*columns, strict=True))

    def step(live: list[int], committed: Prefix) -> list:
        probs = table.draft_probs[()].expand(table.num_draft_tokens, -1)
        batch = [
            sampling_row(SAMPLED, committed, 1, Draft(draft, None, probs), seed=seed)
            for seed, draft in zip(live, drafts(live, len(committed)), strict=True)
        ]
        logits = table.target_logits[()].expand(len(live) * (table.num_draft_tokens + 1), -1)
        return verify(logits, batch, "block", reference)

    rejected = [seed for seed, verdict in zip(seeds, step(list(seeds), (0,)), strict=True) if not verdict.num_accepted]
    for verdict in step(rejected, (0, 0)):
        counts[verdict.token_ids[0]] += 1
    return counts, table.target_probs(())


def test_a_second_step_does_not_remember_the_first() -> None:
    table = table_of_laws([0.5, 0.3, 0.2], [0.2, 0.3, 0.5], num_draft_tokens=4)
    counts, law = _firsts_of_second_steps(table, fresh=True)
    assert counts.sum() > 1000
    assert p_value(counts, law) > LEAST_P
    assert p_value(_firsts_of_second_steps(table, fresh=False)[0], law) < 1e-6, "noise of discarded drafts met again"


@pytest.mark.parametrize("bad", [1, 2, 3])
def test_a_row_without_a_law_ends_the_draft_before_it(bad: int) -> None:
    table = random_table(6, 3)
    own = {prefix: torch.softmax(logits, dim=-1) for prefix, logits in table.target_logits.items()}
    row = Table(3, 3, table.target_logits, own).row((0, 1, 1))
    logits = table.logits((0, 1, 1))
    logits[bad] = float("nan")
    (verdict,) = verify(logits, [row], "block", reference)
    assert verdict.token_ids == (0, 1, 1)[:bad]
    assert f"position {1 + bad} are not numbers" in (verdict.error or "")
