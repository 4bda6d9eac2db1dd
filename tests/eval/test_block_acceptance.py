"""The law of what block verification keeps, from the laws alone; right verifiers pass and wrong ones do not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
import pytest
import torch

from specdec.eval.block_acceptance import Count, Judged, number_law
from specdec.eval.checks import FAILED, PASSED, Check
from specdec.eval.driving import Watch
from specdec.eval.law_test import LawTest
from specdec.eval.losslessness import contexts
from specdec.eval.verify_settings import TEST_LEVEL
from specdec.eval.witness import Chain
from specdec.sampling import block
from specdec.sampling.process import SamplingRow
from specdec.sampling.rng import Stream, uniform
from specdec.types import Draft
from tests.eval.tiny import PROMPTS, config, scripted

SEEDS = (0, 1000, 2000)


def acceptance(seed: int, draws: int = 512) -> Check:
    models = scripted()
    engine = models.build(config("draft", verifier="block"))
    found = LawTest(engine, models.build, contexts(PROMPTS, 200), 0.8, draws, seed, Watch()).run()
    (check,) = (check for check in found if check.name == "acceptance")
    return check


def coin(row: SamplingRow, length: int) -> float:
    return uniform(row.seed, row.sample, row.num_tokens + length - 1, Stream.ACCEPT, length - 1)


def only_the_whole(row: SamplingRow, kept: Sequence[float]) -> int:
    whole = len(kept) - 1
    return whole if whole and coin(row, whole) < kept[whole] else 0


def stops_at_the_first_no(row: SamplingRow, kept: Sequence[float]) -> int:
    return next((n - 1 for n in range(1, len(kept)) if coin(row, n) >= kept[n]), len(kept) - 1)


def whatever_is_drafted(row: SamplingRow, kept: Sequence[float]) -> int:
    return len(kept) - 1


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("wrong", [only_the_whole, stops_at_the_first_no, whatever_is_drafted])
def test_a_wrong_choice_of_the_length_fails(
    wrong: Callable[[SamplingRow, Sequence[float]], int], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block, "_longest_kept", wrong)
    check = acceptance(seed)
    assert check.status == FAILED
    assert "the whole draft judged together (p = " in check.faults[0]


@pytest.mark.parametrize("seed", SEEDS)
def test_whole_drafts_that_are_always_kept_fail(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    right = block.prefix_chances

    def keeps(target: torch.Tensor, draft: torch.Tensor, ids: Sequence[int]) -> tuple[list[float], list[float]]:
        carried, kept = right(target, draft, ids)
        return carried, [*kept[:-1], 1.0]

    monkeypatch.setattr(block, "prefix_chances", keeps)
    assert acceptance(seed).status == FAILED


def test_the_right_verifier_passes_with_many_seeds() -> None:
    p_values = []
    for seed in range(16):
        check = acceptance(1000 * seed, draws=96)
        assert check.status == PASSED, check
        assert check.figures["level"] == TEST_LEVEL
        p_values.append(check.figures["p_value"])
    assert min(p_values) > 1e-3
    assert sorted(p_values)[4] < 0.9, "a test that never comes near failing shows nothing"


def laws(seed: int, k: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    target, draft = (torch.tensor(rng.dirichlet([0.7] * size, (k + 1, size))) for _ in range(2))
    return target, draft  # [k + 1, last token, V]: a first-order chain


@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_expected_length_is_the_one_of_the_paper(k: int) -> None:
    """E[accepted] = the sum over prefixes of draft-law(prefix) * c(prefix), over every draft there is."""
    size = 3
    target, draft = laws(k, k, size)
    expected = told = 0.0
    for ids in product(range(size), repeat=k):
        before = (0, *ids[:-1])
        rows = torch.stack([draft[i, before[i]] for i in range(k)])
        chance = float(torch.stack([rows[i, ids[i]] for i in range(k)]).prod())
        judged = Judged(Chain.of(Draft(ids, None, rows)), 0)
        carried = 1.0
        for i in range(k):
            judged.see(i, target[i, before[i]])
            carried = min(1.0, carried * float(target[i, before[i], ids[i]] / rows[i, ids[i]]))
            told += chance * carried
        assert sum(judged.law) == pytest.approx(1.0)
        assert len(judged.law) == k + 1
        expected += chance * sum(length * own for length, own in enumerate(judged.law))
    assert expected == pytest.approx(told, abs=1e-6)


def test_counts_have_exact_p_values() -> None:
    chances = (0.2, 0.5, 0.9, 0.4)
    law = [0.0] * 5
    for outcome in product((0, 1), repeat=4):
        weights = [c if o else 1 - c for c, o in zip(chances, outcome, strict=True)]
        law[sum(outcome)] += float(np.prod(weights))
    assert number_law(chances) == pytest.approx(law)
    assert Count("1 or more", 4, chances).p_value == pytest.approx(2 * law[4])
    assert Count("1 or more", 0, chances).p_value == pytest.approx(2 * law[0])
    assert Count("1 or more", 2, chances).p_value == 1.0
    assert number_law(()) == pytest.approx([1.0])
