"""Every op in plain torch: the definition, the test oracle, and the backend that works everywhere.

Written for being right on sight. Scores and norms are taken in float32, or float64 where the input is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from specdec.kernels import noise
from specdec.kernels.base import Program, StepInputs
from specdec.kernels.filters import filter_rows
from specdec.kernels.noise import NoiseKeys
from specdec.kernels.weights import GROUP, PackedWeight, QuantizedWeight, Weight

own_threads = False

QUERY_CHUNK = 256
"""Queries of one row that attend at once: bounds the memory of their scores."""


def num_threads() -> int:
    return torch.get_num_threads()


def state_dtype(dtype: torch.dtype) -> torch.dtype:
    return dtype


def cache_dtype(dtype: torch.dtype) -> torch.dtype:
    return dtype


def pack(weight: torch.Tensor | QuantizedWeight) -> Weight:
    return weight


def record(function: Callable[[], Sequence[torch.Tensor]], inputs: StepInputs) -> Program | None:
    return None


def linear(x: torch.Tensor, weight: Weight, bias: torch.Tensor | None = None) -> torch.Tensor:
    assert not isinstance(weight, PackedWeight), "packed by another backend"
    if isinstance(weight, QuantizedWeight):
        return F.linear(round_states(x, weight.group), weight.rows(slice(None)), bias)
    return F.linear(x, weight, bias)


def round_states(x: torch.Tensor, group: int = GROUP) -> torch.Tensor:
    """States [T, in] as quantised weights see them: each group of a row rounded to 8 bits."""
    padded = F.pad(x, (0, -x.shape[1] % group))
    padded = padded.view(len(x), padded.shape[1] // group, group)
    largest = padded.abs().amax(dim=-1, keepdim=True)
    rounded = (padded * _inverse_scale(largest)).round() * (largest / 127.0)
    return rounded.flatten(1)[:, : x.shape[1]]


def _inverse_scale(largest: torch.Tensor) -> torch.Tensor:
    """What turns numbers of which the largest magnitude is `largest` into codes; 0 where they are too small for any."""
    inverse = torch.full_like(largest, 127.0) / largest  # a number over a tensor would be rounded twice
    return torch.where(inverse.isfinite(), inverse, torch.zeros_like(inverse))


def embedding(token_ids: torch.Tensor, weight: Weight) -> torch.Tensor:
    assert not isinstance(weight, PackedWeight), "packed by another backend"
    if isinstance(weight, QuantizedWeight):
        return weight.rows(token_ids)
    return F.embedding(token_ids, weight)


def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


def concat(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.cat((x, y), dim=-1)


def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x * factor


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x if x.dtype == torch.float64 else x.float()


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, unit_offset: bool = False) -> torch.Tensor:
    wide = _wide(x)
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    if unit_offset:
        return (normed * (1.0 + weight.to(wide.dtype))).to(x.dtype)
    return weight * normed.to(x.dtype)


def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    half = cos.shape[-1]
    cos, sin = cos[positions].unsqueeze(1).to(x.dtype), sin[positions].unsqueeze(1).to(x.dtype)  # [T, 1, R / 2]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up


def gelu_tanh_and_mul(x: torch.Tensor) -> torch.Tensor:
    gate, up = x.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh") * up


def write_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    for states, cache in ((key, key_cache), (value, value_cache)):
        cache.view(-1, *cache.shape[2:])[slot_mapping] = to_entries(states, cache.dtype)


def to_entries(states: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Keys or values [..., D] as a cache of `dtype` holds them; in int8, codes and then the scale's four bytes."""
    if dtype != torch.int8:
        return states.to(dtype)
    wide = states.float()
    largest = wide.abs().amax(dim=-1, keepdim=True)
    codes = (wide * _inverse_scale(largest)).round().nan_to_num(0, 0, 0).to(torch.int8)
    # What is not a number stays so, through the scale.
    scales = torch.where(largest.isfinite(), largest / 127.0, torch.full_like(largest, float("nan")))
    return torch.cat((codes, scales.view(torch.int8)), dim=-1)


def from_entries(entries: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The keys or values [..., D] that cache entries stand for."""
    if entries.dtype != torch.int8:
        return entries.to(dtype)
    scales = entries[..., -4:].clone(memory_format=torch.contiguous_format).view(torch.float32)
    return (entries[..., :-4].float() * scales).to(dtype)


def move_kv(caches: Sequence[torch.Tensor], slots_from: torch.Tensor, slots_to: torch.Tensor) -> None:
    for cache in caches:
        entries = cache.view(-1, *cache.shape[2:])
        entries[slots_to] = entries[slots_from]


def paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    *,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    committed_lens: torch.Tensor,
    block_tables: torch.Tensor,
    positions: torch.Tensor,
    ancestor_masks: torch.Tensor | None,
    scale: float,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    first_entry: int = 0,
) -> torch.Tensor:
    out = torch.empty_like(query)
    starts, lengths, committed = query_start_loc.tolist(), seq_lens.tolist(), committed_lens.tolist()
    block_size = key_cache.shape[1]
    for b, length in enumerate(lengths):
        blocks = block_tables[b, : -(-length // block_size)].long()
        # Entries that nobody sees are cut off: masked, a NaN in them would still reach everyone as 0 * NaN.
        keys = from_entries(key_cache[blocks].flatten(0, 1)[first_entry:length], query.dtype)
        values = from_entries(value_cache[blocks].flatten(0, 1)[first_entry:length], query.dtype)
        own = slice(starts[b], starts[b + 1])
        masks = None if ancestor_masks is None else ancestor_masks[own]
        visible = visible_entries(positions[own], masks, length, committed[b], sliding_window)[:, first_entry:]
        # A masked score still multiplies its value by 0: a draft node that is not a number must not reach the others.
        drafted = slice(max(committed[b] - first_entry, 0), None)
        sound = bool(keys[drafted].isfinite().all() and values[drafted].isfinite().all())
        chunk = QUERY_CHUNK if sound else 1
        for first in range(0, own.stop - own.start, chunk):
            seen = visible[first : first + chunk]
            rows = slice(own.start + first, own.start + first + len(seen))
            k, v = (keys, values) if sound else (keys[seen[0]], values[seen[0]])
            out[rows] = _attend(query[rows], k, v, seen if sound else seen[:, seen[0]], scale, soft_cap)
    return out


def visible_entries(
    positions: torch.Tensor,
    ancestor_masks: torch.Tensor | None,
    length: int,
    committed: int,
    sliding_window: int | None,
) -> torch.Tensor:
    """Which of a row's `length` entries each of its queries sees: bool [queries, length]."""
    entries = torch.arange(length, device=positions.device)
    visible = (entries < committed) & (entries <= positions[:, None])
    key_positions = entries.expand(len(positions), -1)
    num_draft = length - committed
    if num_draft:
        assert ancestor_masks is not None, "a row with a draft needs ancestor masks"
        bits = (ancestor_masks[:, None] >> torch.arange(num_draft, device=positions.device)) & 1
        visible[:, committed:] = bits.bool()
        if sliding_window is not None:
            # A node's ancestors come before it: the n-th of them is n tokens behind the last committed one.
            depths = bits.cumsum(dim=1) - 1 + committed
            key_positions = torch.cat((key_positions[:, :committed], depths), dim=1)
    if sliding_window is not None:
        visible &= key_positions > positions[:, None] - sliding_window
    return visible


def _attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    visible: torch.Tensor,
    scale: float,
    soft_cap: float | None,
) -> torch.Tensor:
    """Softmax attention of one row: query [q, H, D], keys, values [length, G, D], visible [q, length] -> [q, H, D]."""
    q, k, v = query.transpose(0, 1), keys.transpose(0, 1), values.transpose(0, 1)  # [H or G, q or length, D]
    if soft_cap is None:
        attended = F.scaled_dot_product_attention(
            q[None], k[None], v[None], attn_mask=visible, scale=scale, enable_gqa=True
        )
        return attended[0].transpose(0, 1)
    repeats = q.shape[0] // k.shape[0]
    k, v = k.repeat_interleave(repeats, dim=0), v.repeat_interleave(repeats, dim=0)
    scores = _wide(q @ k.transpose(1, 2)) * scale
    scores = (soft_cap * torch.tanh(scores / soft_cap)).masked_fill(~visible, float("-inf"))
    return (torch.softmax(scores, dim=-1).to(v.dtype) @ v).transpose(0, 1)


def read(memory: torch.Tensor) -> None:
    memory.amax()


def largest(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = _argmax(logits)
    return tokens, logits.gather(-1, tokens[:, None])[:, 0]


def _argmax(logits: torch.Tensor) -> torch.Tensor:
    if logits.device.type == "cpu" and logits.dtype in (torch.float32, torch.float64):
        # numpy's argmax is vectorised (0.9 ms against torch's 3.3 ms for 160 x 49,152) and has the same NaN rule.
        return torch.from_numpy(logits.detach().numpy().argmax(axis=-1))
    return logits.argmax(dim=-1)


def logsumexp(logits: torch.Tensor) -> torch.Tensor:
    return logits.double().logsumexp(dim=-1)


def filter_logits(
    logits: torch.Tensor,
    divisors: Sequence[float],
    top_k: Sequence[int],
    top_p: Sequence[float],
    min_p: Sequence[float],
) -> torch.Tensor:
    out = logits / torch.tensor(divisors, dtype=logits.dtype, device=logits.device)[:, None]
    filter_rows(out, top_k, top_p, min_p)
    return out


def gumbel_argmax(logits: torch.Tensor, rows: Sequence[int], keys: NoiseKeys) -> tuple[torch.Tensor, torch.Tensor]:
    return noise.gumbel_argmax(logits[list(rows)], keys)
