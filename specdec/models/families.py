"""From a config.json to a ModelConfig, by the row of the family table that its architecture names.

A fact that would change the computation and that the family does not have is refused by name, never ignored; so is a
layer kind whose state cannot be rolled back after a rejected draft. No torch here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from specdec.config import DTYPES, unknown_name
from specdec.models.config import LayerConfig, ModelConfig
from specdec.models.facts import Facts
from specdec.models.family_table import FAMILIES, OPTIONAL, Family
from specdec.models.layer_kinds import SLIDING, check_reversible, read_kinds, rotating_layers
from specdec.models.rope_config import extended_limit, read_gemma3_rope, read_rope

ACTIVATIONS: Mapping[str, Literal["silu", "gelu_tanh"]] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
}

_WRAPPERS = {"Gemma3ForConditionalGeneration": "Gemma3ForCausalLM"}
"""Checkpoints with more than a text model: the text part alone is read."""


def model_config(config: Mapping[str, Any], where: str | None = "config.json") -> ModelConfig:
    """What `config` (a parsed config.json; `where` names it in errors, unless None) says, as plain facts.

    Raises ValueError naming the architecture, layer kind or key that is not supported or not right.
    """
    try:
        return _model_config(config, where)
    except (TypeError, AttributeError, KeyError, IndexError, OverflowError) as error:
        # JSON of a shape that no config has: a number for a list, a list for a name.
        raise ValueError(f"{'' if where is None else f'{where}: '}a value is of the wrong kind: {error}") from error


def _model_config(config: Mapping[str, Any], where: str | None) -> ModelConfig:
    whole = Facts(config, {}, where)
    architecture = _architecture(whole)
    text = _text_part(whole) if architecture in _WRAPPERS else config
    architecture = _WRAPPERS.get(architecture, architecture)
    family = FAMILIES[architecture]
    facts = Facts(text, family.defaults, where)
    _refuse_unknown(facts, family, architecture)
    facts.integer("num_hidden_layers", high=10_000)
    heads = facts.integer("num_attention_heads")
    hidden_size = facts.integer("hidden_size")
    head_dim = facts.optional_integer("head_dim") or hidden_size // heads
    layers, limit = _layers(facts, family, head_dim)
    has_bias = facts.flag("attention_bias")
    return ModelConfig(
        architecture=architecture,
        vocab_size=facts.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=facts.integer("intermediate_size"),
        num_heads=heads,
        num_kv_heads=_kv_heads(facts, heads),
        head_dim=head_dim,
        max_position_embeddings=limit,
        layers=layers,
        rms_norm_eps=facts.number("rms_norm_eps"),
        norm_placement=family.norm_placement,
        norm_unit_offset=family.is_gemma,
        qk_norm=family.qk_norm,
        qkv_bias=has_bias or family.always_qkv_bias,
        output_bias=has_bias and not family.always_qkv_bias,
        mlp_bias=facts.flag("mlp_bias"),
        activation=_activation(facts, family),
        attention_scale=facts.number("query_pre_attn_scalar") ** -0.5 if family.is_gemma else None,
        attention_soft_cap=facts.optional_number("attn_logit_softcapping"),
        final_soft_cap=facts.optional_number("final_logit_softcapping"),
        embedding_scale=hidden_size**0.5 if family.is_gemma else None,
        tie_word_embeddings=facts.flag("tie_word_embeddings"),
        eos_token_ids=facts.token_ids("eos_token_id"),
        dtype=_dtype(facts),
    )


def _architecture(facts: Facts) -> str:
    """The name of the family's row: `architectures[0]`, or the one that `model_type` belongs to."""
    check_reversible(facts)
    known = {*FAMILIES, *_WRAPPERS}
    named = facts.get("architectures")
    if named:
        if not isinstance(named, list) or not isinstance(named[0], str):
            raise facts.wrong("architectures", "a list of names")
        if named[0] not in known:
            raise ValueError(facts.prefix + unknown_name("architecture", named[0], known))
        return named[0]
    by_type = {family.model_type: name for name, family in FAMILIES.items()}
    model_type = facts.text("model_type")
    if model_type not in by_type:
        raise ValueError(facts.prefix + unknown_name("model_type", model_type, by_type))
    return by_type[model_type]


def _text_part(facts: Facts) -> Mapping[str, Any]:
    """The text model's section, with what stands beside it as the fallback."""
    text = facts.mapping("text_config")
    check_reversible(Facts(text, {}, facts.where))
    outer = {key: facts.values[key] for key in _SHARED_WITH_TEXT if key in facts.values}
    return {**outer, **{key: value for key, value in text.items() if value is not None or key not in outer}}


_SHARED_WITH_TEXT = ("eos_token_id", "dtype", "torch_dtype", "tie_word_embeddings", "quantization_config")


def _refuse_unknown(facts: Facts, family: Family, architecture: str) -> None:
    for key in OPTIONAL:
        value = facts.values.get(key)
        if value is None or value is False or key in family.reads:
            continue
        if key == "partial_rotary_factor" and value == 1.0:
            continue
        shown = "" if isinstance(value, Mapping | list) else f" {value!r}"
        raise ValueError(f"{facts.prefix}{key}{shown} is not supported for {architecture}")


def _kv_heads(facts: Facts, heads: int) -> int:
    groups = facts.optional_integer("num_key_value_heads") or heads
    if heads % groups:
        raise facts.wrong("num_key_value_heads", f"a divisor of num_attention_heads ({heads})")
    return groups


def _activation(facts: Facts, family: Family) -> Literal["silu", "gelu_tanh"]:
    key = "hidden_activation" if family.is_gemma else "hidden_act"
    name = facts.text(key)
    if name is None or name not in ACTIVATIONS:
        raise ValueError(f"{facts.prefix}{key} {name!r} is not supported (supported: {', '.join(ACTIVATIONS)})")
    return ACTIVATIONS[name]


def _dtype(facts: Facts) -> str:
    """The dtype the checkpoint says it is in, under its new or its old name."""
    name = facts.get("dtype") or facts.get("torch_dtype") or "float32"
    short = name.removeprefix("torch.") if isinstance(name, str) else name
    if short not in DTYPES or short == "auto":
        raise ValueError(f"{facts.prefix}dtype {name!r} is not supported (supported: {', '.join(DTYPES[1:])})")
    return str(short)


def _layers(facts: Facts, family: Family, head_dim: int) -> tuple[tuple[LayerConfig, ...], int]:
    """Every layer's window, rotation and experts; and the number of positions the model reaches."""
    kinds = read_kinds(facts, family.layer_kinds(facts), own_layer_types=family.own_layer_types)
    if SLIDING in kinds and facts.get("sliding_window") is None:
        raise facts.wrong("sliding_window", "an integer, for there are sliding_attention layers")
    limit = facts.integer("max_position_embeddings")
    if family.model_type == "gemma3_text":
        by_kind = read_gemma3_rope(facts, head_dim)
        ropes = [by_kind[kind] for kind in kinds]
    else:
        rope = read_rope(facts, head_dim, partial="partial_rotary_factor" in family.reads)
        limit = extended_limit(limit, rope)
        ropes = [rope] * len(kinds)
    rotates = rotating_layers(facts) if "no_rope_layers" in family.reads else [True] * len(kinds)
    moes = family.moe(facts) if family.moe else [None] * len(kinds)
    for moe in moes:
        if moe is not None and moe.num_experts_per_token > moe.num_experts:
            raise facts.wrong("num_experts_per_tok", f"at most the number of experts ({moe.num_experts})")
    layers = tuple(
        LayerConfig(
            sliding_window=facts.integer("sliding_window") if kind == SLIDING else None,
            rope=ropes[i] if rotates[i] else None,
            moe=moes[i],
        )
        for i, kind in enumerate(kinds)
    )
    return layers, limit
