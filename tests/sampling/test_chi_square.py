"""100,000 draws through `verify` itself against the target's joint law; wrong verifiers must fail the same test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
import pytest
import torch

from specdec.kernels import reference
from specdec.sampling import rejection as production
from specdec.sampling.process import SamplingRow
from specdec.sampling.rng import NoiseKey, Stream, gumbel_argmax
from specdec.sampling.verify import verify
from specdec.types import Verdict
from tests.sampling.enumeration import SAMPLED, Prefix, Table, random_table, table_of_laws
from tests.sampling.helpers import sampling_row
from tests.sampling.wrong import WRONG

DRAWS = 100_000
WRONG_DRAWS = 20_000
"""Fewer show that a verifier is wrong."""
LEAST_P = 1e-4
"""Seeds are fixed, so a right verifier either passes for good or would have been unlucky once in ten thousand."""


def p_value(counts: np.ndarray, law: np.ndarray) -> float:
    """Pearson's chi-square test of counts against a law; cells that cannot occur must be empty."""
    possible = law > 0
    if counts[~possible].any():
        return 0.0
    expected = counts.sum() * law[possible]
    statistic = ((counts[possible] - expected) ** 2 / expected).sum()
    freedom = torch.tensor((possible.sum() - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, torch.tensor(statistic / 2, dtype=torch.float64)))


def draw_drafts(table: Table, seeds: Iterable[int], at: int = 1) -> list[Prefix]:
    """One draft a seed, token i drawn from the table's own law there with the draft stream's noise."""
    drafts: list[Prefix] = [() for _ in seeds]
    for depth in range(table.num_draft_tokens):
        keys = [NoiseKey(seed, 0, at + depth) for seed in seeds]
        laws = torch.stack([table.draft_probs[draft] for draft in drafts])
        tokens = gumbel_argmax(laws.log(), keys, Stream.DRAFT, reference)[0].tolist()
        drafts = [(*draft, token) for draft, token in zip(drafts, tokens, strict=True)]
    return drafts


def joint_counts(table: Table, verdicts: Iterable[Verdict]) -> np.ndarray:
    """Counts of all k + 1 tokens; what verification left open is drawn plainly."""
    rng = np.random.default_rng(77)
    counts = np.zeros((table.vocab_size,) * (table.num_draft_tokens + 1))
    for tokens, count in Counter(verdict.token_ids for verdict in verdicts).items():
        rest = table.continuation(tokens)
        counts[tokens] += rng.multinomial(count, rest.ravel()).reshape(rest.shape)
    return counts


def batch_of(table: Table, *, deterministic: bool = False) -> tuple[torch.Tensor, list[SamplingRow]]:
    """Logits and rows of one sequence a seed, all for one call."""
    seeds = range(DRAWS)
    drafts = [(s % 3, s // 3 % 3) for s in seeds] if deterministic else draw_drafts(table, seeds)
    shared = {draft: table.row(draft, deterministic=deterministic).draft for draft in table.drafts}
    logits = {draft: table.logits(draft) for draft in table.drafts}
    rows = [sampling_row(SAMPLED, draft=shared[draft], seed=seed) for seed, draft in zip(seeds, drafts, strict=True)]
    return torch.cat([logits[draft] for draft in drafts]), rows


@pytest.fixture(scope="module")
def table() -> Table:
    return random_table(4, 2)


@pytest.fixture(scope="module")
def drawn(table: Table) -> tuple[torch.Tensor, list[SamplingRow]]:
    return batch_of(table)


@pytest.mark.parametrize("verifier", ["rejection", "coupled"])
def test_joint_law_with_drawn_drafts(
    verifier: str, table: Table, drawn: tuple[torch.Tensor, list[SamplingRow]]
) -> None:
    counts = joint_counts(table, verify(*drawn, verifier, reference))
    assert counts.sum() == DRAWS
    assert p_value(counts, table.continuation(())) > LEAST_P


@pytest.mark.parametrize("verifier", ["rejection", "coupled"])
def test_joint_law_with_deterministic_drafts(verifier: str, table: Table) -> None:
    counts = joint_counts(table, verify(*batch_of(table, deterministic=True), verifier, reference))
    assert counts.sum() == DRAWS
    assert p_value(counts, table.continuation(())) > LEAST_P


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_verifier_fails(
    name: str, table: Table, drawn: tuple[torch.Tensor, list[SamplingRow]], monkeypatch: pytest.MonkeyPatch
) -> None:
    acceptance_probs, emission_logits = WRONG[name]
    monkeypatch.setattr(production, "acceptance_probs", acceptance_probs)
    monkeypatch.setattr(production, "emission_logits", emission_logits)
    logits, rows = drawn[0][: 3 * WRONG_DRAWS], drawn[1][:WRONG_DRAWS]
    counts = joint_counts(table, verify(logits, rows, "rejection", reference))
    assert p_value(counts, table.continuation(())) < 1e-12


def test_dropping_a_draft_after_looking_at_it_fails() -> None:
    table = table_of_laws([0.7, 0.3], [0.5, 0.5])
    drafts = draw_drafts(table, range(WRONG_DRAWS))
    batch = [
        table.row(d, seed) if d == (0,) else sampling_row(table.row(d).params, seed=seed)
        for seed, d in enumerate(drafts)
    ]
    logits = torch.cat([table.logits(draft)[: row.num_logits] for draft, row in zip(drafts, batch, strict=True)])
    firsts = np.bincount([v.token_ids[0] for v in verify(logits, batch, "rejection", reference)], minlength=2)
    assert p_value(firsts, np.array([0.7, 0.3])) < 1e-12
    assert p_value(firsts, np.array([0.85, 0.15])) > LEAST_P


def test_the_reported_law_is_the_one_drafts_are_drawn_from(table: Table) -> None:
    counts = np.zeros((3, 3))
    for draft in draw_drafts(table, range(DRAWS)):
        counts[draft] += 1
    law = np.array([[table.draft_law((i, j)) for j in range(3)] for i in range(3)])
    assert p_value(counts, law) > LEAST_P
