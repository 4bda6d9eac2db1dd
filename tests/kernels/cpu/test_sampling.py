"""What chooses tokens, against the definitions, at every instruction level that this CPU has."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.kernels import Kernels, reference
from specdec.kernels.noise import NoiseKeys
from specdec.sampling.process import process_logits
from specdec.types import SamplingParams
from tests.kernels.cpu.exact import strided
from tests.native import NativeKernels, runnable_levels
from tests.sampling.helpers import sampling_row

EXAMPLES = settings(max_examples=25)
ROWS = st.integers(1, 9)
COLUMNS = st.integers(1, 70) | st.sampled_from([4095, 4096, 4097, 9000])
SEEDS = st.integers(0, 2**32)
THREADS = st.integers(1, 3)


@pytest.fixture(params=runnable_levels(), scope="module")
def level(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def some_logits(rows: int, columns: int, scale: float, seed: int, *bad: float, share: float = 0.0) -> torch.Tensor:
    """Normal ones, ties among them, with a share of bad ones."""
    torch.manual_seed(seed)
    logits = (scale * torch.randn(rows, columns)).round(decimals=2)
    for value in bad:
        logits[torch.rand(rows, columns) < share] = value
    return logits


def some_keys(count: int) -> NoiseKeys:
    words = torch.randint(0, 2**32, (count, 5))
    return [tuple(key) for key in words.tolist()]  # type: ignore[misc]


@EXAMPLES
@given(ROWS, COLUMNS, st.integers(0, 3), st.floats(0, 0.02), THREADS, SEEDS)
def test_largest(
    native: NativeKernels, level: str, rows: int, columns: int, margin: int, share: float, threads: int, seed: int
) -> None:
    """Ties, infinities and NaN included."""
    logits = some_logits(rows, columns, 2, seed, math.nan, math.inf, -math.inf, share=share)
    logits[0] = -math.inf
    tokens, values = native.backend(level, threads).largest(strided(logits, margin, 1))
    expected, largest = reference.largest(logits)
    assert torch.equal(tokens, expected)
    assert torch.equal(values.nan_to_num(9e9), largest.nan_to_num(9e9))


@EXAMPLES
@given(ROWS, COLUMNS, st.sampled_from([0.1, 3, 300, 1e30]), THREADS, SEEDS)
def test_logsumexp(
    native: NativeKernels, level: str, rows: int, columns: int, scale: float, threads: int, seed: int
) -> None:
    kernels = native.backend(level, threads)
    logits = some_logits(rows, columns, scale, seed, -math.inf, share=0.3)
    masses = kernels.logsumexp(strided(logits, 2, 1))
    torch.testing.assert_close(masses, reference.logsumexp(logits), rtol=1e-13, atol=1e-13)
    for row, mass in zip(logits, masses, strict=True):
        assert native.backend(level).logsumexp(row[None]).item() == mass.item()


def test_logsumexp_of_what_is_no_law(native: NativeKernels, level: str) -> None:
    logits = torch.zeros(3, 5000)
    logits[0, 4500], logits[1], logits[2, 7] = math.nan, -math.inf, math.inf
    found = native.backend(level).logsumexp(logits).tolist()
    assert math.isnan(found[0])
    assert found[1:] == [-math.inf, math.inf]


FILTER = st.tuples(
    st.sampled_from([0.1, 0.7, 1.0, 2.5]),
    st.sampled_from([-1, 0, 1, 2, 40, 300, 5000, 10**9]),
    st.sampled_from([1.0]) | st.floats(1e-6, 0.999999),
    st.sampled_from([0.0]) | st.floats(1e-6, 1.0),
)


@settings(max_examples=60)
@given(
    COLUMNS,
    st.lists(FILTER, min_size=1, max_size=6),
    st.sampled_from([0.0, 0.3, 1.0, 4.0, 40.0]),
    st.sampled_from([0.0, 0.5, 0.99]),
    THREADS,
    SEEDS,
)
def test_filters(
    native: NativeKernels,
    level: str,
    columns: int,
    filters: list[tuple[float, int, float, float]],
    scale: float,
    share: float,
    threads: int,
    seed: int,
) -> None:
    logits = some_logits(len(filters), columns, scale, seed, -math.inf, share=share)
    given_rows = strided(logits, 3, 1)
    before = given_rows.clone()
    out = native.backend(level, threads).filter_logits(given_rows, *zip(*filters, strict=True))
    assert torch.equal(out, reference.filter_logits(logits, *zip(*filters, strict=True)))
    assert torch.equal(given_rows, before)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_filters_leave_what_is_no_law_to_who_draws(native: NativeKernels, level: str, bad: float) -> None:
    logits = torch.zeros(2, 100)
    logits[0, 60] = bad
    out = native.backend(level).filter_logits(logits, [0.5, 0.5], [3, 3], [0.9, 0.9], [0.1, 0.1])
    assert not math.isfinite(out[0].amax().item())
    assert int((out[1] == 0).sum()) == 3


@EXAMPLES
@given(
    ROWS,
    COLUMNS,
    st.integers(1, 6),
    st.sampled_from([0.0, 1.0, 5.0, 50.0]),
    st.sampled_from([0.0, 0.5, 0.999, 1.0]),
    st.sampled_from([torch.float32, torch.float64]),
    THREADS,
    SEEDS,
)
def test_gumbel_argmax(
    native: NativeKernels,
    level: str,
    rows: int,
    columns: int,
    draws: int,
    scale: float,
    share: float,
    dtype: torch.dtype,
    threads: int,
    seed: int,
) -> None:
    """The reference's tokens; the same bits whoever else is drawn for, on any number of threads."""
    logits = some_logits(rows, columns, scale, seed, -math.inf, share=share).to(dtype)
    at, keys = torch.randint(0, rows, (draws,)).tolist(), some_keys(draws)
    tokens, scores = native.backend(level, threads).gumbel_argmax(strided(logits, 2, 1), at, keys)
    expected, best = reference.gumbel_argmax(logits, at, keys)
    possible = best.isfinite()
    assert torch.equal(tokens[possible], expected[possible])
    torch.testing.assert_close(scores, best, rtol=1e-14, atol=1e-14)
    for i, (row, key) in enumerate(zip(at, keys, strict=True)):
        token, score = native.backend(level).gumbel_argmax(logits[row][None], [0], [key])
        assert (token.item(), score.item()) == (tokens[i].item(), scores[i].item())


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("column", [0, 70, 8999])
def test_a_draw_from_what_is_no_law_tells(native: NativeKernels, level: str, bad: float, column: int) -> None:
    logits = torch.zeros(2, 9000)
    logits[0, column] = bad
    _, scores = native.backend(level, 2).gumbel_argmax(logits, [0, 1], some_keys(2))
    assert str(scores[0].item()) == str(bad)
    assert math.isfinite(scores[1].item())


def test_what_the_compiled_ones_do_not_read_is_left_to_the_reference(native: NativeKernels, level: str) -> None:
    kernels: Kernels = native.backend(level)
    logits = torch.randn(3, 40, dtype=torch.float64)
    for given_rows in (logits, logits.float().T.contiguous().T, logits[:0].float()):
        tokens, values = kernels.largest(given_rows)
        expected = reference.largest(given_rows)
        assert torch.equal(tokens, expected[0])
        assert torch.equal(values, expected[1])
        assert torch.allclose(kernels.logsumexp(given_rows), reference.logsumexp(given_rows))


def test_a_top_k_beyond_any_vocabulary_is_off(native: NativeKernels, level: str) -> None:
    logits = torch.randn(1, 50)
    row = sampling_row(SamplingParams(temperature=2.0, top_k=2**64 + 1))
    assert torch.equal(process_logits(logits, [row], native.backend(level)), logits / 2)
