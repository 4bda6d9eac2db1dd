"""A head in other numbers: what is stored, and that the loader reads it as what it stands for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from specdec.models.head_codes import CONFIG_KEY, SCALE
from specdec.models.quantize import quantize_int8
from specdec.train.formats.convert import convert
from tests.models.head_writing import (
    Tensors,
    eagle3_tensors,
    load,
    load_eagle,
    medusa_tensors,
    target,
    write,
    write_eagle3,
)
from tests.train.formats.test_convert import assert_same

MATRICES = [name for name, tensor in eagle3_tensors().items() if name.endswith(".weight") and tensor.dim() == 2]


def int8_head(tmp_path: Path, layout: str = "eagle3") -> Path:
    source = write_eagle3(tmp_path / "source", eagle3_tensors())
    convert(source, tmp_path / layout, layout=layout, dtype="int8")
    return tmp_path / layout


def rewrite(directory: Path, tensors: Tensors, **config: Any) -> Path:
    """The head with other tensors and other keys of its config."""
    save_file(tensors, directory / "model.safetensors")
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    return directory


def error_of(path: Path) -> str:
    with pytest.raises(ValueError, match=r".") as error:
        load(path, target())
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_floating_point(dtype: str, tmp_path: Path) -> None:
    source = write_eagle3(tmp_path / "source", eagle3_tensors())
    convert(source, tmp_path / "copy", layout="eagle3", dtype=dtype)
    stored = load_file(tmp_path / "copy" / "model.safetensors")
    for name, tensor in eagle3_tensors().items():
        expected = tensor.to(getattr(torch, dtype)) if tensor.is_floating_point() else tensor
        assert torch.equal(stored[name], expected)
    assert json.loads((tmp_path / "copy" / "config.json").read_text())["torch_dtype"] == dtype


@pytest.mark.parametrize("layout", ["eagle3", "speculators"])
def test_int8_is_what_the_codes_stand_for(layout: str, tmp_path: Path) -> None:
    path = int8_head(tmp_path, layout)
    plain = {name: t.float() if t.is_floating_point() else t for name, t in eagle3_tensors().items()}
    for name in MATRICES:
        plain[name] = quantize_int8(plain[name].double()).rows(slice(None))
    rounded = write_eagle3(tmp_path / "rounded", plain)
    assert_same(rounded, path)
    stored = load_file(path / "model.safetensors")
    codes = [name for name, tensor in stored.items() if tensor.dtype == torch.int8]
    assert len(codes) == len(MATRICES)
    for name in codes:
        assert stored[name + SCALE].dtype == torch.float16
        assert stored[name + SCALE].shape == (len(stored[name]), -(-stored[name].shape[1] // 32))
    section = json.loads((path / "config.json").read_text())[CONFIG_KEY]
    assert section["quant_method"] == "compressed-tensors"
    assert section["config_groups"]["group_0"]["weights"]["group_size"] == 32


def test_codes_are_near_the_weights(tmp_path: Path) -> None:
    path = int8_head(tmp_path)
    head, whole = load_eagle(path, target()), load_eagle(tmp_path / "source", target())
    for name, parameter in whole.named_parameters():
        other = head.get_parameter(name)
        assert (other - parameter).abs().max() <= parameter.abs().max() / 250
    assert not torch.equal(head.get_parameter("lm_head.weight"), whole.get_parameter("lm_head.weight"))


def test_codes_stay_the_same_bits_from_layout_to_layout(tmp_path: Path) -> None:
    path = int8_head(tmp_path)
    convert(path, tmp_path / "speculators", layout="speculators")
    convert(tmp_path / "speculators", tmp_path / "back", layout="eagle3", dtype="int8")
    first, last = (load_file(each / "model.safetensors") for each in (path, tmp_path / "back"))
    assert first.keys() == last.keys()
    assert all(torch.equal(first[name], last[name]) for name in first)
    assert_same(path, tmp_path / "speculators")
    # Written out as weights they are those that the loader had made of them.
    convert(path, tmp_path / "wide", layout="eagle3", dtype="float32")
    assert_same(path, tmp_path / "wide")
    assert CONFIG_KEY not in json.loads((tmp_path / "wide" / "config.json").read_text())


@pytest.mark.parametrize("layout", ["medusa", "medusa-pt"])
def test_medusa_heads_as_int8(layout: str, tmp_path: Path) -> None:
    tensors = {name: tensor.float() for name, tensor in medusa_tensors().items()}
    source = write(tmp_path / "source", tensors, None, "medusa_lm_head.pt")
    convert(source, tmp_path / "copy", layout=layout, dtype="int8")
    for name, tensor in tensors.items():
        if tensor.dim() == 2:
            tensors[name] = quantize_int8(tensor).rows(slice(None))
    assert_same(write(tmp_path / "rounded", tensors, None, "medusa_lm_head.pt"), tmp_path / "copy")


def test_a_scale_for_a_whole_row(tmp_path: Path) -> None:
    """Strategy "channel", as other tools write it."""
    path = int8_head(tmp_path)
    stored = load_file(path / "model.safetensors")
    for name in [name for name in stored if name.endswith(SCALE)]:
        stored[name] = stored[name][:, :1].float().clone()
    section = json.loads((path / "config.json").read_text())[CONFIG_KEY]
    section["config_groups"]["group_0"]["weights"] |= {"strategy": "channel", "group_size": None}
    rewrite(path, stored, **{CONFIG_KEY: section})
    head = load_eagle(path, target())
    name = "midlayer.self_attn.o_proj.weight"
    expected = stored[name].float() * stored[name + SCALE]
    assert torch.equal(head.get_parameter("layer.attention.o_proj.weight").float(), expected)


# Damage


def test_codes_that_are_not_right(tmp_path: Path) -> None:
    path, name = int8_head(tmp_path), "lm_head.weight"
    good = load_file(path / "model.safetensors")
    rewrite(path, {**good, name + SCALE: good[name + SCALE][:-1].clone()})
    assert f"{name}_scale has the shape [16, 1]; expected [17, 1], by quantization_config" in error_of(path)
    rewrite(path, {**good, name: good[name].float()})
    assert f"{name} must be a matrix of int8 codes" in error_of(path)
    alone = {key: tensor for key, tensor in good.items() if key != name + SCALE}
    assert "quantised weights are not supported here" in error_of(rewrite(path, alone))
    short = {key: tensor for key, tensor in good.items() if key != name}
    assert f"tensors missing: {name}; unused: {name}_scale" in error_of(rewrite(path, short))


@pytest.mark.parametrize(
    "weights",
    [{"num_bits": 4}, {"type": "float"}, {"symmetric": False}, {"strategy": "block"}, {"group_size": -1}],
)
def test_other_quantisations_are_refused(weights: dict[str, Any], tmp_path: Path) -> None:
    path = int8_head(tmp_path)
    section = json.loads((path / "config.json").read_text())[CONFIG_KEY]
    section["config_groups"]["group_0"]["weights"] |= weights
    rewrite(path, load_file(path / "model.safetensors"), **{CONFIG_KEY: section})
    assert "quantization_config is not supported for LlamaForCausalLM" in error_of(path)


def test_other_dtypes(tmp_path: Path) -> None:
    source = write_eagle3(tmp_path / "source", eagle3_tensors())
    with pytest.raises(ValueError, match=r"unknown dtype of a head 'int4'; did you mean 'int8'\?"):
        convert(source, tmp_path / "copy", layout="eagle3", dtype="int4")
    assert not (tmp_path / "copy").exists()
