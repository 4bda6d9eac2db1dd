"""The tokens that a reduced head can guess."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from specdec.models.head_vocab import read_draft_vocab, target_ids
from tests.models.head_writing import VOCAB, mapping


def ids_of(offsets: torch.Tensor, marks: torch.Tensor | None = None, size: int = 4) -> list[int]:
    return target_ids(offsets, marks, size=size, vocab_size=VOCAB, where="head").tolist()


def test_d2t_is_an_offset() -> None:
    assert ids_of(torch.tensor([0, 0, 3, 37])) == [0, 1, 5, 40]
    assert ids_of(torch.tensor([9, 0, -2, -1], dtype=torch.int32)) == [9, 1, 0, 2]


def test_t2d_marks_what_d2t_leads_to() -> None:
    chosen = torch.tensor([3, 5, 9, 40])
    both = mapping(chosen)
    assert ids_of(both["d2t"], both["t2d"]) == chosen.tolist()
    assert ids_of(both["d2t"], both["t2d"].to(torch.uint8)) == chosen.tolist()
    with pytest.raises(
        ValueError, match=r"^head: t2d marks 4 target tokens, and they are not those that d2t leads to$"
    ):
        ids_of(both["d2t"], mapping(torch.tensor([3, 5, 9, 39]))["t2d"])


@pytest.mark.parametrize(
    ("offsets", "said"),
    [
        (torch.tensor([0, 0, 0, 38]), "head: d2t leads to token 41, and the model's tokens are 0 to 40"),
        (torch.tensor([-1, 0, 0, 0]), "head: d2t leads to token -1, and"),
        (torch.tensor([1, 0, 0, 0]), "head: d2t leads to token 1 more than once"),
        (torch.tensor([0, 0, 0]), "head: d2t must be 4 integers, .*; got \\[3\\] of torch.int64"),
        (torch.zeros(4), "head: d2t must be 4 integers, .*; got \\[4\\] of torch.float32"),
        (torch.zeros(2, 2, dtype=torch.int64), "head: d2t must be 4 integers"),
    ],
)
def test_a_mapping_that_is_wrong(offsets: torch.Tensor, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ids_of(offsets)


@pytest.mark.parametrize("content", [[5, 0, 40], torch.tensor([5, 0, 40]), torch.tensor([5, 0, 40], dtype=torch.int32)])
def test_files_of_token_ids(content: list[int] | torch.Tensor, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "ids.pt")
    (tmp_path / "ids.json").write_text(json.dumps([5, 0, 40]))
    for file in ("ids.pt", "ids.json"):
        ids = read_draft_vocab(tmp_path / file, VOCAB)
        assert (ids.tolist(), ids.dtype) == ([5, 0, 40], torch.int64)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([], "lists no tokens; a draft vocabulary needs at least one"),
        ([1, 2, 1], "lists token 1 more than once"),
        ([VOCAB], f"lists token {VOCAB}, and the model's tokens are 0 to {VOCAB - 1}"),
        ([-1], "lists token -1, and"),
        ([10**30], "lists token 1" + "0" * 30),
        ([1.0], "must hold a list of token ids"),
        ([True], "must hold a list of token ids"),
        ({"1": 2}, "must hold a list of token ids"),
        (7, "must hold a list of token ids"),
    ],
)
def test_lists_that_are_refused(content: object, said: str, tmp_path: Path) -> None:
    (tmp_path / "ids.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=said) as error:
        read_draft_vocab(tmp_path / "ids.json", VOCAB)
    assert str(error.value).startswith(f"{tmp_path / 'ids.json'} ")


@pytest.mark.parametrize("content", [torch.ones(3), torch.ones(2, 2, dtype=torch.int64), torch.tensor(3), "1, 2"])
def test_torch_files_that_are_refused(content: object, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "ids.pt")
    with pytest.raises(ValueError, match="must hold a list of token ids"):
        read_draft_vocab(tmp_path / "ids.pt", VOCAB)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "ids.json").write_text("[1,")
    with pytest.raises(ValueError, match=r"ids\.json is neither JSON nor a \.pt file"):
        read_draft_vocab(tmp_path / "ids.json", VOCAB)
    with pytest.raises(ValueError, match=r"none\.json cannot be read: No such file"):
        read_draft_vocab(tmp_path / "none.json", VOCAB)
    with pytest.raises(ValueError, match=r"none\.pt cannot be read: No such file"):
        read_draft_vocab(tmp_path / "none.pt", VOCAB)
