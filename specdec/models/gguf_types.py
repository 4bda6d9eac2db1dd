"""The number formats of GGUF tensors, and how each becomes float32.

A quantised row is a run of blocks; a block holds one or more scales and the small integers they multiply. Layouts
are ggml's; every result equals the `gguf` package's bit for bit: products and sums are rounded in its order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

CHUNK_WEIGHTS = 1 << 16
"""How many weights are expanded at once: the temporaries stay in a core's cache, whatever the tensor's size."""


@dataclass(frozen=True)
class GGMLType:
    """A number format: `block_size` weights in `num_bytes` bytes."""

    name: str
    block_size: int
    num_bytes: int
    expand: Callable[[Array], Array]
    """uint8 [n, num_bytes] -> float32 with n * block_size entries in order."""


def dequantize(raw: Array, kind: GGMLType) -> Array:
    """The weights of whole blocks: uint8 [n * kind.num_bytes] -> float32 [n * kind.block_size], freshly allocated.

    Runs on one thread: the operations are too small to share out, and waiting for a busy core would cost far more.
    """
    blocks = raw.reshape(-1, kind.num_bytes)
    out = np.empty((len(blocks), kind.block_size), np.float32)
    step = CHUNK_WEIGHTS // kind.block_size
    # A damaged file may hold infinite scales; weights that are not numbers are for the model's user to hear of.
    with np.errstate(over="ignore", invalid="ignore"):
        for at in range(0, len(blocks), step):
            expanded = kind.expand(blocks[at : at + step])
            out[at : at + step] = expanded.reshape(-1, kind.block_size)
    return out.ravel()


def _f32(blocks: Array) -> Array:
    return blocks.copy().view("<f4")


def _f16(blocks: Array) -> Array:
    return blocks.copy().view("<f2").astype(np.float32)


def _bf16(blocks: Array) -> Array:
    return (blocks.copy().view("<u2").astype(np.uint32) << 16).view(np.float32)


def _half(blocks: Array, at: int) -> Array:
    """The float16 at byte `at` of every block: float32 [n, 1]."""
    return blocks[:, at : at + 2].copy().view("<f2").astype(np.float32)


def _nibbles(packed: Array, width: int) -> Array:
    """4-bit numbers [n, 2 * m] of bytes [n, m]: of each `width` bytes the low halves, then the high ones."""
    groups = packed.reshape(len(packed), -1, width)
    numbers = np.empty((len(packed), groups.shape[1], 2, width), np.uint8)
    np.bitwise_and(groups, 15, out=numbers[:, :, 0])
    np.right_shift(groups, 4, out=numbers[:, :, 1])
    return numbers.reshape(len(packed), -1)


def _shifted(packed: Array, width: int, bits: int) -> Array:
    """`bits`-bit numbers [n, m * 8 / bits] of bytes [n, m]: of each `width` bytes the lowest bits, then the next."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    numbers: Array = packed.reshape(len(packed), -1, 1, width) >> shifts & np.uint8((1 << bits) - 1)
    return numbers.reshape(len(packed), -1)


def _fifth_bits(packed: Array) -> Array:
    """Bit i of each block's little-endian 32-bit word, as 0 or 16: uint8 [n, 4] -> [n, 32]."""
    return np.unpackbits(packed, axis=1, bitorder="little") << 4


def _scaled(numbers: Array, scale: Array, minimum: Array | None = None) -> Array:
    """numbers * scale + minimum, in float32 and in this order."""
    weights: Array = numbers.astype(np.float32)
    weights *= scale
    if minimum is not None:
        weights += minimum
    return weights


def _q4_0(blocks: Array) -> Array:
    return _scaled(_nibbles(blocks[:, 2:], 16).view(np.int8) - np.int8(8), _half(blocks, 0))


def _q4_1(blocks: Array) -> Array:
    return _scaled(_nibbles(blocks[:, 4:], 16), _half(blocks, 0), _half(blocks, 2))


def _q5_0(blocks: Array) -> Array:
    numbers = _nibbles(blocks[:, 6:], 16) | _fifth_bits(blocks[:, 2:6])
    return _scaled(numbers.view(np.int8) - np.int8(16), _half(blocks, 0))


def _q5_1(blocks: Array) -> Array:
    numbers = _nibbles(blocks[:, 8:], 16) | _fifth_bits(blocks[:, 4:8])
    return _scaled(numbers, _half(blocks, 0), _half(blocks, 2))


def _q8_0(blocks: Array) -> Array:
    return _scaled(blocks[:, 2:].view(np.int8), _half(blocks, 0))


def _k_scales(blocks: Array) -> tuple[Array, Array]:
    """Scales and minima of a K block's eight groups, float32 [n, 8, 1] each.

    Bytes 0 to 3 hold the two float16 factors; the next twelve hold sixteen 6-bit numbers: the first eight bytes
    give the lower six bits of groups 0 to 3 (scales, then minima) and, on top, the upper two of groups 4 to 7, whose
    lower four lie in the last four bytes.
    """
    scales, minima, lower = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.concatenate((scales & 63, lower & 15 | scales >> 2 & 48), axis=1)
    minima = np.concatenate((minima & 63, lower >> 4 | minima >> 2 & 48), axis=1)
    return (_half(blocks, 0) * scales)[..., None], (_half(blocks, 2) * minima)[..., None]


def _q4_k(blocks: Array) -> Array:
    scales, minima = _k_scales(blocks)
    return _scaled(_nibbles(blocks[:, 16:], 32).reshape(-1, 8, 32), scales, -minima)


def _q5_k(blocks: Array) -> Array:
    scales, minima = _k_scales(blocks)
    numbers = _nibbles(blocks[:, 48:], 32) | _shifted(blocks[:, 16:48], 32, 1) << 4
    return _scaled(numbers.reshape(-1, 8, 32), scales, -minima)


def _q6_k(blocks: Array) -> Array:
    numbers = _nibbles(blocks[:, :128], 64) | _shifted(blocks[:, 128:192], 32, 2) << 4
    scales = blocks[:, 192:208].view(np.int8) * _half(blocks, 208)  # [n, 16]
    return _scaled(numbers.view(np.int8).reshape(-1, 16, 16) - np.int8(32), scales[..., None])


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
