"""Places are uniform for tokens of the law, whatever the laws are, and not for others."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from specdec.eval.chi_square import uniform_p_value
from specdec.eval.places import place


def law_of(weights: list[float]) -> torch.Tensor:
    return torch.tensor(weights, dtype=torch.float64)


def test_intervals_are_in_the_order_of_likelihood() -> None:
    law = law_of([0.2, 0.5, 0.1, 0.2])
    assert [place(law, token, 0.0) for token in (1, 0, 3, 2)] == pytest.approx([0.0, 0.5, 0.7, 0.9])
    assert place(law, 0, 0.5) == pytest.approx(0.6)


def test_an_impossible_token_is_last() -> None:
    assert place(law_of([0.0, 1.0]), 0, 0.3) == 1.0
    assert place(law_of([0.5, 0.5]), 0, 0.3, without=[0]) == 1.0


def test_without_some_tokens_the_rest_is_renormalised() -> None:
    law = law_of([0.2, 0.5, 0.1, 0.2])
    assert abs(place(law, 3, 0.0, without=[1]) - 0.4) < 1e-12
    assert law.tolist() == [0.2, 0.5, 0.1, 0.2]


def test_places_are_uniform_for_the_law_itself_and_only_for_it() -> None:
    rng = np.random.default_rng(0)
    right, wrong = [], []
    for _ in range(2000):
        law, other = rng.dirichlet(np.ones(9)), rng.dirichlet(np.ones(9))
        right.append(place(law_of(law.tolist()), int(rng.choice(9, p=law)), rng.random()))
        wrong.append(place(law_of(law.tolist()), int(rng.choice(9, p=0.8 * law + 0.2 * other)), rng.random()))
    assert uniform_p_value(right, 16) > 1e-3
    assert uniform_p_value(wrong, 16) < 1e-6
