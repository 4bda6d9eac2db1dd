"""The reference kernels against the plainest loops and against transformers' functions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers.activations import ACT2FN
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb
from transformers.models.phi3.modeling_phi3 import apply_rotary_pos_emb as apply_partial_rotary

from specdec.kernels import choose_backend, reference

HEADS, KV_HEADS, HEAD_DIM, BLOCK = 4, 2, 8, 4


@dataclass(frozen=True)
class Row:
    """`committed` entries, the last `queries` of them computed now, then a draft with these parents."""

    committed: int
    queries: int
    parents: tuple[int, ...] = ()

    def position(self, node: int) -> int:
        parent = self.parents[node]
        return self.committed if parent < 0 else self.position(parent) + 1

    def ancestors(self, node: int) -> set[int]:
        parent = self.parents[node]
        return {node} | (self.ancestors(parent) if parent >= 0 else set())

    @property
    def positions(self) -> list[int]:
        drafted = [self.position(node) for node in range(len(self.parents))]
        return [*range(self.committed - self.queries, self.committed), *drafted]

    @property
    def masks(self) -> list[int]:
        return [0] * self.queries + [sum(1 << a for a in self.ancestors(n)) for n in range(len(self.parents))]

    def seen_by(self, query: int, window: int | None, first_entry: int = 0) -> list[int]:
        """The entries that the row's `query`-th token sees, from the contract's words."""
        at = self.positions[query]
        seen = [entry for entry in range(self.committed) if entry <= at]
        if query >= self.queries:
            seen += [self.committed + node for node in self.ancestors(query - self.queries)]
        entry_positions = [*range(self.committed), *self.positions[self.queries :]]
        seen = [entry for entry in seen if entry >= first_entry]
        return sorted(e for e in seen if window is None or entry_positions[e] > at - window)


@st.composite
def rows(draw: st.DrawFn, void: int = 0) -> Row:
    """Rows of which the first `void` entries were computed by nobody; draft nodes may come without committed tokens."""
    parents: list[int] = []
    for node in range(draw(st.integers(0, 6))):
        parents.append(draw(st.integers(-1, node - 1)))
    fewest = 0 if parents else 1
    committed = draw(st.integers(void + fewest, 20))
    return Row(committed, draw(st.integers(fewest, committed - void)), tuple(parents))


@st.composite
def batches(draw: st.DrawFn) -> tuple[int, list[Row]]:
    """A number of void entries and rows that have them."""
    void = draw(st.sampled_from([0, 1, 3]))
    return void, draw(st.lists(rows(void), min_size=1, max_size=4))


def signed(mask: int) -> int:
    return mask - (1 << 64) if mask >> 63 else mask


@pytest.fixture(params=[3, 256])
def chunk(request: pytest.FixtureRequest) -> Iterator[None]:
    """Few queries at once, or all of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, "QUERY_CHUNK", request.param)
        yield


@pytest.mark.usefixtures("chunk")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    batches(),
    st.sampled_from([None, 1, 3, 8]),
    st.sampled_from([None, 2.0]),
    st.booleans(),
)
def test_paged_attention_equals_a_loop_over_queries(
    void_and_batch: tuple[int, list[Row]], window: int | None, soft_cap: float | None, faulty: bool
) -> None:
    """Blocks lie shuffled; every slot that no row owns is NaN, so are the void entries, and if `faulty` every row's
    last draft node."""
    void, batch = void_and_batch
    torch.manual_seed(len(batch))
    lengths = [row.committed + len(row.parents) for row in batch]
    counts = [-(-length // BLOCK) for length in lengths]
    blocks = torch.randperm(sum(counts) + 2).tolist()
    tables = torch.zeros(len(batch), max(counts), dtype=torch.int32)
    keys = torch.full((len(blocks), BLOCK, KV_HEADS, HEAD_DIM), math.nan, dtype=torch.float64)
    values = keys.clone()
    for b, length in enumerate(lengths):
        tables[b, : counts[b]] = torch.tensor([blocks.pop() for _ in range(counts[b])])
        slots = torch.tensor([int(tables[b, e // BLOCK]) * BLOCK + e % BLOCK for e in range(length)])
        shape = (length, KV_HEADS, HEAD_DIM)
        key, value = torch.randn(shape).double(), torch.randn(shape).double()
        key[:void], value[:void] = math.nan, math.nan
        if faulty and batch[b].parents:
            key[-1], value[-1] = math.inf, math.nan
        reference.write_kv(key, value, keys, values, slots)
    sizes = [row.queries + len(row.parents) for row in batch]
    query = torch.randn(sum(sizes), HEADS, HEAD_DIM, dtype=torch.float64)
    has_draft = any(row.parents for row in batch)
    out = reference.paged_attention(
        query,
        keys,
        values,
        query_start_loc=torch.tensor([0, *torch.tensor(sizes).cumsum(0).tolist()], dtype=torch.int32),
        seq_lens=torch.tensor(lengths, dtype=torch.int32),
        committed_lens=torch.tensor([row.committed for row in batch], dtype=torch.int32),
        block_tables=tables,
        positions=torch.tensor([p for row in batch for p in row.positions]),
        ancestor_masks=torch.tensor([signed(m) for row in batch for m in row.masks]) if has_draft else None,
        scale=0.3,
        sliding_window=window,
        soft_cap=soft_cap,
        first_entry=void,
    )
    at = 0
    for b, row in enumerate(batch):
        for i in range(sizes[b]):
            seen = row.seen_by(i, window, void)
            slots = [int(tables[b, e // BLOCK]) * BLOCK + e % BLOCK for e in seen]
            expected = _one_query(query[at], keys.view(-1, KV_HEADS, HEAD_DIM)[slots], values, slots, soft_cap)
            if faulty and row.parents and i >= row.queries and lengths[b] - 1 in seen:
                assert out[at].isnan().any()
            else:
                assert torch.allclose(out[at], expected, atol=1e-12, rtol=0)
            at += 1


def _one_query(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, slots: list[int], soft_cap: float | None
) -> torch.Tensor:
    """One query [H, D] over its visible keys [n, G, D], head by head."""
    heads = []
    for head in range(HEADS):
        group = head // (HEADS // KV_HEADS)
        scores = [0.3 * float(query[head] @ key[group]) for key in keys]
        if soft_cap is not None:
            scores = [soft_cap * math.tanh(score / soft_cap) for score in scores]
        weights = torch.tensor([math.exp(score) for score in scores], dtype=torch.float64)
        heads.append(weights / weights.sum() @ values.view(-1, KV_HEADS, HEAD_DIM)[slots][:, group])
    return torch.stack(heads)


@given(rows(), st.sampled_from([None, 1, 2, 5]))
def test_visible_entries(row: Row, window: int | None) -> None:
    visible = reference.visible_entries(
        torch.tensor(row.positions),
        torch.tensor([signed(m) for m in row.masks]),
        row.committed + len(row.parents),
        row.committed,
        window,
    )
    seen = [entries.nonzero().flatten().tolist() for entries in visible]
    assert seen == [row.seen_by(query, window) for query in range(row.queries + len(row.parents))]


@given(rows(), st.sampled_from([None, 1, 2, 5]), st.data())
def test_what_a_query_sees_does_not_depend_on_the_other_queries(
    row: Row, window: int | None, data: st.DataObject
) -> None:
    """A draft that grows computes one level at a time."""
    count = row.queries + len(row.parents)
    chosen = sorted(data.draw(st.sets(st.integers(0, count - 1), min_size=1)))
    visible = reference.visible_entries(
        torch.tensor([row.positions[i] for i in chosen]),
        torch.tensor([signed(row.masks[i]) for i in chosen]),
        row.committed + len(row.parents),
        row.committed,
        window,
    )
    assert [entries.nonzero().flatten().tolist() for entries in visible] == [row.seen_by(i, window) for i in chosen]


def test_a_chain_of_64_uses_every_bit() -> None:
    row = Row(1, 1, tuple(range(-1, 63)))
    visible = reference.visible_entries(
        torch.tensor(row.positions), torch.tensor([signed(m) for m in row.masks]), 65, 1, None
    )
    assert torch.equal(visible, torch.ones(65, 65, dtype=torch.bool).tril())


def test_a_draft_without_masks_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(AssertionError, match="ancestor masks"):
        reference.visible_entries(torch.tensor([1, 2]), None, 3, 2, None)


def test_write_kv_touches_its_slots_alone() -> None:
    keys, values = torch.full((3, 4, 2, 8), math.nan), torch.full((3, 4, 2, 8), math.nan)
    new = torch.randn(3, 2, 8)
    reference.write_kv(new, 2 * new, keys, values, torch.tensor([11, 0, 6]))
    assert torch.equal(keys.view(12, 2, 8)[[11, 0, 6]], new)
    assert torch.equal(values.view(12, 2, 8)[[11, 0, 6]], 2 * new)
    assert int(keys.isnan().all(dim=(2, 3)).sum()) == 9


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rms_norm_equals_transformers(dtype: torch.dtype) -> None:
    """Bit for bit, in the dtypes that transformers serves."""
    torch.manual_seed(0)
    x, weight = (3 * torch.randn(5, 2, 24)).to(dtype), torch.randn(24).to(dtype)
    for norm, unit_offset in ((LlamaRMSNorm(24, 1e-5), False), (Gemma2RMSNorm(24, 1e-5), True)):
        norm.weight.data = weight
        assert torch.equal(reference.rms_norm(x, weight, 1e-5, unit_offset), norm(x))


def test_rms_norm_stays_in_float64() -> None:
    x, weight = torch.randn(4, 16, dtype=torch.float64), torch.randn(16, dtype=torch.float64)
    plain = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    assert torch.allclose(reference.rms_norm(x, weight, 1e-6), plain * weight, atol=1e-14)
    assert torch.allclose(reference.rms_norm(x, weight, 1e-6, True), plain * (1 + weight), atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("rotary_dim", [16, 6])
def test_rotary_equals_transformers(rotary_dim: int, dtype: torch.dtype) -> None:
    """Whole heads and the leading part of each."""
    torch.manual_seed(0)
    query = torch.randn(7, 3, 16).to(dtype)
    angles = torch.randn(7, rotary_dim // 2)
    cos, sin = angles.cos(), angles.sin()
    doubled = [torch.cat((half, half), dim=-1).to(dtype) for half in (cos, sin)]
    apply = apply_rotary_pos_emb if rotary_dim == 16 else apply_partial_rotary
    expected, _ = apply(query, query, *doubled)
    rotated = reference.rotary(query, cos, sin, torch.arange(7))
    assert rotated.dtype == dtype
    assert torch.allclose(rotated, expected, atol=1e-6 if dtype == torch.float32 else 2e-2, rtol=0)
    assert torch.equal(rotated[..., rotary_dim:], query[..., rotary_dim:])
    if dtype == torch.float64:
        assert torch.allclose(rotated, expected, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(("op", "name"), [("silu_and_mul", "silu"), ("gelu_tanh_and_mul", "gelu_pytorch_tanh")])
def test_activations_equal_transformers(op: str, name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    gate, up = torch.randn(5, 12).to(dtype), torch.randn(5, 12).to(dtype)
    out = getattr(reference, op)(torch.cat((gate, up), dim=-1))
    torch.testing.assert_close(out, ACT2FN[name](gate) * up)


def test_linear_and_embedding() -> None:
    x, weight, bias = torch.randn(3, 4), torch.randn(5, 4), torch.randn(5)
    assert torch.allclose(reference.linear(x, weight, bias), x @ weight.T + bias, atol=1e-6)
    assert torch.allclose(reference.linear(x, weight), x @ weight.T, atol=1e-6)
    assert torch.equal(reference.embedding(torch.tensor([2, 0]), weight), weight[[2, 0]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_largest_takes_the_first_maximum_and_any_nan(dtype: torch.dtype) -> None:
    logits = torch.tensor([[1.0, 3, 3, 2], [0, math.nan, 5, math.nan], [-1, -2, -1, -3]], dtype=dtype)
    chosen, values = reference.largest(logits)
    assert chosen.tolist() == [1, 1, 0]
    assert chosen.dtype == torch.int64
    assert torch.equal(values.nan_to_num(9), torch.tensor([3, 9, -1], dtype=dtype))


def test_the_reference_is_the_backend_of_every_device() -> None:
    assert choose_backend("cpu") is reference
