"""Every op in plain torch: the definition, the test oracle, and the backend that works everywhere.

Written for being right on sight. Scores and norms are taken in float32, or float64 where the input is.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

QUERY_CHUNK = 256
"""Queries of one row that attend at once: bounds the memory of their scores."""


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    return F.linear(x, weight, bias)


def embedding(token_ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.embedding(token_ids, weight)


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x if x.dtype == torch.float64 else x.float()


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, unit_offset: bool = False) -> torch.Tensor:
    wide = _wide(x)
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    if unit_offset:
        return (normed * (1.0 + weight.to(wide.dtype))).to(x.dtype)
    return weight * normed.to(x.dtype)


def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = cos.shape[-1]
    cos, sin = cos.unsqueeze(1).to(x.dtype), sin.unsqueeze(1).to(x.dtype)  # [T, 1, R / 2]
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
    key_cache.view(-1, *key_cache.shape[2:])[slot_mapping] = key.to(key_cache.dtype)
    value_cache.view(-1, *value_cache.shape[2:])[slot_mapping] = value.to(value_cache.dtype)


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
        keys = key_cache[blocks].flatten(0, 1)[first_entry:length].to(query.dtype)  # [length - first_entry, G, D]
        values = value_cache[blocks].flatten(0, 1)[first_entry:length].to(query.dtype)
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


def argmax(logits: torch.Tensor) -> torch.Tensor:
    if logits.device.type == "cpu" and logits.dtype in (torch.float32, torch.float64):
        # numpy's argmax is vectorised (0.9 ms against torch's 3.3 ms for 160 x 49,152) and has the same NaN rule.
        return torch.from_numpy(logits.detach().numpy().argmax(axis=-1))
    return logits.argmax(dim=-1)
