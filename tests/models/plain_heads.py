"""Draft heads in the plainest torch: whole sequences, no cache, one matrix after the other, the authors' tensor names.

Written from the formats and papers alone, it shares nothing with the package. Features of position i stand beside the
token at i + 1; rows of the results are those of the tokens.
"""

from __future__ import annotations

import torch

from tests.models.head_writing import EPS, HEAD_DIM, HEADS, KV_HEADS, THETA, Tensors


def eagle_outputs(
    t: Tensors, embedding: torch.Tensor, tokens: list[int], features: torch.Tensor, first: int = 1
) -> torch.Tensor:
    """EAGLE-1/2: the raw outputs [n, H] of `tokens` [n] beside `features` [n, H]; the first has position `first`."""
    embedded = embedding[torch.tensor(tokens)]
    fused = _linear(t, "fc", torch.cat([embedded, features], dim=1))
    return _rest(t, "layers.0.", fused, fused, first)


def eagle3_combined(t: Tensors, features: torch.Tensor) -> torch.Tensor:
    """EAGLE-3: auxiliary states side by side [n, 3 * Ht] -> [n, H]."""
    return _linear(t, "fc", features)


def eagle3_outputs(
    t: Tensors,
    embedding: torch.Tensor,
    tokens: list[int],
    combined: torch.Tensor,
    first: int = 1,
    norm_before_residual: bool = False,
) -> torch.Tensor:
    """EAGLE-3: the raw outputs [n, H] of `tokens` [n] beside `combined` features [n, H]."""
    embedded = _norm(t["midlayer.input_layernorm.weight"], embedding[torch.tensor(tokens)])
    normed = _norm(t["midlayer.hidden_norm.weight"], combined)
    residual = normed if norm_before_residual else combined
    return _rest(t, "midlayer.", torch.cat([embedded, normed], dim=1), residual, first)


def eagle3_logits(t: Tensors, outputs: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Over the target's vocabulary, -inf where the head has no logit: [n, V]."""
    logits = _norm(t["norm.weight"], outputs) @ t["lm_head.weight"].T
    if "d2t" not in t:
        return logits
    whole = torch.full((len(outputs), vocab_size), float("-inf"), dtype=logits.dtype)
    for draft_id, offset in enumerate(t["d2t"].tolist()):
        whole[:, draft_id + offset] = logits[:, draft_id]
    return whole


def medusa_logits(t: Tensors, hidden: torch.Tensor, num_heads: int, num_layers: int) -> torch.Tensor:
    """[num_heads, n, V] of states [n, H]."""
    heads = []
    for i in range(num_heads):
        y = hidden
        for layer in range(num_layers):
            inner = y @ t[f"{i}.{layer}.linear.weight"].T + t[f"{i}.{layer}.linear.bias"]
            y = y + inner * torch.sigmoid(inner)
        heads.append(y @ t[f"{i}.{num_layers}.weight"].T)
    return torch.stack(heads)


def _linear(t: Tensors, name: str, x: torch.Tensor) -> torch.Tensor:
    out = x @ t[f"{name}.weight"].T
    return out + t[f"{name}.bias"] if f"{name}.bias" in t else out


def _norm(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return weight * x / (x.pow(2).mean(dim=-1, keepdim=True) + EPS).sqrt()


def _rest(t: Tensors, layer: str, inputs: torch.Tensor, residual: torch.Tensor, first: int) -> torch.Tensor:
    """Attention and MLP on their residual branches."""
    hidden = residual + _attention(t, f"{layer}self_attn.", inputs, first)
    normed = _norm(t[f"{layer}post_attention_layernorm.weight"], hidden)
    gate, up = _linear(t, f"{layer}mlp.gate_proj", normed), _linear(t, f"{layer}mlp.up_proj", normed)
    return hidden + _linear(t, f"{layer}mlp.down_proj", gate * torch.sigmoid(gate) * up)


def _attention(t: Tensors, prefix: str, x: torch.Tensor, first: int) -> torch.Tensor:
    """Causal attention over the whole sequence, head by head."""
    n = len(x)
    q, k, v = (_linear(t, f"{prefix}{name}_proj", x) for name in "qkv")
    outputs = []
    for head in range(HEADS):
        group = head // (HEADS // KV_HEADS)
        mine = slice(head * HEAD_DIM, (head + 1) * HEAD_DIM)
        shared = slice(group * HEAD_DIM, (group + 1) * HEAD_DIM)
        query = _rotated(_head_norm(t, f"{prefix}q_norm", q[:, mine]), first)
        key = _rotated(_head_norm(t, f"{prefix}k_norm", k[:, shared]), first)
        scores = query @ key.T / HEAD_DIM**0.5
        scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), float("-inf"))
        outputs.append(torch.softmax(scores, dim=1) @ v[:, shared])
    return _linear(t, f"{prefix}o_proj", torch.cat(outputs, dim=1))


def _head_norm(t: Tensors, name: str, x: torch.Tensor) -> torch.Tensor:
    return _norm(t[f"{name}.weight"], x) if f"{name}.weight" in t else x


def _rotated(x: torch.Tensor, first: int) -> torch.Tensor:
    """Rotary embedding of rows at positions first, first + 1, ...; angles in float32, as transformers takes them."""
    half = HEAD_DIM // 2
    frequencies = 1.0 / THETA ** (torch.arange(0, HEAD_DIM, 2, dtype=torch.float32) / HEAD_DIM)
    angles = torch.arange(first, first + len(x), dtype=torch.float32)[:, None] * frequencies
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x[:, :half], x[:, half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=1)
