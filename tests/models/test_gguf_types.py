"""Every number format against the `gguf` package, bit for bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType
from hypothesis import given
from hypothesis import strategies as st

from specdec.models import gguf_types
from specdec.models.gguf_types import REFUSED, SUPPORTED, dequantize
from tests.models.gguf_writing import equal_bits

QUANTIZABLE = ("F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
each_type = pytest.mark.parametrize("number", SUPPORTED, ids=[kind.name for kind in SUPPORTED.values()])


def reference(raw: np.ndarray, number: int) -> np.ndarray:
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(raw, GGMLQuantizationType(number))


def random_bytes(number: int, rows: int, width: int, seed: int = 0) -> np.ndarray:
    """Blocks of random bytes: every integer, and scales of every size, infinities and NaN among them."""
    kind = SUPPORTED[number]
    row = width // kind.block_size * kind.num_bytes
    return np.random.default_rng(seed).integers(0, 256, (rows, row), dtype=np.uint8)


def test_the_tables_are_ggmls() -> None:
    for number, kind in SUPPORTED.items():
        assert GGMLQuantizationType(number).name == kind.name
        assert gguf.GGML_QUANT_SIZES[GGMLQuantizationType(number)] == (kind.block_size, kind.num_bytes)
    for number, name in REFUSED.items():
        assert GGMLQuantizationType(number).name == name
    assert {kind.value for kind in GGMLQuantizationType} == SUPPORTED.keys() | REFUSED.keys()


@each_type
def test_random_blocks_equal_the_reference(number: int) -> None:
    raw = random_bytes(number, 24, 1024)
    assert equal_bits(dequantize(raw.ravel(), SUPPORTED[number]), reference(raw, number))


@each_type
def test_sane_scales_equal_the_reference_in_value(number: int) -> None:
    """Random integers under scales of order one: no NaN hides a difference."""
    raw = random_bytes(number, 4, 1024).reshape(-1, SUPPORTED[number].num_bytes)
    scales = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
    for at in scales.get(SUPPORTED[number].name, (0,)):
        if SUPPORTED[number].block_size > 1:
            raw[:, at : at + 2] = np.linspace(-1, 1, len(raw)).astype("<f2")[:, None].view(np.uint8)
        else:
            raw[:, -1] &= 0xBF
    raw = raw.reshape(4, -1)
    weights = dequantize(raw.ravel(), SUPPORTED[number])
    assert np.isfinite(weights).all()
    assert len(np.unique(weights)) > 100
    assert equal_bits(weights, reference(raw, number))


@pytest.mark.parametrize("name", QUANTIZABLE)
def test_quantised_weights_come_back(name: str) -> None:
    number = GGMLQuantizationType[name]
    weights = np.random.default_rng(1).normal(size=(8, 256)).astype(np.float32)
    raw = np.ascontiguousarray(gguf.quants.quantize(weights, number))
    back = dequantize(raw.view(np.uint8).ravel(), SUPPORTED[number.value])
    assert equal_bits(back, reference(raw, number.value))
    assert np.abs(back - weights.ravel()).max() < {"F16": 2e-3, "BF16": 2e-2, "Q8_0": 2e-2}.get(name, 0.6)


@each_type
def test_chunks_join_without_a_seam(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = random_bytes(number, 1, 256 * 13).ravel()
    whole = dequantize(raw, SUPPORTED[number])
    monkeypatch.setattr(gguf_types, "CHUNK_WEIGHTS", 512)
    assert equal_bits(dequantize(raw, SUPPORTED[number]), whole)


@given(number=st.sampled_from(sorted(SUPPORTED)), blocks=st.integers(1, 5), seed=st.integers(0, 2**32 - 1))
def test_any_block_equals_the_reference(number: int, blocks: int, seed: int) -> None:
    raw = random_bytes(number, 1, blocks * SUPPORTED[number].block_size, seed)
    assert equal_bits(dequantize(raw.ravel(), SUPPORTED[number]), reference(raw, number))
