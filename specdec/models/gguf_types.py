"""The number formats of GGUF tensors, and how each becomes float32.

A quantised row is a run of blocks; a block holds one or more scales and the small integers they multiply. Layouts
are ggml's; every result equals the `gguf` package's bit for bit: products and sums are rounded in its order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

CHUNK_WEIGHTS = 1 << 18
"""How many weights are expanded at once: a few megabytes of temporaries, whatever the tensor's size."""


@dataclass(frozen=True)
class GGMLType:
    """A number format: `block_size` weights in `num_bytes` bytes."""

    name: str
    block_size: int
    num_bytes: int
    expand: Callable[[torch.Tensor], torch.Tensor]
    """uint8 [n, num_bytes] -> float32 [n, block_size], or a shape with as many entries in the same order."""


def dequantize(raw: torch.Tensor, kind: GGMLType) -> torch.Tensor:
    """The weights of whole blocks: uint8 [n * kind.num_bytes] -> float32 [n * kind.block_size], freshly allocated."""
    blocks = raw.view(-1, kind.num_bytes)
    out = torch.empty(len(blocks), kind.block_size, dtype=torch.float32)
    step = CHUNK_WEIGHTS // kind.block_size
    for at in range(0, len(blocks), step):
        expanded = kind.expand(blocks[at : at + step])
        out[at : at + step] = expanded.view(-1, kind.block_size)
    return out.flatten()


def _f32(blocks: torch.Tensor) -> torch.Tensor:
    return blocks.clone().view(torch.float32)


def _f16(blocks: torch.Tensor) -> torch.Tensor:
    return blocks.clone().view(torch.float16).float()


def _bf16(blocks: torch.Tensor) -> torch.Tensor:
    return blocks.clone().view(torch.bfloat16).float()


def _half(blocks: torch.Tensor, at: int) -> torch.Tensor:
    """The float16 at byte `at` of every block: float32 [n, 1]."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: torch.Tensor, width: int) -> torch.Tensor:
    """4-bit numbers [n, 2 * m] of bytes [n, m]: of each `width` bytes the low halves, then the high ones."""
    groups = packed.unflatten(1, (-1, width))
    return torch.stack((groups & 15, groups >> 4), dim=2).flatten(1)


def _shifted(packed: torch.Tensor, width: int, bits: int) -> torch.Tensor:
    """`bits`-bit numbers [n, m * 8 / bits] of bytes [n, m]: of each `width` bytes the lowest bits, then the next."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8)
    groups = packed.unflatten(1, (-1, 1, width))
    return (groups >> shifts[:, None] & (1 << bits) - 1).flatten(1)


def _fifth_bits(packed: torch.Tensor) -> torch.Tensor:
    """Bit i of each block's little-endian 32-bit word, as 0 or 16: uint8 [n, 4] -> [n, 32]."""
    return _shifted(packed, 1, 1) << 4


def _q4_0(blocks: torch.Tensor) -> torch.Tensor:
    return _nibbles(blocks[:, 2:], 16).float().sub_(8).mul_(_half(blocks, 0))


def _q4_1(blocks: torch.Tensor) -> torch.Tensor:
    return _nibbles(blocks[:, 4:], 16).float().mul_(_half(blocks, 0)).add_(_half(blocks, 2))


def _q5_0(blocks: torch.Tensor) -> torch.Tensor:
    numbers = _nibbles(blocks[:, 6:], 16) | _fifth_bits(blocks[:, 2:6])
    return numbers.float().sub_(16).mul_(_half(blocks, 0))


def _q5_1(blocks: torch.Tensor) -> torch.Tensor:
    numbers = _nibbles(blocks[:, 8:], 16) | _fifth_bits(blocks[:, 4:8])
    return numbers.float().mul_(_half(blocks, 0)).add_(_half(blocks, 2))


def _q8_0(blocks: torch.Tensor) -> torch.Tensor:
    return blocks[:, 2:].view(torch.int8).float().mul_(_half(blocks, 0))


def _k_scales(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales and minima of a K block's eight groups, float32 [n, 8, 1] each.

    Bytes 0 to 3 hold the two float16 factors; the next twelve hold sixteen 6-bit numbers: the first eight bytes
    give the lower six bits of groups 0 to 3 (scales, then minima) and, on top, the upper two of groups 4 to 7, whose
    lower four lie in the last four bytes.
    """
    scales, minima, lower = blocks[:, 4:16].unflatten(1, (3, 4)).unbind(1)  # [n, 4] each
    scales = torch.cat((scales & 63, lower & 15 | scales >> 2 & 48), dim=1)
    minima = torch.cat((minima & 63, lower >> 4 | minima >> 2 & 48), dim=1)
    return (scales * _half(blocks, 0))[..., None], (minima * _half(blocks, 2))[..., None]


def _q4_k(blocks: torch.Tensor) -> torch.Tensor:
    scales, minima = _k_scales(blocks)
    return _nibbles(blocks[:, 16:], 32).float().unflatten(1, (8, 32)).mul_(scales).sub_(minima)


def _q5_k(blocks: torch.Tensor) -> torch.Tensor:
    scales, minima = _k_scales(blocks)
    numbers = _nibbles(blocks[:, 48:], 32) | _shifted(blocks[:, 16:48], 32, 1) << 4
    return numbers.float().unflatten(1, (8, 32)).mul_(scales).sub_(minima)


def _q6_k(blocks: torch.Tensor) -> torch.Tensor:
    numbers = _nibbles(blocks[:, :128], 64) | _shifted(blocks[:, 128:192], 32, 2) << 4
    scales = blocks[:, 192:208].view(torch.int8) * _half(blocks, 208)  # [n, 16]
    return numbers.float().sub_(32).unflatten(1, (16, 16)).mul_(scales[..., None])


SUPPORTED = {
    0: GGMLType("F32", 1, 4, _f32),
    1: GGMLType("F16", 1, 2, _f16),
    2: GGMLType("Q4_0", 32, 18, _q4_0),
    3: GGMLType("Q4_1", 32, 20, _q4_1),
    6: GGMLType("Q5_0", 32, 22, _q5_0),
    7: GGMLType("Q5_1", 32, 24, _q5_1),
    8: GGMLType("Q8_0", 32, 34, _q8_0),
    12: GGMLType("Q4_K", 256, 144, _q4_k),
    13: GGMLType("Q5_K", 256, 176, _q5_k),
    14: GGMLType("Q6_K", 256, 210, _q6_k),
    30: GGMLType("BF16", 1, 2, _bf16),
}
"""By ggml's number."""

REFUSED = {
    9: "Q8_1",
    10: "Q2_K",
    11: "Q3_K",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
    40: "NVFP4",
    41: "Q1_0",
}
"""ggml's other formats, for messages."""
