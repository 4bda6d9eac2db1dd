"""The files of a draft head: a config.json, if there is one, and tensors in safetensors or in torch's own format.

Nothing in them is ever executed: pickles are read by torch's loader for weights alone. Knows nothing of what the
tensors are for.
"""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from specdec.models.head_codes import CONFIG_KEY, CodedHeadTensors, group_size
from specdec.models.safetensors_file import SafetensorsFiles, checked_weight, read_json, tensor_files
from specdec.models.tensors import Tensors

_CONFIG = "config.json"
_SINGLE_FILES = ("medusa_lm_head.safetensors", "medusa_lm_head.pt", "pytorch_model.bin")


class HeadTensors(Tensors, Protocol):
    """Tensors that are not all weights."""

    def read_any(self, name: str) -> torch.Tensor:
        """As `read`, of whatever kind of numbers."""
        ...


class TorchFile:
    """The tensors of a file that torch.save wrote (.pt, .bin), memory-mapped where its format allows it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        content = load_torch_file(path)
        if not isinstance(content, Mapping) or not all(isinstance(tensor, torch.Tensor) for tensor in content.values()):
            raise ValueError(f"{path} must hold tensors by name, as a state_dict does")
        self._tensors: Mapping[str, torch.Tensor] = content

    def names(self) -> list[str]:
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._tensors[name].shape)

    def read(self, name: str) -> torch.Tensor:
        """A tensor of weights; ValueError if it holds anything but floating-point numbers."""
        return checked_weight(self._tensors[name], name, self._path)

    def read_any(self, name: str) -> torch.Tensor:
        return self._tensors[name]


def load_torch_file(path: Path) -> Any:
    """What torch.save wrote into a file: tensors and plain containers; ValueError, in one line, for anything else."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        raise ValueError(f"{path} is damaged or holds more than tensors: {_first_line(error)}") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from None
    except Exception as error:  # a damaged pickle can fail in any way
        raise ValueError(f"{path} is damaged or no file of torch's: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@dataclass(frozen=True)
class HeadFiles:
    """A head on disk. `config` is empty where it has none, and does not speak of codes where `tensors` know them."""

    path: Path
    config: Mapping[str, Any]
    tensors: HeadTensors

    @property
    def config_path(self) -> Path:
        return _config_path(self.path)


def open_head(path: Path) -> HeadFiles:
    """The head at `path`: a directory, or a single file of tensors. No weights are read.

    Raises ValueError, in one line, for a path without tensors or with damaged files.
    """
    if not path.exists():
        raise ValueError(f"{path} does not exist; expected the directory of a draft head")
    config_path = _config_path(path)
    config = read_json(config_path) if config_path.exists() else {}
    tensors = _tensors_in(path) if path.is_dir() else _tensors_of(path)
    group = group_size(config)
    if group is None:
        return HeadFiles(path, config, tensors)
    config = {key: value for key, value in config.items() if key != CONFIG_KEY}
    return HeadFiles(path, config, CodedHeadTensors(tensors, group, str(path)))


def _config_path(path: Path) -> Path:
    return (path if path.is_dir() else path.parent) / _CONFIG


def _tensors_in(directory: Path) -> HeadTensors:
    *medusa, pickled = (directory / name for name in _SINGLE_FILES)
    for file in medusa:
        if file.exists():
            return _tensors_of(file)
    if any(directory.glob("model*.safetensors*")):
        return SafetensorsFiles(tensor_files(directory))
    if pickled.exists():
        return _tensors_of(pickled)
    names = ", ".join(_SINGLE_FILES)
    raise ValueError(f"{directory} holds no tensors of a head: there is neither model*.safetensors nor any of {names}")


def _tensors_of(file: Path) -> HeadTensors:
    if file.suffix == ".safetensors":
        return SafetensorsFiles([file])
    if file.suffix in (".pt", ".bin"):
        return TorchFile(file)
    raise ValueError(f"{file} is neither the directory of a draft head nor a .safetensors, .pt or .bin file")
