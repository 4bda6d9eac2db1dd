"""Every op but attention against its definition, at every instruction level that this CPU has."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.kernels import QuantizedWeight, reference
from specdec.kernels.cpu.backend import CpuKernels
from tests.kernels.cpu.exact import (
    KINDS,
    as_multiplied,
    assert_close,
    matrix,
    poisoned_results,
    strided,
    values,
)
from tests.native import NativeKernels, runnable_levels

EXAMPLES = settings(max_examples=25)
ROWS = st.integers(1, 20) | st.integers(1, 200)
SEEDS = st.integers(0, 2**32)


@pytest.fixture(params=runnable_levels(), scope="module")
def level(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True, scope="module")
def _poison() -> Iterator[None]:
    with poisoned_results():
        yield


class Given:
    """Draws for one example: a backend, and random tensors."""

    def __init__(self, native: NativeKernels, level: str, num_threads: int, seed: int) -> None:
        self.kernels: CpuKernels = native.backend(level, num_threads)
        torch.manual_seed(seed)


THREADS = st.integers(1, 3)
KIND = st.sampled_from(KINDS)


@EXAMPLES
@given(
    KIND,
    ROWS,
    st.integers(1, 100) | st.sampled_from([576, 1536]),
    st.integers(1, 150),
    st.booleans(),
    st.none() | st.tuples(st.integers(0, 9), st.integers(0, 9)),
    THREADS,
    SEEDS,
)
def test_linear(
    native: NativeKernels,
    level: str,
    kind: str,
    rows: int,
    inputs: int,
    outputs: int,
    has_bias: bool,
    margins: tuple[int, int] | None,
    threads: int,
    seed: int,
) -> None:
    kernels = Given(native, level, threads, seed).kernels
    weight, x = matrix(kind, outputs, inputs), torch.randn(rows, inputs)
    bias = torch.randn(outputs) if has_bias else None
    out = kernels.linear(x if margins is None else strided(x, *margins), kernels.pack(weight), bias)
    seen, numbers = as_multiplied(x, weight), values(weight)
    exact, size = seen @ numbers.T, seen.abs() @ numbers.T.abs()
    if isinstance(weight, QuantizedWeight) and weight.mins is not None:
        # A weight near zero is the difference of two that are not.
        mins = weight.mins.double().repeat_interleave(32, dim=1)[:, :inputs]
        size = seen.abs() @ ((numbers - mins).abs() + mins.abs()).T
    if bias is not None:
        exact, size = exact + bias, size + bias.abs()
    assert_close(out, exact, size)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_a_number_reaches_its_own_row_and_no_other(
    native: NativeKernels, level: str, kind: str, bad: float
) -> None:
    kernels = Given(native, level, 2, 0).kernels
    for rows, spoiled in ((1, 0), (2, 1), (14, 5), (40, 17)):
        x, weight = torch.randn(rows, 70), kernels.pack(matrix(kind, 50, 70))
        clean = kernels.linear(x, weight)
        x[spoiled, 66] = bad
        out = kernels.linear(x, weight)
        assert not out[spoiled].isfinite().any()
        others = torch.arange(rows) != spoiled
        assert torch.equal(out[others], clean[others])


@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("size", [0.0, 1e-45, 1e-41, 1e-38, 3e-37, 1e-36, 1e-20])
def test_states_too_small_for_codes_are_zero(native: NativeKernels, level: str, kind: str, size: float) -> None:
    """One group of ordinary numbers, one that is next to nothing."""
    kernels = Given(native, level, 1, 0).kernels
    x, weight = torch.randn(3, 64), matrix(kind, 40, 64)
    x[:, 32:] *= size
    out = kernels.linear(x, kernels.pack(weight))
    exact = as_multiplied(x, weight) @ values(weight).T
    assert_close(out, exact, torch.full_like(exact, 10.0))
    assert torch.allclose(reference.linear(x, weight).double(), exact, atol=1e-4, rtol=0)
    tiny = kernels.linear(x[:, 32:], kernels.pack(QuantizedWeight(*(_second_group(weight)))))
    assert tiny.abs().max() <= 1000 * size


def _second_group(weight: object) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    assert isinstance(weight, QuantizedWeight)
    return weight.codes[:, 32:], weight.scales[:, 1:], None if weight.mins is None else weight.mins[:, 1:]


@EXAMPLES
@given(KIND, ROWS, st.integers(1, 100), st.integers(1, 100), THREADS, SEEDS)
def test_embedding(
    native: NativeKernels, level: str, kind: str, rows: int, size: int, entries: int, threads: int, seed: int
) -> None:
    kernels = Given(native, level, threads, seed).kernels
    weight, ids = matrix(kind, entries, size), torch.randint(0, entries, (rows,))
    out = kernels.embedding(ids, kernels.pack(weight))
    expected = reference.embedding(ids, weight).float()
    if kind == "int4":  # times and plus, rounded once or twice
        torch.testing.assert_close(out, expected, rtol=1e-6, atol=1e-6)
    else:
        assert torch.equal(out, expected)


@EXAMPLES
@given(
    ROWS,
    st.none() | st.integers(1, 6),
    st.integers(1, 100) | st.just(576),
    st.booleans(),
    st.integers(0, 5),
    THREADS,
    SEEDS,
)
def test_rms_norm(
    native: NativeKernels,
    level: str,
    rows: int,
    heads: int | None,
    size: int,
    unit_offset: bool,
    before: int,
    threads: int,
    seed: int,
) -> None:
    kernels = Given(native, level, threads, seed).kernels
    x, weight = torch.randn((rows, size) if heads is None else (rows, heads, size)), torch.randn(size)
    out = kernels.rms_norm(strided(x, before, 3), weight, 1e-5, unit_offset)
    exact = reference.rms_norm(x.double(), weight.double(), 1e-5, unit_offset)
    one = 1.0 if unit_offset else 0.0
    normed = x.double().abs() * torch.rsqrt(x.double().pow(2).mean(-1, keepdim=True) + 1e-5)
    assert_close(out, exact, normed * (weight.double().abs() + one))


@EXAMPLES
@given(ROWS, st.integers(1, 6), st.integers(1, 50), st.integers(0, 9), st.integers(0, 5), THREADS, SEEDS)
def test_rotary(
    native: NativeKernels,
    level: str,
    rows: int,
    heads: int,
    half: int,
    rest: int,
    before: int,
    threads: int,
    seed: int,
) -> None:
    kernels = Given(native, level, threads, seed).kernels
    x, (cos, sin) = torch.randn(rows, heads, 2 * half + rest), torch.randn(2, 37, half)
    positions = torch.randint(0, 37, (rows,))
    out = kernels.rotary(strided(x, before, 2), cos, sin, positions)
    exact = reference.rotary(x.double(), cos.double(), sin.double(), positions)
    size = reference.rotary(x.double().abs(), cos.double().abs(), -sin.double().abs(), positions).abs()
    size += reference.rotary(x.double().abs(), cos.double().abs(), sin.double().abs(), positions).abs()
    assert_close(out, exact, size)


@EXAMPLES
@given(
    ROWS,
    st.integers(1, 100) | st.just(1536),
    st.sampled_from([0.1, 1.0, 30.0, 200.0]),
    st.integers(0, 5),
    THREADS,
    SEEDS,
)
def test_gates_sums_and_factors(
    native: NativeKernels, level: str, rows: int, size: int, spread: float, before: int, threads: int, seed: int
) -> None:
    kernels = Given(native, level, threads, seed).kernels
    x = torch.randn(rows, 2 * size)
    x[:, :size] *= spread
    given_x = strided(x, before, 1)
    for op, exact_op in (
        (kernels.silu_and_mul, reference.silu_and_mul),
        (kernels.gelu_tanh_and_mul, reference.gelu_tanh_and_mul),
    ):
        exact = exact_op(x.double())
        # Far below zero a gate is next to nothing, and its error is one of the gate's argument.
        assert_close(op(given_x), exact, exact.abs() + 1e-3 * x[:, size:].double().abs())
    y = torch.randn(rows, 2 * size)
    assert torch.equal(kernels.add(given_x, strided(y, 2, before)), x + y)
    assert torch.equal(kernels.scale(given_x, 2.7), x * 2.7)
    narrow = torch.full((rows, size), float("nan"))
    both = kernels.concat(strided(narrow, 1, before), given_x)
    assert torch.equal(both.nan_to_num(7.0), torch.cat((torch.full_like(narrow, 7.0), x), dim=-1))


@EXAMPLES
@given(
    ROWS,
    st.integers(1, 4),
    st.sampled_from([1, 7, 16, 64, 80, 100]),
    st.sampled_from([torch.float32, torch.bfloat16, torch.int8]),
    st.sampled_from([1, 3, 16]),
    THREADS,
    SEEDS,
)
def test_entries_are_written_where_they_belong_bit_for_bit(
    native: NativeKernels,
    level: str,
    rows: int,
    groups: int,
    size: int,
    dtype: torch.dtype,
    block_size: int,
    threads: int,
    seed: int,
) -> None:
    kernels = Given(native, level, threads, seed).kernels
    blocks = -(-rows // block_size) + 2
    entry = size + 4 if dtype == torch.int8 else size
    shape = (blocks, block_size, groups, entry)
    before = torch.randint(-128, 128, (*shape[:-1], entry * dtype.itemsize), dtype=torch.int8).view(dtype)
    key, value = torch.randn(2, rows, groups, size) * 10.0 ** torch.randint(-45, 38, (2, rows, 1, 1)).float()
    for spoiled in torch.randint(0, rows, (rows // 8,)).tolist():
        key[spoiled, 0, 0] = [math.nan, math.inf, -math.inf][spoiled % 3]
    value[0] = 0
    slots = torch.randperm(blocks * block_size)[:rows]
    caches, expected = (before.clone(), before.clone()), (before.clone(), before.clone())
    kernels.write_kv(strided(key, 3, 0), strided(value, 0, 5), *caches, slots)
    reference.write_kv(key, value, *expected, slots)
    for cache, wanted in zip(caches, expected, strict=True):
        same = cache.view(torch.int8) == wanted.view(torch.int8)
        # One NaN is as good as another.
        if dtype == torch.int8:
            assert same.all()
        else:
            assert (same.unflatten(-1, (-1, dtype.itemsize)).all(-1) | (cache.isnan() & wanted.isnan())).all()


@EXAMPLES
@given(st.integers(0, 30), st.integers(1, 4), st.sampled_from([torch.float32, torch.bfloat16, torch.int8]), SEEDS)
def test_moves_read_everything_before_they_write(
    native: NativeKernels, level: str, count: int, num_caches: int, dtype: torch.dtype, seed: int
) -> None:
    kernels = Given(native, level, 1, seed).kernels
    caches = [torch.randint(-128, 128, (12, 3, 2, 20), dtype=torch.int8).view(dtype) for _ in range(num_caches)]
    expected = [cache.clone() for cache in caches]
    slots_from, slots_to = torch.randint(0, 36, (count,)), torch.randperm(36)[:count]
    kernels.move_kv(caches, slots_from, slots_to)
    reference.move_kv(expected, slots_from, slots_to)
    for cache, wanted in zip(caches, expected, strict=True):
        assert torch.equal(cache.view(torch.int8), wanted.view(torch.int8))


@pytest.mark.parametrize("kind", KINDS)
def test_no_rows_are_no_trouble(kind: str, native: NativeKernels, level: str) -> None:
    """As where a head is asked and nobody drafts. The definition says the same."""
    weight = matrix(kind, 7, 40)
    native_kernels = native.backend(level, 1)
    for kernels, held in ((reference, weight), (native_kernels, native_kernels.pack(weight))):
        states = torch.empty(0, 40, dtype=held.dtype)
        assert kernels.linear(states, held).shape == (0, 7)
        assert kernels.embedding(torch.empty(0, dtype=torch.int64), held).shape == (0, 40)
        assert kernels.rms_norm(torch.empty(0, 40), torch.ones(40), 1e-5).shape == (0, 40)
        assert kernels.rms_norm(torch.empty(0, 2, 40), torch.ones(40), 1e-5).shape == (0, 2, 40)
