"""The number formats of GGUF tensors that specdec reads.

Those that the kernels know the codes of are taken apart here, for models start with them; the others by the `gguf`
package, which takes several times as long, and is imported for them alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from specdec.kernels import QuantizedWeight
from specdec.kernels.weights import GROUP
from specdec.models.chunks import row_chunks

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class GGMLType:
    """A number format: `block_size` weights in `num_bytes` bytes."""

    name: str
    block_size: int
    num_bytes: int


SUPPORTED = {
    number: GGMLType(*facts)
    for number, facts in {
        0: ("F32", 1, 4),
        1: ("F16", 1, 2),
        2: ("Q4_0", 32, 18),
        3: ("Q4_1", 32, 20),
        6: ("Q5_0", 32, 22),
        7: ("Q5_1", 32, 24),
        8: ("Q8_0", 32, 34),
        12: ("Q4_K", 256, 144),
        13: ("Q5_K", 256, 176),
        14: ("Q6_K", 256, 210),
        30: ("BF16", 1, 2),
    }.items()
}
"""By ggml's number."""


def name_of(number: int) -> str:
    """What ggml calls one of its formats, for messages."""
    from gguf import GGMLQuantizationType

    known = {kind.value: kind.name for kind in GGMLQuantizationType}
    return known.get(number, f"unknown ({number})")


def dequantize(raw: Array, kind: GGMLType) -> torch.Tensor:
    """The weights of rows of whole blocks: uint8 [rows, bytes of a row] -> float32 [rows, weights of a row], in memory
    of its own."""
    weights = torch.empty(len(raw), raw.shape[1] // kind.num_bytes * kind.block_size)
    dequantize_into(raw, kind, weights)
    return weights


def dequantize_into(raw: Array, kind: GGMLType, out: torch.Tensor) -> None:
    """The same, written into [rows, weights of a row] of any dtype."""
    expand = _expand_codes if kind.name in CODED else _expand_plain if kind.name in PLAIN else _expand_blocks
    for rows in row_chunks(*out.shape):
        if out.dtype == torch.float32 and out.is_contiguous():
            expand(raw[rows], kind, out[rows])
        else:
            weights = torch.empty(out[rows].shape)
            expand(raw[rows], kind, weights)
            out[rows] = weights


PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""Formats that are torch's own."""


def _expand_plain(raw: Array, kind: GGMLType, out: torch.Tensor) -> None:
    out.copy_(torch.from_numpy(raw.copy()).view(PLAIN[kind.name]))


def _expand_codes(raw: Array, kind: GGMLType, out: torch.Tensor) -> None:
    codes = torch.empty(out.shape, dtype=_code_dtype(kind))
    scales, mins = _unpack(raw, kind, codes)
    groups = out.view(*scales.shape, GROUP)
    groups.copy_(codes.view(groups.shape))
    if kind.name == "Q4_0":
        groups.sub_(FOUR_BIT_ZERO)
    groups.mul_(scales.float()[..., None])
    if mins is not None:
        groups.add_(mins.float()[..., None])


def _expand_blocks(raw: Array, kind: GGMLType, out: torch.Tensor) -> None:
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize as expand

    # A damaged file may hold infinite scales; weights that are not numbers are for the model's user to hear of.
    with np.errstate(over="ignore", invalid="ignore"):
        out.numpy()[...] = expand(raw, GGMLQuantizationType[kind.name])


CODED = ("Q4_0", "Q4_1", "Q8_0")
"""Formats whose codes `read_codes` gives; a block of each is one of the kernels' groups."""
FOUR_BIT_ZERO = 8
"""Codes of Q4_0 are stored so much too high."""
LOW_HALVES = 0x0F0F0F0F


def read_codes(raw: Array, kind: GGMLType) -> QuantizedWeight:
    """The codes of rows of whole blocks, uint8 [rows, bytes of a row]."""
    num_groups = raw.shape[1] // kind.num_bytes
    codes = torch.empty(len(raw), num_groups * GROUP, dtype=_code_dtype(kind))
    scales = torch.empty(len(raw), num_groups, dtype=torch.float16)
    mins = None if kind.name == "Q8_0" else torch.empty_like(scales)
    for rows in row_chunks(*codes.shape):
        scales[rows], least = _unpack(raw[rows], kind, codes[rows])
        if mins is not None:
            mins[rows] = -float(FOUR_BIT_ZERO) * scales[rows] if least is None else least
    return QuantizedWeight(codes, scales, mins)


def _code_dtype(kind: GGMLType) -> torch.dtype:
    return torch.int8 if kind.name == "Q8_0" else torch.uint8


def _unpack(raw: Array, kind: GGMLType, codes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Write the codes into [rows, groups * GROUP]; scales and least weights, float16 [rows, groups].

    A block is a float16 scale, in Q4_1 a float16 least weight, and the codes: in 4 bits, those of the first half of the
    group in the low halves of the bytes, which are taken apart some at once, in words.
    """
    word = torch.int32 if kind.num_bytes % 4 == 0 else torch.int16
    blocks = torch.from_numpy(raw.copy()).view(word).view(len(raw), -1, kind.num_bytes // word.itemsize)
    heads = blocks[..., :1].contiguous().view(torch.float16)  # [rows, groups, 1 or 2]
    packed = blocks[..., 1:]
    words = codes.view(word).view(*blocks.shape[:2], -1)
    if kind.name == "Q8_0":
        words.copy_(packed)
    else:
        low, half = torch.tensor(LOW_HALVES).to(word), packed.shape[-1]
        torch.bitwise_and(packed, low, out=words[..., :half])
        torch.bitwise_right_shift(packed, 4, out=words[..., half:])
        words[..., half:].bitwise_and_(low)
    return heads[..., 0], heads[..., 1] if kind.name == "Q4_1" else None
