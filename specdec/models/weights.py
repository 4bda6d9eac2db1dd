"""Which tensors of a checkpoint make up each parameter of the decoder.

Names are those of Hugging Face checkpoints. Separate matrices of queries, keys and values, of gate and up, and of
experts are pieces of one parameter; a file may also hold them fused.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from specdec.models.config import ModelConfig, MoeConfig

_PREFIXES = ("model.", "language_model.model.", "model.language_model.")
"""Where the text model's tensors may stand; the latter two in checkpoints of models that also see."""

IGNORABLE = re.compile(
    r"rotary_emb\.(inv_freq|cos_cached|sin_cached)$|self_attn\.(bias|masked_bias)$"
    r"|^(model\.)?(vision_tower|vision_model|multi_modal_projector)\."
)
"""Tensors that are computed, left over from old files, or belong to the vision part."""

_NORMS = {
    "pre": {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"},
    "post": {"attention_post_norm": "post_attention_layernorm", "mlp_post_norm": "post_feedforward_layernorm"},
    "sandwich": {
        "attention_norm": "input_layernorm",
        "attention_post_norm": "post_attention_layernorm",
        "mlp_norm": "pre_feedforward_layernorm",
        "mlp_post_norm": "post_feedforward_layernorm",
    },
}


@dataclass(frozen=True)
class Piece:
    """A tensor of the checkpoint and the place it takes in a parameter (an index; () is all of it)."""

    name: str
    index: tuple[int | slice, ...] = ()


@dataclass(frozen=True)
class WeightPlan:
    """For each parameter of the decoder its pieces, and the tensors that nothing needs though nobody is wrong."""

    pieces: dict[str, tuple[Piece, ...]]
    ignored: frozenset[str]


def plan_weights(config: ModelConfig, names: Collection[str]) -> WeightPlan:
    """Lay out a checkpoint that holds the tensors `names`. Says nothing of what is missing: the loader compares."""
    names = frozenset(names)
    prefix = next((prefix for prefix in _PREFIXES if f"{prefix}embed_tokens.weight" in names), _PREFIXES[0])
    pieces: dict[str, tuple[Piece, ...]] = {
        "embed_tokens.weight": (Piece(f"{prefix}embed_tokens.weight"),),
        "norm.weight": (Piece(f"{prefix}norm.weight"),),
    }
    heads = ("lm_head.weight", "language_model.lm_head.weight")
    head = next((name for name in heads if name in names), heads[0])
    if not config.tie_word_embeddings:
        pieces["lm_head.weight"] = (Piece(head),)
    for i in range(config.num_layers):
        for parameter, parts in _layer(config, i, f"{prefix}layers.{i}.", names):
            pieces[f"layers.{i}.{parameter}"] = parts
    ignored = {name for name in names if IGNORABLE.search(name)}
    if config.tie_word_embeddings:
        ignored.add(head)
    return WeightPlan(pieces, frozenset(ignored))


Parts = tuple[str, tuple[Piece, ...]]
"""A parameter and its pieces."""


def _layer(config: ModelConfig, i: int, prefix: str, names: frozenset[str]) -> Iterator[Parts]:
    for parameter, norm in _NORMS[config.norm_placement].items():
        yield f"{parameter}.weight", (Piece(f"{prefix}{norm}.weight"),)
    yield from attention_parts(config, f"{prefix}self_attn.", names)
    moe = config.layers[i].moe
    if moe is not None:
        yield from _experts(moe, prefix, names)
    else:
        yield from mlp_parts(config, f"{prefix}mlp.", names)


def mlp_parts(config: ModelConfig, prefix: str, names: frozenset[str]) -> Iterator[Parts]:
    """The parameters of a layer's MLP, whose tensors stand under `prefix`."""
    sizes = {"gate_proj": config.intermediate_size, "up_proj": config.intermediate_size}
    for kind in ("weight", "bias") if config.mlp_bias else ("weight",):
        yield f"mlp.gate_up_proj.{kind}", _stacked(prefix, "gate_up_proj", sizes, kind, names)
        yield f"mlp.down_proj.{kind}", (Piece(f"{prefix}down_proj.{kind}"),)


def attention_parts(config: ModelConfig, prefix: str, names: frozenset[str]) -> Iterator[Parts]:
    """The parameters of a layer's attention, whose tensors stand under `prefix`."""
    kv_size = config.num_kv_heads * config.head_dim
    sizes = {"q_proj": config.num_heads * config.head_dim, "k_proj": kv_size, "v_proj": kv_size}
    for kind in ("weight", "bias") if config.qkv_bias else ("weight",):
        yield f"attention.qkv_proj.{kind}", _stacked(prefix, "qkv_proj", sizes, kind, names)
    for kind in ("weight", "bias") if config.output_bias else ("weight",):
        yield f"attention.o_proj.{kind}", (Piece(f"{prefix}o_proj.{kind}"),)
    if config.qk_norm != "none":
        for norm in ("q_norm", "k_norm"):
            yield f"attention.{norm}.weight", (Piece(f"{prefix}{norm}.weight"),)


def _stacked(prefix: str, fused: str, sizes: dict[str, int], kind: str, names: frozenset[str]) -> tuple[Piece, ...]:
    """One fused tensor if the file has it, else the parts, stacked in order along the output dimension."""
    if f"{prefix}{fused}.{kind}" in names:
        return (Piece(f"{prefix}{fused}.{kind}"),)
    pieces, start = [], 0
    for part, size in sizes.items():
        pieces.append(Piece(f"{prefix}{part}.{kind}", (slice(start, start + size),)))
        start += size
    return tuple(pieces)


def _experts(moe: MoeConfig, prefix: str, names: frozenset[str]) -> Iterator[Parts]:
    """Experts one by one as published (mixtral: w1 gate, w3 up, w2 down), or all in one tensor as transformers 5 holds
    them in memory."""
    is_mixtral = f"{prefix}block_sparse_moe.gate.weight" in names
    block = f"{prefix}block_sparse_moe." if is_mixtral else f"{prefix}mlp."
    gate, up, down = ("w1", "w3", "w2") if is_mixtral else ("gate_proj", "up_proj", "down_proj")
    yield "mlp.router.weight", (Piece(f"{block}gate.weight"),)
    if f"{block}experts.gate_up_proj" in names:
        yield "mlp.experts.gate_up_proj", (Piece(f"{block}experts.gate_up_proj"),)
        yield "mlp.experts.down_proj", (Piece(f"{block}experts.down_proj"),)
        return
    size, experts = moe.intermediate_size, range(moe.num_experts)
    halves = ((gate, slice(0, size)), (up, slice(size, 2 * size)))
    yield (
        "mlp.experts.gate_up_proj",
        tuple(Piece(f"{block}experts.{e}.{part}.weight", (e, rows)) for e in experts for part, rows in halves),
    )
    yield "mlp.experts.down_proj", tuple(Piece(f"{block}experts.{e}.{down}.weight", (e,)) for e in experts)
