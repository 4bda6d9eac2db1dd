"""Few bits a weight: what rounding may cost, and that a file's own codes are kept as they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from hypothesis import given
from hypothesis import strategies as st

from specdec.kernels import QuantizedWeight, Weight, reference
from specdec.kernels.cpu.library import KIND_Q4, KIND_Q8
from specdec.kernels.weights import PackedWeight
from specdec.models import chunks
from specdec.models.gguf_types import CODED, SUPPORTED, dequantize, read_codes
from specdec.models.loader import kv_dtype, open_checkpoint, prepare_model
from specdec.models.parts import Embedding, Linear
from specdec.models.quantize import join_rows, quantize_int4, quantize_int8
from tests.models.cases import CASES, build
from tests.native import NativeKernels

EVERYTHING = slice(None)


@st.composite
def matrices(draw: st.DrawFn) -> torch.Tensor:
    rows, inputs = draw(st.integers(1, 5)), draw(st.integers(1, 100))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    weights = torch.randn(rows, inputs, generator=generator) * draw(st.sampled_from([1e-3, 1.0, 100.0]))
    return weights + draw(st.sampled_from([0.0, 0.0, 3.0]))


@given(matrices())
def test_eight_bits_are_off_by_half_a_step(weights: torch.Tensor) -> None:
    back = quantize_int8(weights).rows(EVERYTHING)
    for start in range(0, weights.shape[1], 32):
        group, found = weights[:, start : start + 32], back[:, start : start + 32]
        step = group.abs().amax(dim=1, keepdim=True) / 127
        # Half a step, and what rounding the step itself to float16 moves the largest code by.
        assert ((group - found).abs() <= 0.5 * step * 1.001 + 127 * step * 2**-11 + 2**-24 * 127).all()


@given(matrices())
def test_four_bits_are_off_by_half_a_step(weights: torch.Tensor) -> None:
    back = quantize_int4(weights).rows(EVERYTHING)
    for start in range(0, weights.shape[1], 32):
        group, found = weights[:, start : start + 32], back[:, start : start + 32]
        step = (group.amax(dim=1, keepdim=True) - group.amin(dim=1, keepdim=True)) / 15
        slack = (15 * step + group.abs().amax(dim=1, keepdim=True)) * 2**-10 + 2**-20
        assert ((group - found).abs() <= 0.5 * step + slack).all()


@given(matrices())
def test_what_four_bits_say_exactly_is_found_again(weights: torch.Tensor) -> None:
    once = quantize_int4(weights)
    again = quantize_int4(once.rows(EVERYTHING)).rows(EVERYTHING)
    assert torch.allclose(again, once.rows(EVERYTHING), rtol=2e-3, atol=1e-5)


def test_four_bits_count_from_the_least_weight_as_it_is_stored() -> None:
    """Between 512 and 1024 float16 knows halves alone: a scale much finer than that must not add to the error."""
    weights = torch.linspace(1000.2, 1001.7, 32)[None]
    coded = quantize_int4(weights)
    assert coded.mins is not None
    assert coded.mins.item() == 1000.0
    assert (coded.rows(EVERYTHING) - weights).abs().max() <= 0.5 * coded.scales.item() * 1.01


@pytest.mark.parametrize("backend", ["reference", "native"])
def test_the_vocabulary_stays_in_eight_bits(backend: str, tmp_path: Path, native: NativeKernels) -> None:
    build(CASES["llama"]()).save_pretrained(tmp_path)
    kernels = reference if backend == "reference" else native.backend()
    prepared = prepare_model(open_checkpoint(tmp_path), kernels=kernels, max_model_len=None)
    decoder = prepared.load(dtype="float32", device=torch.device("cpu"), quantization="int4")
    assert decoder.lm_head is not None
    vocabulary = [decoder.embed_tokens, decoder.lm_head]
    kinds = {part: form(part.weight) for part in decoder.modules() if isinstance(part, Linear | Embedding)}
    assert len(kinds) > len(vocabulary)
    for part, bits in kinds.items():
        assert bits == (8 if part in vocabulary else 4)


def form(weight: Weight) -> int | None:
    """The bits that a weight is stored in."""
    if isinstance(weight, PackedWeight):
        return {KIND_Q4: 4, KIND_Q8: 8}.get(weight.kind)
    return (8 if weight.mins is None else 4) if isinstance(weight, QuantizedWeight) else None


@pytest.mark.parametrize("quantization", ["int8", "int4"])
@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8", "float32"])
def test_the_first_layers_of_quantised_weights_are_stored_like_all(
    quantization: str, kv_cache_dtype: str, tmp_path: Path
) -> None:
    build(CASES["llama"]()).save_pretrained(tmp_path)
    prepared = prepare_model(open_checkpoint(tmp_path), kernels=reference, max_model_len=None)
    decoder = prepared.load(
        dtype="float32", device=torch.device("cpu"), quantization=quantization, kv_cache_dtype=kv_cache_dtype
    )
    cached = torch.bfloat16 if kv_cache_dtype == "auto" else kv_dtype(kv_cache_dtype)
    for model in (decoder, decoder.first_layers(1)):
        assert model.dtype == torch.float32
        assert model.kv_layout().dtype == cached


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("quantize", [quantize_int8, quantize_int4])
def test_it_does_not_matter_how_many_rows_are_looked_at_together(
    quantize: Callable[[torch.Tensor], QuantizedWeight], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = torch.randn(23, 70, generator=torch.Generator().manual_seed(0)).to(dtype)
    whole = quantize(weights)
    for size in (1, 150, 500):
        monkeypatch.setattr(chunks, "CHUNK", size)
        parts = quantize(weights)
        assert torch.equal(parts.codes, whole.codes)
        assert torch.equal(parts.scales, whole.scales)
        assert (parts.mins is None) == (whole.mins is None)
        assert parts.mins is None or torch.equal(parts.mins, whole.mins)


def test_rows_of_zeros_stay_zero() -> None:
    for quantize in (quantize_int8, quantize_int4):
        assert quantize(torch.zeros(3, 40)).rows(EVERYTHING).abs().max() == 0


@pytest.mark.parametrize("name", CODED)
def test_a_files_codes_mean_what_gguf_says(name: str) -> None:
    weights = np.random.default_rng(2).normal(size=(6, 96)).astype(np.float32)
    number = GGMLQuantizationType[name]
    raw = np.ascontiguousarray(gguf.quants.quantize(weights, number)).view(np.uint8)
    kind = SUPPORTED[number.value]
    found = read_codes(raw, kind).rows(EVERYTHING)
    assert torch.allclose(found, dequantize(raw, kind), rtol=1e-6, atol=1e-7)


def test_matrices_of_one_form_are_joined_and_others_not() -> None:
    one, other = quantize_int4(torch.randn(3, 64)), quantize_int4(torch.randn(2, 64))
    joined = join_rows([one, other])
    assert isinstance(joined, QuantizedWeight)
    assert torch.equal(joined.rows(EVERYTHING), torch.cat((one.rows(EVERYTHING), other.rows(EVERYTHING))))
    assert join_rows([one, quantize_int8(torch.randn(2, 64))]) is None


def test_the_reference_multiplies_with_rounded_states() -> None:
    x, weight = torch.randn(4, 70), quantize_int8(torch.randn(5, 70))
    rounded = reference.round_states(x)
    assert 0 < (rounded - x).abs().max() <= x.abs().max() / 127
    assert torch.allclose(reference.linear(x, weight), rounded @ weight.rows(EVERYTHING).T, atol=1e-5)
    assert reference.round_states(torch.zeros(2, 33)).abs().max() == 0
