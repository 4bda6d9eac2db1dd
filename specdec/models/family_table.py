"""The table of model families: what sets each apart, and what transformers assumes where its config.json is silent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from specdec.models.config import MoeConfig, NormPlacement
from specdec.models.facts import Facts
from specdec.models.layer_kinds import (
    alternating,
    every_layer,
    every_layer_if_enabled,
    from_layer,
    full_only,
    nope_layers,
)


@dataclass(frozen=True)
class Family:
    """One row of the table."""

    model_type: str
    defaults: Mapping[str, Any]
    """What transformers takes for a key that config.json leaves out."""
    layer_kinds: Callable[[Facts], list[str]]
    """The attention of each layer where `layer_types` does not say it."""
    reads: frozenset[str] = frozenset()
    """The keys of `OPTIONAL` that the family heeds."""
    norm_placement: NormPlacement = "pre"
    qk_norm: Literal["none", "head", "full"] = "none"
    always_qkv_bias: bool = False
    is_gemma: bool = False
    """Norm weights stored as w - 1, embeddings scaled by sqrt(hidden_size), a query scale and soft caps of its own."""
    moe: Callable[[Facts], list[MoeConfig | None]] | None = None
    own_layer_types: bool = True
    """Whether `layer_types` decides; else it may only repeat what the other keys say."""


OPTIONAL = (
    "attention_bias",
    "mlp_bias",
    "sliding_window",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "query_pre_attn_scalar",
    "use_bidirectional_attention",
    "partial_rotary_factor",
    "no_rope_layers",
    "num_local_experts",
    "num_experts",
    "qk_layernorm",
    "use_qk_norm",
    "clip_qkv",
    "embedding_multiplier",
    "residual_multiplier",
    "attention_multiplier",
    "logits_scaling",
    "logit_scale",
    "quantization_config",
    "compression_config",
)
"""Keys that change the computation in some model: refused where they are set and the family does not read them."""


def _mixtral_moe(facts: Facts) -> list[MoeConfig | None]:
    moe = MoeConfig(
        facts.integer("num_local_experts"), facts.integer("num_experts_per_tok"), facts.integer("intermediate_size")
    )
    return [moe] * facts.integer("num_hidden_layers")


def _qwen3_moe(facts: Facts) -> list[MoeConfig | None]:
    """Every `decoder_sparse_step`-th layer is sparse, except those of `mlp_only_layers`."""
    key = "num_experts" if "num_experts" in facts.values else "num_local_experts"
    moe = MoeConfig(
        facts.integer(key),
        facts.integer("num_experts_per_tok"),
        facts.integer("moe_intermediate_size"),
        facts.flag("norm_topk_prob"),
    )
    step, dense = facts.integer("decoder_sparse_step"), facts.integers("mlp_only_layers") or []
    layers = range(facts.integer("num_hidden_layers"))
    return [moe if i not in dense and (i + 1) % step == 0 else None for i in layers]


_COMMON: Mapping[str, Any] = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000.0}
_QWEN = {
    **_COMMON,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
_GEMMA = {
    **_COMMON,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
    "eos_token_id": 1,
}
_GEMMA2 = {
    **_GEMMA,
    "vocab_size": 256000,
    "max_position_embeddings": 8192,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}
_GEMMA3 = {
    **_GEMMA,
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
    "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0,
    "sliding_window_pattern": 6,
}
_SMOLLM3 = {
    **_COMMON,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32768,
    "rope_theta": 2000000.0,
    "no_rope_layer_interval": 4,
    "tie_word_embeddings": True,
    "eos_token_id": 128001,
}
_MISTRAL = {**_COMMON, "num_key_value_heads": 8, "max_position_embeddings": 131072, "eos_token_id": 2}
_MIXTRAL = {
    **_MISTRAL,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1000000.0,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
_QWEN3_MOE = {
    **_QWEN,
    "num_key_value_heads": 4,
    "num_local_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "decoder_sparse_step": 1,
}
_PHI3 = {
    **_COMMON,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 4096,
    "original_max_position_embeddings": 4096,
    "rope_type_aliases": {"su": "longrope", "yarn": "longrope"},
    "eos_token_id": 32000,
}
_GEMMA_READS = frozenset(
    {"attention_bias", "sliding_window", "attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar"}
)
_BIAS = frozenset({"attention_bias"})
_WINDOW = frozenset({"sliding_window"})

FAMILIES: Mapping[str, Family] = {
    "LlamaForCausalLM": Family(
        "llama",
        {**_COMMON, "max_position_embeddings": 2048, "eos_token_id": 2},
        full_only,
        reads=frozenset({"attention_bias", "mlp_bias"}),
        own_layer_types=False,
    ),
    "MistralForCausalLM": Family(
        "mistral", {**_MISTRAL, "sliding_window": 4096}, every_layer, reads=_WINDOW, own_layer_types=False
    ),
    "Qwen2ForCausalLM": Family("qwen2", _QWEN, from_layer, reads=_WINDOW | _BIAS, always_qkv_bias=True),
    "Qwen3ForCausalLM": Family("qwen3", {**_QWEN, "head_dim": 128}, from_layer, reads=_WINDOW | _BIAS, qk_norm="head"),
    "Gemma2ForCausalLM": Family(
        "gemma2",
        {**_GEMMA2, "sliding_window_pattern": 2},
        alternating,
        reads=_GEMMA_READS,
        norm_placement="sandwich",
        is_gemma=True,
    ),
    "Gemma3ForCausalLM": Family(
        "gemma3_text",
        _GEMMA3,
        alternating,
        reads=_GEMMA_READS - {"attn_logit_softcapping"},
        norm_placement="sandwich",
        qk_norm="head",
        is_gemma=True,
    ),
    "Phi3ForCausalLM": Family(
        "phi3", _PHI3, every_layer, reads=_WINDOW | {"partial_rotary_factor"}, own_layer_types=False
    ),
    "Olmo2ForCausalLM": Family(
        "olmo2",
        {**_COMMON, "rms_norm_eps": 1e-5, "max_position_embeddings": 2048, "eos_token_id": 50279},
        full_only,
        reads=_BIAS,
        norm_placement="post",
        qk_norm="full",
        own_layer_types=False,
    ),
    "SmolLM3ForCausalLM": Family(
        "smollm3",
        _SMOLLM3,
        nope_layers,
        reads=frozenset({"attention_bias", "mlp_bias", "sliding_window", "no_rope_layers"}),
    ),
    "MixtralForCausalLM": Family(
        "mixtral",
        _MIXTRAL,
        every_layer,
        reads=_WINDOW | {"num_local_experts", "num_experts"},
        moe=_mixtral_moe,
        own_layer_types=False,
    ),
    "Qwen3MoeForCausalLM": Family(
        "qwen3_moe",
        _QWEN3_MOE,
        every_layer_if_enabled,
        reads=_WINDOW | _BIAS | {"num_local_experts", "num_experts"},
        qk_norm="head",
        moe=_qwen3_moe,
        own_layer_types=False,
    ),
}
