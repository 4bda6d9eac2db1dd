"""What breaks the contract is refused, in one line, and what keeps it passes as it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from specdec.proposers.checking import ContractError, checked_drafts, untouched
from specdec.types import EMPTY_DRAFT, Draft
from tests.proposers.helpers import make_sequence

V = 4
CPU = torch.device("cpu")
LAW = torch.full((2, V), 1 / V)


def check(*drafts: Any, length: int = 3) -> list[Draft | None]:
    return checked_drafts(drafts, [length] * len(drafts), "mine", V, CPU)


def law(row: list[float]) -> torch.Tensor:
    return torch.tensor([[1 / V] * V, row])


WRONG_LAWS: dict[str, tuple[Any, str]] = {
    "sparse": (LAW.to_sparse(), "must be a dense tensor"),
    "integers": (torch.tensor([[1, 0, 0, 0]] * 2), "must be a floating point tensor"),
    "booleans": (torch.tensor([[True, False, False, False]] * 2), "must be a floating point tensor"),
    "complex": (LAW.to(torch.complex64), "must be a floating point tensor"),
    "nan": (law([0.5, 0.5, float("nan"), 0]), "is not finite"),
    "infinite": (law([float("inf"), 0, 0, 0]), "is not finite"),
    "both infinities": (law([float("inf"), -float("inf"), 0.5, 0.5]), "is not finite"),
    "negative": (law([1.5, -0.5, 0, 0]), "the negative probability -0.5"),
    "zeros": (law([0, 0, 0, 0]), "the sum of a row of draft_probs is off 1 by 1"),
    "logits": (law([3.0, 1.0, 0.0, 0.0]), "is off 1 by 3"),
    "a row less": (LAW[:1], "shape (1, 4) for 2 tokens"),
    "another vocabulary": (torch.full((2, 5), 0.2), "shape (2, 5)"),
    "elsewhere": (LAW.to("meta"), "draft_probs on meta"),
    "no tensor": ([[0.25] * V] * 2, "must be a tensor; got a list"),
}


@pytest.mark.parametrize("name", WRONG_LAWS)
def test_what_is_no_law_is_refused(name: str) -> None:
    probs, message = WRONG_LAWS[name]
    with pytest.raises(ContractError) as refused:
        check(EMPTY_DRAFT, Draft((1, 2), None, probs))
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_laws_pass_with_their_rounding(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    probs = torch.softmax(3 * torch.randn(4, 50_000), dim=-1).to(dtype)
    draft = Draft((1, 2, 3, 4), None, probs, "mine")
    assert checked_drafts([draft, None], [4, 4], "mine", 50_000, CPU) == [draft, None]
    empty = Draft((), None, torch.zeros(0, V))
    assert check(empty) == [empty]


@pytest.mark.parametrize(
    ("draft", "message"),
    [
        (Draft({1, 2}), "token_ids of a draft must be a tuple; got a set"),  # type: ignore[arg-type]
        (Draft(torch.tensor([1])), "token_ids of a draft must be a tuple; got a Tensor"),  # type: ignore[arg-type]
        (Draft((1,), {-1}), "parents of a draft must be a tuple; got a set"),  # type: ignore[arg-type]
        (Draft((1, 2), {0: -1, 1: 0}), "parents of a draft must be a tuple; got a dict"),  # type: ignore[arg-type]
        (Draft((1, 2), (-1,)), "2 tokens and 1 parents"),
        (Draft((1, 2), (-1, 1)), "the parent of draft node 1"),
        (Draft((1,) * 4), "4 tokens where at most 3 were asked for"),
        (Draft((1, 4)), "outside the vocabulary of 4"),
        (Draft((True,)), "not an integer"),
        (Draft((1,) * 65, (-1,) * 65), "at most 64 can be verified"),
    ],
)
def test_what_is_no_draft_is_refused(draft: Draft, message: str) -> None:
    with pytest.raises(ContractError, match=message):
        check(draft)


def test_a_count_that_differs_is_refused_and_kinds_do_not_change_with_numbers() -> None:
    kinds = []
    for drafts, lengths in (([], [1]), ([None], [1, 2, 3])):
        with pytest.raises(ContractError) as refused:
            checked_drafts(drafts, lengths, "mine", V, CPU)
        kinds.append((refused.value.kind, str(refused.value)))
    assert kinds[0][0] == kinds[1][0]
    assert kinds[0][1] != kinds[1][1]


def test_lists_become_tuples_that_nobody_can_change_later() -> None:
    ids, parents = [1, 2], [-1, 0]
    (draft,) = check(Draft(ids, parents))  # type: ignore[arg-type]
    ids.append(3)
    parents.append(1)
    assert draft == Draft((1, 2), (-1, 0), proposer="mine")


@pytest.mark.parametrize("how", ["append", "replace"])
@pytest.mark.parametrize("raises", [False, True])
def test_tokens_that_were_changed_are_put_back(how: str, raises: bool) -> None:
    """Where the tokens are a plain list, which refuses nothing."""
    others, sequence = make_sequence([3]), make_sequence([1, 2])
    own = sequence.token_ids

    def misbehave() -> None:
        with untouched([others, sequence]):
            if how == "append":
                sequence.token_ids.append(3)
            else:
                sequence.token_ids = [1, 2]
            if raises:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError if raises else ContractError):
        misbehave()
    assert sequence.token_ids is own
    assert own == [1, 2]
