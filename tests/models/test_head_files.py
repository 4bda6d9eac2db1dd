"""Files of heads: which are taken, and what is said of damaged or dangerous ones."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from specdec.models.head_files import load_torch_file, open_head
from tests.models.head_writing import write

ONE = {"a": torch.ones(2, 3)}
TWO = {"b": torch.ones(1)}


def error_of(path: Path) -> str:
    with pytest.raises(ValueError, match=r".") as error:
        open_head(path)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin", "medusa_lm_head.pt"])
def test_tensors_by_name(file: str, tmp_path: Path) -> None:
    tensors = {**ONE, "d2t": torch.tensor([1, 2])}
    files = open_head(write(tmp_path, tensors, {"hidden_size": 3}, file))
    assert files.config == {"hidden_size": 3}
    assert sorted(files.tensors.names()) == ["a", "d2t"]
    assert files.tensors.shape("a") == (2, 3)
    assert torch.equal(files.tensors.read("a"), ONE["a"])
    assert files.tensors.read_any("d2t").tolist() == [1, 2]
    with pytest.raises(ValueError, match=rf"{file}: d2t holds torch\.int64 numbers"):
        files.tensors.read("d2t")


def test_shards(tmp_path: Path) -> None:
    write(tmp_path, ONE, {}, "model-00001-of-00002.safetensors")
    write(tmp_path, TWO, {}, "model-00002-of-00002.safetensors")
    assert sorted(open_head(tmp_path).tensors.names()) == ["a", "b"]


def test_a_file_alone_has_the_config_beside_it(tmp_path: Path) -> None:
    write(tmp_path, ONE, {"x": 1}, "weights.bin")
    files = open_head(tmp_path / "weights.bin")
    assert (files.config, files.tensors.names()) == ({"x": 1}, ["a"])


def test_the_file_that_says_what_it_is_goes_first(tmp_path: Path) -> None:
    write(tmp_path, ONE, None, "pytorch_model.bin")
    write(tmp_path, TWO, None, "model.safetensors")
    assert open_head(tmp_path).tensors.names() == ["b"]
    write(tmp_path, {"c": torch.ones(1)}, None, "medusa_lm_head.pt")
    assert open_head(tmp_path).tensors.names() == ["c"]


def test_torch_files_of_the_old_format(tmp_path: Path) -> None:
    torch.save(ONE, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    assert torch.equal(open_head(tmp_path).tensors.read("a"), ONE["a"])


# Damage


def test_places_without_a_head(tmp_path: Path) -> None:
    assert error_of(tmp_path / "nowhere").endswith("nowhere does not exist; expected the directory of a draft head")
    assert error_of(tmp_path).startswith(f"{tmp_path} holds no tensors of a head: there is neither model*.safetensors")
    (tmp_path / "head.gguf").write_bytes(b"GGUF")
    assert "is neither the directory of a draft head nor a .safetensors" in error_of(tmp_path / "head.gguf")


class Call:
    """What a pickle can do when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("old", [True, False])
def test_a_pickle_that_wants_to_run_something_does_not(old: bool, tmp_path: Path) -> None:
    path = tmp_path / "pytorch_model.bin"
    torch.save({"a": Call(tmp_path / "touched")}, path, _use_new_zipfile_serialization=not old)
    assert error_of(tmp_path).startswith(f"{path} is damaged or holds more than tensors")
    assert not (tmp_path / "touched").exists()


def test_a_bare_pickle_does_not_run_either(tmp_path: Path) -> None:
    path = tmp_path / "medusa_lm_head.pt"
    path.write_bytes(pickle.dumps(Call(tmp_path / "touched")))
    assert error_of(tmp_path).startswith(f"{path} is damaged or")
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize("content", [[torch.ones(1)], {"state_dict": {"a": torch.ones(1)}}, torch.ones(2)])
def test_a_file_of_other_things_than_tensors_by_name(content: object, tmp_path: Path) -> None:
    path = tmp_path / "pytorch_model.bin"
    torch.save(content, path)
    assert error_of(tmp_path) == f"{path} must hold tensors by name, as a state_dict does"


@pytest.mark.parametrize("keep", [0, 4, 100, -60])
def test_a_truncated_torch_file_is_named(keep: int, tmp_path: Path) -> None:
    path = tmp_path / "pytorch_model.bin"
    torch.save({"a": torch.ones(500)}, path)
    path.write_bytes(path.read_bytes()[:keep])
    assert error_of(tmp_path).startswith(f"{path} is damaged or")


def test_a_damaged_safetensors_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "medusa_lm_head.safetensors"
    save_file(ONE, path)
    path.write_bytes(path.read_bytes()[:20])
    assert error_of(tmp_path).startswith(f"{path} is damaged")


def test_malformed_json_is_named(tmp_path: Path) -> None:
    (write(tmp_path, ONE, None) / "config.json").write_text("{")
    assert error_of(tmp_path).startswith(f"{tmp_path / 'config.json'} is not valid JSON")


def test_a_torch_file_that_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").mkdir()
    with pytest.raises(ValueError, match="cannot be read: Is a directory"):
        load_torch_file(tmp_path / "pytorch_model.bin")
