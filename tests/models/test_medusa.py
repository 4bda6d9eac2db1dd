"""Medusa heads against their plain definition, in every file they come in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from specdec.models.decoder import Decoder
from specdec.models.heads import MedusaHead
from specdec.models.parts import Linear
from tests.models import plain_heads
from tests.models.head_cases import difference
from tests.models.head_writing import TARGET_HIDDEN, VOCAB, load, medusa_tensors, target, write

CONFIG = {"medusa_num_heads": 5, "medusa_num_layers": 1, "base_model_name_or_path": "some/model"}
"""The authors' config; its numbers are not always those of the file."""

FORMATS: dict[str, Callable[[Path, int], Path]] = {
    "pt": lambda d, n: write(d, medusa_tensors(num_layers=n), CONFIG, "medusa_lm_head.pt"),
    "pt without a config": lambda d, n: write(d, medusa_tensors(num_layers=n), None, "medusa_lm_head.pt"),
    "safetensors": lambda d, n: write(d, medusa_tensors(num_layers=n), CONFIG, "medusa_lm_head.safetensors"),
    "a model's name and a prefix": lambda d, n: write(d, medusa_tensors(num_layers=n, prefix="medusa_head."), None),
    "a file": lambda d, n: write(d, medusa_tensors(num_layers=n), None, "my_heads.pt") / "my_heads.pt",
}


def load_medusa(path: Path, to: Decoder, **options: Path) -> MedusaHead:
    head = load(path, to, **options)
    assert isinstance(head, MedusaHead)
    return head


def states(count: int) -> torch.Tensor:
    return torch.randn(count, TARGET_HIDDEN, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def plain(count: int, num_layers: int = 1) -> torch.Tensor:
    return plain_heads.medusa_logits(medusa_tensors(num_layers=num_layers), states(count), 3, num_layers)


@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("form", FORMATS)
def test_logits_equal_the_plain_definition(form: str, num_layers: int, tmp_path: Path) -> None:
    head = load_medusa(FORMATS[form](tmp_path, num_layers), target())
    assert (head.num_heads, head.hidden_size, head.num_logits) == (3, TARGET_HIDDEN, VOCAB)
    assert head.draft_token_ids is None
    assert difference(head(states(7)), plain(7, num_layers)) < 1e-9
    assert difference(head(states(7)[2:3]), plain(7, num_layers)[:, 2:3]) < 1e-9


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.1)])
def test_logits_of_narrower_models_are_float32(dtype: torch.dtype, tolerance: float, tmp_path: Path) -> None:
    head = load_medusa(FORMATS["pt"](tmp_path, 1), target(dtype=dtype))
    logits = head(states(5).to(dtype))
    assert logits.dtype == torch.float32
    assert difference(logits.double(), plain(5)) < tolerance
    assert head.weight_bytes == sum(t.numel() for t in medusa_tensors().values()) * dtype.itemsize


def test_a_draft_vocabulary_keeps_its_rows(tmp_path: Path) -> None:
    ids = [40, 3, 17]
    (tmp_path / "vocabulary.json").write_text(str(ids))
    head = load_medusa(FORMATS["pt"](tmp_path / "head", 1), target(), draft_vocab=tmp_path / "vocabulary.json")
    assert head.draft_token_ids is not None
    assert head.draft_token_ids.tolist() == ids
    assert difference(head(states(4)), plain(4)[..., ids]) < 1e-9


def test_padding_of_the_vocabulary_is_dropped(tmp_path: Path) -> None:
    head = load_medusa(write(tmp_path, medusa_tensors(vocab_size=VOCAB + 7), None), target())
    assert (head.num_logits, head.draft_token_ids) == (VOCAB, None)
    whole = plain_heads.medusa_logits(medusa_tensors(vocab_size=VOCAB + 7), states(2), 3, 1)
    assert difference(head(states(2)), whole[..., :VOCAB]) < 1e-9


@pytest.mark.parametrize("fault", ["no bias", "no residual", "heads in another order"])
def test_a_fault_shows(fault: str, tmp_path: Path) -> None:
    head = load_medusa(FORMATS["pt"](tmp_path, 1), target())
    if fault == "no bias":
        for layer in head.residuals.modules():
            if isinstance(layer, Linear):
                layer.bias = None
    elif fault == "no residual":
        head.residuals = torch.nn.ModuleList(torch.nn.ModuleList() for _ in range(3))
    else:
        head.lm_heads = head.lm_heads[::-1]
    assert difference(head(states(7)), plain(7)) > 1e-3


# Refusals


def error_of(path: Path, to: Decoder) -> str:
    with pytest.raises(ValueError, match=r".") as error:
        load(path, to)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_missing_unused_and_mis_shaped_tensors_are_listed(tmp_path: Path) -> None:
    tensors = medusa_tensors()
    del tensors["1.0.linear.bias"], tensors["2.1.weight"]
    tensors["0.0.linear.bias"] = torch.ones(3)
    message = error_of(write(tmp_path, tensors | {"3.1.weight": torch.ones(2)}, None), target())
    assert message.startswith(f"{tmp_path} is no proper medusa head: tensors ")
    assert "missing: 1.0.linear.bias, 2.1.weight;" in message
    assert "unused: 3.1.weight;" in message
    assert "of the wrong shape: 0.0.linear.bias [3], expected [24]" in message


def test_a_head_of_another_model_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, medusa_tensors(), None)
    said = f"{tmp_path}: the heads are for a model of hidden size 24 with 41 tokens; this model's are "
    assert error_of(path, target(hidden_size=32)) == said + "32 and 41"
    assert error_of(path, target(vocab_size=42)) == said + "24 and 42"


def test_a_number_of_heads_out_of_all_proportion_is_refused(tmp_path: Path) -> None:
    tensors = medusa_tensors() | {"900000.0.linear.weight": torch.ones(1)}
    message = error_of(write(tmp_path, tensors, None), target())
    assert message == f"{tmp_path} counts 900001 Medusa heads of 1 layers, but has only 10 tensors"
