"""A Hugging Face model directory: config.json, generation_config.json and model*.safetensors, memory-mapped."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from specdec.models.facts import Facts
from specdec.models.families import model_config

_INDEX = "model.safetensors.index.json"


class SafetensorsFiles:
    """The tensors of some safetensors files, memory-mapped. ValueError, in one line, names a file that is damaged."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._files = {path: _open(path) for path in paths}
        self._file_of = {name: path for path, file in self._files.items() for name in file.keys()}  # noqa: SIM118

    def names(self) -> list[str]:
        return list(self._file_of)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._files[self._file_of[name]].get_slice(name).get_shape())

    def read(self, name: str) -> torch.Tensor:
        """A tensor of weights; ValueError if it holds anything but floating-point numbers."""
        return checked_weight(self.read_any(name), name, self._file_of[name])

    def read_any(self, name: str) -> torch.Tensor:
        """A tensor of whatever kind of numbers."""
        path = self._file_of[name]
        try:
            tensor: torch.Tensor = self._files[path].get_tensor(name)
        except SafetensorError as error:
            raise _damaged(path, error) from None
        return tensor


def checked_weight(tensor: torch.Tensor, name: str, path: Path) -> torch.Tensor:
    """The tensor itself, or the ValueError of one that is quantised."""
    if tensor.dtype not in _DTYPES:
        raise ValueError(f"{path}: {name} holds {tensor.dtype} numbers; quantised weights are not supported here")
    return tensor


class HuggingFaceCheckpoint:
    """The model in `directory`, its config checked and its tensors listed; nothing is read until asked for.

    Raises ValueError, in one line that names the file, for a directory that is not such a model or is damaged.
    """

    def __init__(self, directory: Path) -> None:
        raw = read_json(directory / "config.json")
        config = model_config(raw, str(directory / "config.json"))
        self._tensors = SafetensorsFiles(tensor_files(directory))
        if not any(section.get(key) for section in (raw, raw.get("text_config") or {}) for key in _DTYPE_KEYS):
            config = replace(config, dtype=self._stored_dtype(config.dtype))
        self.config = replace(config, eos_token_ids=_generation_eos(directory) or config.eos_token_ids)

    def names(self) -> list[str]:
        return self._tensors.names()

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensors.shape(name)

    def read(self, name: str) -> torch.Tensor:
        return self._tensors.read(name)

    def _stored_dtype(self, default: str) -> str:
        """The dtype the embedding is stored in: what transformers goes by where config.json names none."""
        for name in self.names():
            if name.endswith("embed_tokens.weight"):
                return str(self.read(name).dtype).removeprefix("torch.")
        return default


_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
_DTYPE_KEYS = ("dtype", "torch_dtype")


def read_json(path: Path) -> Mapping[str, Any]:
    """The object that a JSON file holds; ValueError, in one line that names the file, if it does not."""
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise ValueError(f"{path} is missing; a model directory needs it") from None
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from None
    except RecursionError:
        raise ValueError(f"{path} is not valid JSON: nested too deeply") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object")
    return content


def _generation_eos(directory: Path) -> tuple[int, ...]:
    """The end-of-sequence ids of generation_config.json, which go before those of config.json."""
    path = directory / "generation_config.json"
    return Facts(read_json(path), {}, str(path)).token_ids("eos_token_id") if path.exists() else ()


def tensor_files(directory: Path) -> list[Path]:
    """The single file, the files that the index names, or every model*.safetensors."""
    if (directory / "model.safetensors").exists():
        return [directory / "model.safetensors"]
    index = directory / _INDEX
    if index.exists():
        weight_map = Facts(read_json(index), {}, str(index)).mapping("weight_map")
        paths = sorted({directory / str(file) for file in weight_map.values()})
        for path in paths:
            if not path.exists():
                raise ValueError(f"{path} is missing; {_INDEX} names it")
    else:
        paths = sorted(directory.glob("model*.safetensors"))
    if not paths:
        raise ValueError(f"{directory} holds no model*.safetensors; other weight formats are not read")
    return paths


def _open(path: Path) -> Any:
    try:
        with open(path, "rb"):
            # safetensors says of whatever it cannot open that it is not there.
            pass
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise _damaged(path, error) from None


def _damaged(path: Path, error: Exception) -> ValueError:
    reason = " ".join(str(error).split())
    return ValueError(f"{path} is damaged or no safetensors file: {reason}")
