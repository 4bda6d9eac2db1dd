"""The numbers that a head's tensors are stored as: their own, another floating-point type, or int8 codes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from specdec.config import unknown_name
from specdec.models.head_codes import CONFIG_KEY, SCALE, coded, codes_config, dequantized, group_size
from specdec.models.quantize import quantize_int8

INT8 = "int8"
FLOATS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
DTYPES = (*FLOATS, INT8)


@dataclass(frozen=True)
class Stored:
    """Tensors as they are to lie in a file: matrices of codes have their scales, `X.weight_scale`, beside them."""

    tensors: Mapping[str, torch.Tensor]
    quantization: Mapping[str, Any] | None = None
    """The `quantization_config` of the codes, None where there are none."""

    @property
    def dtype(self) -> str:
        """Of the tensors that are no codes."""
        floats = [tensor for name, tensor in self.tensors.items() if _is_plain(name, tensor)]
        return str(floats[0].dtype).removeprefix("torch.") if floats else "float32"


def store(source: Stored, dtype: str | None) -> Stored:
    """The tensors as `dtype`, one of `DTYPES`; None keeps what they are, codes too. Integers and marks stay.

    ValueError for another dtype.
    """
    if dtype is None:
        return source
    if dtype == INT8:
        return _as_codes(source)
    if dtype not in FLOATS:
        raise ValueError(unknown_name("dtype of a head", dtype, DTYPES))
    return Stored({name: _cast(tensor, FLOATS[dtype]) for name, tensor in as_weights(source).items()})


def as_weights(source: Stored) -> dict[str, torch.Tensor]:
    """The tensors with float32 weights in the place of codes."""
    codes = coded(source.tensors)
    tensors = {}
    for name, tensor in source.tensors.items():
        if name in codes:
            tensors[name] = dequantized(tensor, source.tensors[name + SCALE], _group(source))
        elif name.removesuffix(SCALE) not in codes:
            tensors[name] = tensor
    return tensors


def _group(source: Stored) -> int:
    group = group_size({CONFIG_KEY: source.quantization})
    assert group is not None, "whoever has codes says how they are grouped"
    return group


def _as_codes(source: Stored) -> Stored:
    """Matrices become codes; what is codes already stays."""
    if source.quantization is not None:
        return source
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in source.tensors.items():
        if name.endswith(".weight") and tensor.dim() == 2 and tensor.is_floating_point():
            quantized = quantize_int8(tensor)
            tensors[name], tensors[name + SCALE] = quantized.codes, quantized.scales
        else:
            # Rounding what is small anyway would save nothing; float64 is no type of files.
            tensors[name] = _cast(tensor, torch.float32) if tensor.dtype == torch.float64 else tensor
    return Stored(tensors, codes_config("embed_tokens.weight" in tensors))


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _is_plain(name: str, tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and not name.endswith(SCALE)
