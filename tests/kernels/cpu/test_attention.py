"""Attention against its definition in float64, at every instruction level that this CPU has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.cpu.attention_cases import Row, Shape, attention
from tests.kernels.cpu.exact import TOLERANCE, poisoned_results, strided
from tests.native import NativeKernels, runnable_levels

DTYPES = (torch.float32, torch.bfloat16, torch.int8)
ROUNDED_WEIGHTS = 2**-8
"""What the weights of values in bfloat16, rounded to it too, may be off by: each and their sum by half a unit."""


@pytest.fixture(autouse=True, scope="module")
def _poison() -> Iterator[None]:
    with poisoned_results():
        yield


@st.composite
def rows(draw: st.DrawFn, first_entry: int) -> Row:
    """Prompt chunks, single tokens, chains and trees, with contexts across the chunks of 64."""
    context = draw(st.integers(0, 20) | st.sampled_from([63, 64, 65, 127, 130, 300, 1000]))
    shape = draw(st.sampled_from(["none", "chain", "tree"]))
    nodes = 0 if shape == "none" else draw(st.integers(1, 7) | st.sampled_from([20, 64]))
    parents = [node - 1 if shape == "chain" else draw(st.integers(-1, node - 1)) for node in range(nodes)]
    queries = draw(st.integers(0 if nodes else 1, 6) | st.sampled_from([33, 90]))
    return Row(first_entry + context + max(1, queries), queries, tuple(parents))


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    return Shape(
        groups=draw(st.integers(1, 3)),
        repeats=draw(st.sampled_from([1, 2, 3, 8, 49])),
        size=draw(st.sampled_from([7, 16, 64, 80, 96, 128, 256])),
        block_size=draw(st.sampled_from([1, 3, 16])),
        dtype=draw(st.sampled_from(DTYPES)),
        window=draw(st.sampled_from([None, 1, 5, 70])),
        soft_cap=draw(st.sampled_from([None, 2.0, 30.0])),
        first_entry=draw(st.sampled_from([0, 0, 1, 70])),
    )


@st.composite
def cases(draw: st.DrawFn) -> tuple[Shape, list[Row]]:
    shape = draw(shapes())
    return shape, draw(st.lists(rows(shape.first_entry), min_size=1, max_size=4))


@pytest.mark.parametrize("level", runnable_levels())
@settings(max_examples=40)
@given(cases(), st.booleans(), st.booleans(), st.integers(1, 3), st.integers(0, 2**32))
def test_attention_is_what_the_contract_says(
    native: NativeKernels,
    level: str,
    case: tuple[Shape, list[Row]],
    spoil: bool,
    share: bool,
    threads: int,
    seed: int,
) -> None:
    shape, batch = case
    call = attention(shape, batch, seed, spoil=spoil, share=share)
    kernels = native.backend(level, threads)
    out = kernels.paged_attention(strided(call.query, 5, 3), call.keys, call.values, **call.arguments())
    tolerance = TOLERANCE + (ROUNDED_WEIGHTS if shape.dtype == torch.bfloat16 else 0)
    at = 0
    for b, row in enumerate(batch):
        for i in range(len(row.positions)):
            if at % 7 == seed % 7 or at < 3 or i >= row.queries or len(row.positions) - i < 3:
                seen = row.seen_by(i, shape.window, shape.first_entry)
                if call.spoiled[b] and row.length - 1 in seen:
                    assert not out[at].isfinite().any()
                else:
                    exact, size = call.exact(b, i, at)
                    assert out[at].isfinite().all(), (b, i)
                    assert ((out[at].double() - exact).abs() <= tolerance * size + 1e-30).all(), (b, i)
            at += 1


@pytest.mark.parametrize("level", runnable_levels())
@settings(max_examples=15)
@given(
    shapes(),
    st.integers(8, 20),
    st.lists(st.sampled_from([0, 1, 62, 63, 64, 130, 257]), min_size=3, max_size=3),
    st.sampled_from([(1, ()), (5, ()), (1, (-1, 0, 0, 1)), (40, ())]),
    st.integers(1, 2),
    st.integers(0, 2**32),
)
def test_a_row_has_the_same_bits_alone_and_among_many(
    native: NativeKernels,
    level: str,
    shape: Shape,
    count: int,
    contexts: list[int],
    own: tuple[int, tuple[int, ...]],
    threads: int,
    seed: int,
) -> None:
    """Alone a row is cut along its context; of many, one thread does all heads of each."""
    queries, parents = own
    batch = [Row(shape.first_entry + contexts[b % 3] + queries, queries, parents) for b in range(count)]
    call = attention(shape, batch, seed)
    kernels = native.backend(level, threads)
    out = kernels.paged_attention(call.query, call.keys, call.values, **call.arguments())
    size = queries + len(parents)
    for b in {0, count // 2, count - 1}:
        single = call.alone(b)
        alone = kernels.paged_attention(single.query, call.keys, call.values, **single.arguments())
        assert torch.equal(alone, out[b * size : (b + 1) * size])
