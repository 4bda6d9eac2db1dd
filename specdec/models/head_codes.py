"""Heads whose matrices are kept in 8 bits: codes int8 `X.weight` [out, in] beside their scales `X.weight_scale`.

The format is "int-quantized" of the compressed-tensors library, weights alone: symmetric, a scale for each `group_size`
weights along a row ([out, ceil(in / group_size)]) or for a whole row ([out, 1]), weight = code * scale; the
`quantization_config` of config.json says which. Any other quantisation is left for others to refuse.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

import torch

from specdec.kernels import QuantizedWeight
from specdec.kernels.weights import GROUP

CONFIG_KEY = "quantization_config"
SCALE = "_scale"
"""What the name of a matrix's scales adds to its own."""


class AnyTensors(Protocol):
    """Tensors on disk, of whatever kind of numbers."""

    def names(self) -> list[str]: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def read(self, name: str) -> torch.Tensor: ...

    def read_any(self, name: str) -> torch.Tensor: ...


def codes_config(has_embedding: bool) -> dict[str, Any]:
    """What config.json says of matrices in groups of `GROUP`, of embeddings too if there are any."""
    weights = {
        "num_bits": 8,
        "type": "int",
        "symmetric": True,
        "strategy": "group",
        "group_size": GROUP,
        "dynamic": False,
    }
    targets = ["Linear", "Embedding"] if has_embedding else ["Linear"]
    group = {"targets": targets, "weights": weights, "input_activations": None, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": [],
    }


def group_size(config: Mapping[str, Any]) -> int | None:
    """How many weights along a row share a scale, as a config.json says; 0: a whole row, None: it has no such codes."""
    section = config.get(CONFIG_KEY)
    if not isinstance(section, Mapping) or section.get("format") != "int-quantized":
        return None
    groups = section.get("config_groups")
    if not isinstance(groups, Mapping) or len(groups) != 1:
        return None
    (group,) = groups.values()
    weights = group.get("weights") if isinstance(group, Mapping) else None
    if not isinstance(weights, Mapping) or group.get("input_activations") is not None:
        return None
    if (weights.get("num_bits"), weights.get("type"), weights.get("symmetric")) != (8, "int", True):
        return None
    size = weights.get("group_size") if weights.get("strategy") == "group" else 0
    is_known = weights.get("strategy") in ("group", "channel") and type(size) is int and size >= 0
    return size if is_known else None


def coded(names: Collection[str]) -> frozenset[str]:
    """Of the tensors `names` those that are codes: their scales stand beside them."""
    names = frozenset(names)
    return frozenset(name for name in names if name.endswith(".weight") and name + SCALE in names)


class CodedHeadTensors:
    """Tensors of which some are codes: read as the weights that they stand for, float32."""

    def __init__(self, tensors: AnyTensors, group_size: int, where: str) -> None:
        self._tensors = tensors
        self._group = group_size
        self._where = where
        self._codes = coded(tensors.names())

    def names(self) -> list[str]:
        scales = {name + SCALE for name in self._codes}
        return [name for name in self._tensors.names() if name not in scales]

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensors.shape(name)

    def read(self, name: str) -> torch.Tensor:
        """A tensor of weights; ValueError if it is neither codes nor floating-point numbers."""
        if name not in self._codes:
            return self._tensors.read(name)
        return dequantized(*self._parts(name), self._group)

    def read_any(self, name: str) -> torch.Tensor:
        """A tensor as it stands in the file."""
        return self._tensors.read_any(name)

    def read_scales(self, name: str) -> torch.Tensor | None:
        """The scales of a matrix of codes, None of anything else."""
        return self._parts(name)[1] if name in self._codes else None

    def read_codes(self, name: str) -> QuantizedWeight | None:
        """A matrix in the file's own codes, None where it has none or none of the kernels' groups."""
        if name not in self._codes or self._group != GROUP:
            return None
        codes, scales = self._parts(name)
        return QuantizedWeight(codes, scales) if scales.dtype == torch.float16 else None

    def read_into(self, name: str, out: torch.Tensor) -> None:
        out.copy_(self.read(name))

    def _parts(self, name: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Codes and scales, checked against each other."""
        codes, scales = self._tensors.read_any(name), self._tensors.read(name + SCALE)
        if codes.dtype != torch.int8 or codes.dim() != 2:
            raise ValueError(f"{self._where}: {name} must be a matrix of int8 codes, for there is {name}{SCALE}")
        expected = (codes.shape[0], -(-codes.shape[1] // self._group) if self._group else 1)
        if tuple(scales.shape) != expected:
            raise ValueError(
                f"{self._where}: {name}{SCALE} has the shape {list(scales.shape)}; expected {list(expected)}, by "
                f"{CONFIG_KEY}"
            )
        return codes, scales


def dequantized(codes: torch.Tensor, scales: torch.Tensor, group: int) -> torch.Tensor:
    """The weights [out, in], float32, of int8 codes [out, in]; `group` 0: a scale for each row."""
    width = codes.shape[1]
    wide = scales.float().repeat_interleave(group or width, dim=1)[:, :width]
    return codes.float() * wide
