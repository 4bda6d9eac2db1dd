"""The number formats: which are read, and that weights come back as what they were."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType

from specdec.models import chunks
from specdec.models.gguf_types import SUPPORTED, dequantize, name_of, read_codes


def test_the_tables_are_ggmls() -> None:
    assert {kind.name for kind in SUPPORTED.values()} == {
        *("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
    }
    for number, kind in SUPPORTED.items():
        assert kind.name == GGMLQuantizationType(number).name == name_of(number)
        assert (kind.block_size, kind.num_bytes) == gguf.GGML_QUANT_SIZES[GGMLQuantizationType(number)]
    assert name_of(GGMLQuantizationType.IQ2_XS) == "IQ2_XS"
    assert name_of(999) == "unknown (999)"


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
    assert back.dtype == torch.float32
    assert (back - torch.from_numpy(weights)).abs().max() <= error


@pytest.mark.parametrize("name", [kind.name for kind in SUPPORTED.values()])
@pytest.mark.parametrize(("rows", "blocks"), [(1, 1), (7, 5), (3000, 3)])
def test_weights_are_the_gguf_packages_bit_for_bit(
    name: str, rows: int, blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of whatever bytes, in chunks that do not divide the rows."""
    monkeypatch.setattr(chunks, "CHUNK", 4096)
    number = GGMLQuantizationType[name]
    kind = SUPPORTED[number.value]
    raw = np.random.default_rng(2).integers(0, 255, (rows, blocks * kind.num_bytes), np.uint8)
    with np.errstate(all="ignore"):
        expected = torch.from_numpy(np.array(gguf.quants.dequantize(raw, number), np.float32))
    found = dequantize(raw, kind)
    assert torch.equal(found.nan_to_num(1.5), expected.nan_to_num(1.5))
    found.zero_()
    if name in ("Q4_0", "Q4_1", "Q8_0"):
        finite = expected.isfinite()
        codes = read_codes(raw, kind).rows(slice(None))
        assert torch.equal(codes[codes.isfinite() & finite], expected[codes.isfinite() & finite])


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
    assert weights.unique().tolist() == [expected]


def test_infinite_scales_of_a_damaged_file_do_not_warn() -> None:
    block = np.full((1, 20), 0xFF, np.uint8)
    assert dequantize(block, SUPPORTED[3]).isnan().all()
