"""A GGUF file as a checkpoint: Hugging Face's config, tensor names and layouts, made from llama.cpp's.

What its converter changed is changed back here, so that the rest of the package knows one spelling of each family:
llama's query and key rows (stored with a head's two rotary halves interleaved), gemma's norm weights (stored with
their 1 added), experts (stored as one stack a layer).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from specdec.kernels import QuantizedWeight
from specdec.models import families
from specdec.models.config import ModelConfig
from specdec.models.gguf_config import ROPE_FACTORS, Architecture, hugging_face_config, read_architecture
from specdec.models.gguf_file import GGUFFile, TensorInfo

_TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


@dataclass(frozen=True)
class _Source:
    """How a tensor of Hugging Face's comes out of the file."""

    tensor: str
    expert: int | None = None
    interleaved_heads: int = 0
    holds_one: bool = False


class GGUFCheckpoint:
    """One GGUF file under Hugging Face's names; weights are read and expanded to float32 one tensor at a time.

    `metadata` is the file's own, for the tokenizer. Raises ValueError, one line that names the file, for a file that
    is damaged, of another architecture, or with tensors or settings that the architecture does not have.
    """

    metadata: dict[str, Any]
    config: ModelConfig

    def __init__(self, path: Path) -> None:
        self._file = GGUFFile(path)
        self.metadata = self._file.metadata
        try:
            self._read_header()
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def _read_header(self) -> None:
        architecture, facts = read_architecture(self.metadata)
        self.config = families.model_config(hugging_face_config(architecture, facts, self._file), None)
        self._sources = _sources(architecture, self.config, self._file.tensors)

    def names(self) -> list[str]:
        """Hugging Face's names of all tensors, in the file's order."""
        return list(self._sources)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape that `read` returns."""
        source = self._sources[name]
        shape = self._file.tensors[source.tensor].shape
        return shape if source.expert is None else shape[1:]

    def read_codes(self, name: str) -> QuantizedWeight | None:
        """A matrix in the file's own codes, None if they are of a kind that the kernels do not know."""
        source = self._sources[name]
        if source.expert is not None or source.holds_one:
            return None
        codes = self._file.read_codes(source.tensor)
        if codes is None or not source.interleaved_heads:
            return codes
        heads = source.interleaved_heads
        mins = None if codes.mins is None else _in_halves(codes.mins, heads)
        return QuantizedWeight(_in_halves(codes.codes, heads), _in_halves(codes.scales, heads), mins)

    def read(self, name: str) -> torch.Tensor:
        """A tensor in Hugging Face's layout ([out, in] for a matrix), float32, owned by the caller."""
        source = self._sources[name]
        weights = self._file.read(source.tensor, source.expert)
        if source.interleaved_heads:
            weights = _in_halves(weights, source.interleaved_heads)
        # Exact: the stored sum of a norm weight and 1 loses nothing when 1 is taken away again, and adding it back
        # gives the stored number.
        return weights - 1 if source.holds_one else weights

    def read_into(self, name: str, out: torch.Tensor) -> None:
        """The same, written into a tensor of that shape and of any dtype."""
        source = self._sources[name]
        if source.interleaved_heads or source.holds_one:
            out.copy_(self.read(name))
        else:
            self._file.read_into(source.tensor, out, source.expert)


def _in_halves(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """The rows of each head with its two rotary halves one after the other, not interleaved."""
    apart = rows.view(heads, -1, 2, *rows.shape[1:])
    return apart.transpose(1, 2).reshape(rows.shape)


def _sources(architecture: Architecture, config: ModelConfig, tensors: Mapping[str, TensorInfo]) -> dict[str, _Source]:
    """Where each of Hugging Face's tensors comes from."""
    sources: dict[str, _Source] = {}
    unknown = []
    for tensor, info in tensors.items():
        if tensor == ROPE_FACTORS:
            continue
        name = _hugging_face_name(architecture, tensor)
        if name is None:
            unknown.append(tensor)
        elif "{}" in name:
            sources |= {name.format(expert): _Source(tensor, expert) for expert in _experts(config, tensor, info)}
        else:
            sources[name] = _source(architecture, config, name, tensor, info)
    if unknown:
        more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
        raise ValueError(f"tensors unknown to {architecture.model_type}: {', '.join(unknown[:5])}{more}")
    return sources


def _hugging_face_name(architecture: Architecture, tensor: str) -> str | None:
    stem, _, suffix = tensor.rpartition(".")
    if suffix not in ("weight", "bias"):
        return None
    if (name := _TOP_NAMES.get(stem)) is not None:
        return f"{name}.{suffix}"
    layer = re.fullmatch(r"blk\.([0-9]{1,6})\.(\w+)", stem)
    if layer is None or layer[2] not in architecture.names:
        return None
    return f"model.layers.{int(layer[1])}.{architecture.names[layer[2]]}.{suffix}"


def _experts(config: ModelConfig, tensor: str, info: TensorInfo) -> range:
    """The numbers of the experts stacked in `tensor`."""
    moe = config.layers[0].moe
    assert moe is not None, "only a mixture of experts has stacked tensors"
    if len(info.shape) != 3 or info.shape[0] != moe.num_experts:
        raise ValueError(f"tensor {tensor} of shape {list(info.shape)} is not a stack of {moe.num_experts} matrices")
    return range(moe.num_experts)


def _source(architecture: Architecture, config: ModelConfig, name: str, tensor: str, info: TensorInfo) -> _Source:
    heads = 0
    if architecture.interleaved and ".self_attn.q_proj." in name:
        heads = config.num_heads
    elif architecture.interleaved and ".self_attn.k_proj." in name:
        heads = config.num_kv_heads
    if heads and info.shape[0] % (2 * heads):
        raise ValueError(f"tensor {tensor} has {info.shape[0]} rows, which {heads} heads cannot share")
    return _Source(
        tensor, interleaved_heads=heads, holds_one=architecture.norms_hold_one and name.endswith("norm.weight")
    )
