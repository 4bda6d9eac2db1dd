"""The number formats of GGUF tensors that specdec reads; the `gguf` package knows their layouts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize as expand_blocks

from specdec.kernels import QuantizedWeight

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class GGMLType:
    """A number format: `block_size` weights in `num_bytes` bytes."""

    name: str
    block_size: int
    num_bytes: int


SUPPORTED = {
    GGMLQuantizationType[name].value: GGMLType(name, *GGML_QUANT_SIZES[GGMLQuantizationType[name]])
    for name in ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
}
"""By ggml's number."""

REFUSED = {kind.value: kind.name for kind in GGMLQuantizationType if kind.value not in SUPPORTED}
"""ggml's other formats, for messages."""


def dequantize(raw: Array, kind: GGMLType) -> Array:
    """The weights of rows of whole blocks: uint8 [rows, bytes of a row] -> float32 [rows, weights of a row]."""
    # A damaged file may hold infinite scales; weights that are not numbers are for the model's user to hear of.
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(expand_blocks(raw, GGMLQuantizationType[kind.name]), np.float32)


CODED = ("Q4_0", "Q4_1", "Q8_0")
"""Formats whose codes `read_codes` gives; a block of each is one of the kernels' groups."""


def read_codes(raw: Array, kind: GGMLType) -> QuantizedWeight:
    """The codes of rows of whole blocks, uint8 [rows, bytes of a row]. A block is a float16 scale, in Q4_1 a float16
    least weight, and the codes: in 4 bits, those of the first half of the group in the low halves of the bytes."""
    blocks = torch.from_numpy(raw.reshape(len(raw), -1, kind.num_bytes).copy())
    scales = blocks[..., :2].contiguous().view(torch.float16)[..., 0]
    if kind.name == "Q8_0":
        return QuantizedWeight(blocks[..., 2:].contiguous().view(torch.int8).flatten(1), scales)
    halves = blocks[..., 4 if kind.name == "Q4_1" else 2 :]
    codes = torch.cat((halves & 15, halves >> 4), dim=-1).flatten(1)
    if kind.name == "Q4_1":
        return QuantizedWeight(codes, scales, blocks[..., 2:4].contiguous().view(torch.float16)[..., 0])
    return QuantizedWeight(codes, scales, -8.0 * scales)  # stored 8 too high
