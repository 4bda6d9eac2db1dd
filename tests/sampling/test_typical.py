"""Typical acceptance: its rule as published, and that it is lossy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec.config import EXACTNESS
from specdec.config import VERIFIERS as NAMES
from specdec.kernels import reference
from specdec.sampling.typical import threshold
from specdec.sampling.verify import VERIFIERS, verify
from specdec.types import Draft, SamplingParams
from tests.sampling.enumeration import SAMPLED
from tests.sampling.helpers import sampling_row
from tests.sampling.test_chi_square import p_value


@given(st.lists(st.floats(0, 1), min_size=2, max_size=9).filter(lambda weights: sum(weights) > 0.1))
def test_the_threshold_is_the_published_one(weights: list[float]) -> None:
    law = np.array(weights) / sum(weights)
    entropy = -sum(p * math.log(p) for p in law if p > 0)
    expected = min(0.09, 0.3 * math.exp(-entropy))
    assert threshold(torch.tensor(law)[None]).item() == pytest.approx(expected, rel=1e-9)


def test_likely_tokens_are_kept_and_unlikely_ones_are_not() -> None:
    law = torch.tensor([0.6, 0.2, 0.1, 0.08, 0.02]).double()
    for token in range(5):
        rows = [sampling_row(SAMPLED, draft=Draft((token,)), seed=seed) for seed in range(5)]
        verdicts = verify(law.log().repeat(10, 1), rows, "typical", reference)
        assert {verdict.num_accepted for verdict in verdicts} == {int(law[token] >= 0.09)}


def test_the_longest_acceptable_path_is_kept_and_the_first_of_equals() -> None:
    uniform, peak = torch.zeros(9, 4), torch.tensor([9.0, 0.0, 0.0, 0.0])
    draft = Draft((3, 1, 2, 0, 2, 1, 3, 2), parents=(-1, -1, 0, 1, 1, 4, 4, 5))
    row = sampling_row(SAMPLED, draft=draft)
    assert verify(uniform, [row], "typical", reference)[0].accepted_path == (1, 4, 5, 7)
    logits = uniform.clone()
    logits[1 + 5] = peak  # node 7's parent now finds it unlikely
    assert verify(logits, [row], "typical", reference)[0].accepted_path == (1, 4, 5)
    logits[1 + 1] = peak  # and of node 1's children only node 3 is acceptable
    assert verify(logits, [row], "typical", reference)[0].accepted_path == (0, 2)


def test_it_is_lossy_where_the_others_are_not() -> None:
    law, draws = np.array([0.5, 0.3, 0.2]), 5000
    logits = torch.tensor(law).log().repeat(2 * draws, 1)
    rows = [sampling_row(SAMPLED, draft=Draft((1,)), seed=seed) for seed in range(draws)]
    for verifier in ("rejection", "block", "coupled", "typical"):
        firsts = np.bincount([v.token_ids[0] for v in verify(logits, rows, verifier, reference)], minlength=3)
        assert (p_value(firsts, law) > 1e-4) == (EXACTNESS[verifier] != "lossy")


def test_greedy_rows_are_exact_even_here() -> None:
    logits = torch.tensor([[0.1, 0.0, 0.0], [0.0, 0.0, 0.1]])
    row = sampling_row(SamplingParams(temperature=0), draft=Draft((1,)))
    assert verify(logits, [row], "typical", reference)[0].token_ids == (0,)


def test_every_verifier_says_what_it_promises() -> None:
    assert list(NAMES) == list(EXACTNESS)
    assert VERIFIERS.keys() == EXACTNESS.keys()
    assert set(EXACTNESS.values()) == {"bytes", "distribution", "lossy"}
    assert [name for name, level in EXACTNESS.items() if level == "lossy"] == ["typical"]
