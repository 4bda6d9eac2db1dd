"""The number formats: which are read, and that weights come back as what they were."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType

from specdec.models.gguf_types import REFUSED, SUPPORTED, dequantize


def test_the_tables_are_ggmls() -> None:
    assert {kind.name for kind in SUPPORTED.values()} == {
        *("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
    }
    assert {kind.value for kind in GGMLQuantizationType} == SUPPORTED.keys() | REFUSED.keys()
    assert SUPPORTED[3].block_size == 32
    assert SUPPORTED[3].num_bytes == 20


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("F32", 0),
        ("F16", 2e-3),
        ("BF16", 2e-2),
        ("Q8_0", 2e-2),
        ("Q5_0", 0.2),
        ("Q5_1", 0.2),
        ("Q4_0", 0.4),
        ("Q4_1", 0.4),
    ],
)
def test_quantised_weights_come_back(name: str, error: float) -> None:
    weights = np.random.default_rng(1).normal(size=(8, 256)).astype(np.float32)
    number = GGMLQuantizationType[name]
    raw = np.ascontiguousarray(gguf.quants.quantize(weights, number)).view(np.uint8)
    back = dequantize(raw, SUPPORTED[number.value])
    assert back.shape == weights.shape
    assert back.dtype == np.float32
    assert np.abs(back - weights).max() <= error


@pytest.mark.parametrize("name", ["Q4_K", "Q5_K", "Q6_K"])
def test_k_blocks_are_scales_times_integers(name: str) -> None:
    """A block whose only scale is 1 and whose integers are all alike is constant, by ggml's formula."""
    kind = next(k for k in SUPPORTED.values() if k.name == name)
    block = np.zeros(kind.num_bytes, np.uint8)
    one = np.frombuffer(np.float16(1).tobytes(), np.uint8)
    if name == "Q6_K":  # low nibbles 128, high bits 64, int8 scales 16, factor 2: (q - 32) * scale * factor
        block[192:208], block[208:210] = 3, one
        expected = -32.0 * 3
    else:  # factor 2, minimum's factor 2, packed 6-bit scales 12, (high bits 32,) nibbles 128
        block[0:2], block[4:8], block[12:16], block[-128:] = one, 5, 5, 0x77
        expected = 7.0 * 5
    weights = dequantize(np.stack([block, block]), kind)
    assert weights.shape == (2, 256)
    assert np.unique(weights).tolist() == [expected]


def test_infinite_scales_of_a_damaged_file_do_not_warn() -> None:
    block = np.full((1, 20), 0xFF, np.uint8)
    assert np.isnan(dequantize(block, SUPPORTED[3])).all()
