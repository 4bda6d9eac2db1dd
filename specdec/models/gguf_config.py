"""The config.json of a GGUF file: llama.cpp's metadata in Hugging Face's words, and its architectures as a table.

Where the file leaves a fact out, llama.cpp's own default counts. What a config means is for `families.py`. No tensor
but the rope factors is read here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from specdec.config import unknown_name
from specdec.models.facts import Facts
from specdec.models.gguf_file import GGUFFile, TensorInfo

ROPE_FACTORS = "rope_freqs.weight"
"""llama3's frequency scaling, which the converter works out: a divisor for each rotary frequency."""

_ATTENTION_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
_QK_NORM_NAMES = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_MLP_NAMES = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
_LLAMA_NAMES = {**_ATTENTION_NAMES, "ffn_norm": "post_attention_layernorm", **_MLP_NAMES}


@dataclass(frozen=True)
class Architecture:
    """What one of llama.cpp's architectures stands for in Hugging Face's terms."""

    class_name: str
    """Hugging Face's, as in a config.json's `architectures`."""
    model_type: str
    names: Mapping[str, str]
    """Of each tensor in a layer; a stack of experts has {} where the expert's number goes."""
    interleaved: bool = False
    """Query and key rows alternate between a head's two rotary halves."""
    norms_hold_one: bool = False
    """Norm weights are stored with their 1 added."""


_MISTRAL = Architecture("MistralForCausalLM", "mistral", _LLAMA_NAMES, interleaved=True)
_MIXTRAL = Architecture(
    "MixtralForCausalLM",
    "mixtral",
    {
        **_ATTENTION_NAMES,
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate_inp": "block_sparse_moe.gate",
        "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
        "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
        "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
    },
    interleaved=True,
)

_GEMMA3_NAMES = {
    **_ATTENTION_NAMES,
    **_QK_NORM_NAMES,
    **_MLP_NAMES,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}

ARCHITECTURES = {
    "llama": Architecture("LlamaForCausalLM", "llama", _LLAMA_NAMES, interleaved=True),
    "qwen2": Architecture("Qwen2ForCausalLM", "qwen2", _LLAMA_NAMES),
    "qwen3": Architecture("Qwen3ForCausalLM", "qwen3", {**_LLAMA_NAMES, **_QK_NORM_NAMES}),
    "gemma3": Architecture("Gemma3ForCausalLM", "gemma3_text", _GEMMA3_NAMES, norms_hold_one=True),
}
"""By `general.architecture`. A llama with experts is a mixtral, one with a sliding window a mistral."""

_UNSUPPORTED = (
    "attention.clamp_kqv",
    "attention.scale",
    "attn_logit_softcapping",
    "embedding_scale",
    "logit_scale",
    "residual_scale",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_log_multiplier",
)
"""Keys that would change the arithmetic of these architectures and that their families have no word for."""


def read_architecture(metadata: Mapping[str, Any]) -> tuple[Architecture, Facts]:
    """The architecture of a file and what it says under that name."""
    name = metadata.get("general.architecture")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise ValueError(unknown_name("GGUF architecture", name, ARCHITECTURES))
    if (parts := metadata.get("split.count", 0)) not in (0, 1):
        raise ValueError(f"one of {parts} parts of a split model; join them with llama.cpp's gguf-split --merge")
    prefix = f"{name}."
    own = {key.removeprefix(prefix): _plain(value) for key, value in metadata.items() if key.startswith(prefix)}
    facts = Facts(own, {"rope.freq_base": 10000.0, "rope.freq_base_swa": 10000.0}, f"metadata of {name}")
    for key in _UNSUPPORTED:
        if facts.get(key):
            raise ValueError(f"{facts.prefix}{key} ({facts.get(key)!r}) is not supported")
    if name == "llama" and facts.get("expert_count"):
        return _MIXTRAL, facts
    if name == "llama" and facts.get("attention.sliding_window"):
        return _MISTRAL, facts
    return ARCHITECTURES[name], facts


def _plain(value: Any) -> Any:
    """A value as a config.json would have it: one number for equal layers, and 1e-05 for float32's nearest to it."""
    if isinstance(value, list) and value and value == value[:1] * len(value):
        value = value[0]
    if isinstance(value, float) and math.isfinite(value) and abs(value) < 1e38 and value == np.float32(value):
        return float(str(np.float32(value)))
    return value


def hugging_face_config(architecture: Architecture, facts: Facts, file: GGUFFile) -> dict[str, Any]:
    """The config.json that a converter to GGUF would have seen, as far as the family reads it."""
    tensors = file.tensors
    if "token_embd.weight" not in tensors:
        raise ValueError("the tensor token_embd.weight is missing")
    layers = facts.integer("block_count")
    if layers > len(tensors):
        raise ValueError(f"{facts.prefix}block_count is {layers}, but the file has {len(tensors)} tensors in all")
    heads, hidden_size = facts.integer("attention.head_count"), facts.integer("embedding_length")
    config = {
        "architectures": [architecture.class_name],
        "model_type": architecture.model_type,
        "vocab_size": tensors["token_embd.weight"].shape[0],
        "hidden_size": hidden_size,
        "intermediate_size": facts.integer("feed_forward_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": facts.optional_integer("attention.head_count_kv") or heads,
        "head_dim": _head_dim(facts, hidden_size // heads),
        "max_position_embeddings": facts.integer("context_length"),
        "rms_norm_eps": facts.number("attention.layer_norm_rms_epsilon"),
        "rope_theta": facts.number("rope.freq_base"),
        "tie_word_embeddings": "output.weight" not in tensors,
        "eos_token_id": _eos_token_ids(file.metadata),
        "torch_dtype": "float32",
    }
    if scaling := _rope_scaling(facts, file):
        config["rope_scaling"] = scaling
    return config | _FAMILY_FACTS[architecture.model_type](facts, config, tensors)


def _head_dim(facts: Facts, default: int) -> int:
    head_dim = facts.optional_integer("attention.key_length") or default
    for key in ("attention.value_length", "rope.dimension_count"):
        if (facts.optional_integer(key) or head_dim) != head_dim:
            raise ValueError(f"{facts.prefix}{key} ({facts.get(key)}) must equal the head size ({head_dim})")
    return head_dim


def _eos_token_ids(metadata: Mapping[str, Any]) -> list[int]:
    """The ends of the text, of a turn and of a message, as far as the file names them."""
    keys = [f"tokenizer.ggml.{end}_token_id" for end in ("eos", "eot", "eom")]
    facts = Facts(metadata, {}, "metadata")
    ids = [facts.optional_integer(key, low=0) for key in keys]
    return list(dict.fromkeys(token for token in ids if token is not None))


def _rope_scaling(facts: Facts, file: GGUFFile) -> dict[str, Any] | None:
    """`rope_scaling` in Hugging Face's words; llama.cpp takes a factor without a type for a linear one."""
    factor = facts.optional_number("rope.scaling.factor") or facts.optional_number("rope.scale_linear")
    kind = facts.get("rope.scaling.type") or ("linear" if factor else "none")
    if ROPE_FACTORS in file.tensors:
        if kind != "none":
            raise ValueError(f"{facts.prefix}rope.scaling.type {kind!r} together with {ROPE_FACTORS} is not supported")
        return _divided_frequencies(file.read(ROPE_FACTORS).flatten().tolist(), facts.integer("context_length"))
    if kind == "none":
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": facts.number("rope.scaling.factor") if factor is None else factor}
    if kind != "yarn":
        raise ValueError(f"{facts.prefix}rope.scaling.type {kind!r} is not supported (supported: none, linear, yarn)")
    return _yarn(facts)


def _divided_frequencies(divisors: list[float], limit: int) -> dict[str, Any]:
    """longrope is the scaling of Hugging Face's that divides each frequency by a number of its own."""
    if not all(math.isfinite(divisor) and divisor > 0 for divisor in divisors):
        raise ValueError(f"{ROPE_FACTORS} must hold finite numbers above 0")
    return {
        "rope_type": "longrope",
        "short_factor": divisors,
        "long_factor": divisors,
        "factor": 1.0,
        "attention_factor": 1.0,
        "original_max_position_embeddings": limit,
    }


def _yarn(facts: Facts) -> dict[str, Any]:
    factor = facts.number("rope.scaling.factor")
    original = facts.optional_integer("rope.scaling.original_context_length") or facts.integer("context_length")
    scaling = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
    for ours, key in (("beta_fast", "yarn_beta_fast"), ("beta_slow", "yarn_beta_slow")):
        if (beta := facts.optional_number(f"rope.scaling.{key}")) is not None:
            scaling[ours] = beta
    if facts.get("rope.scaling.yarn_ext_factor") not in (None, 1.0):
        raise facts.wrong("rope.scaling.yarn_ext_factor", "1")
    if (attention := facts.optional_number("rope.scaling.attn_factor")) is not None:
        # llama.cpp multiplies it with yarn's usual factor; Hugging Face's replaces that.
        scaling["attention_factor"] = attention * (1 + 0.1 * math.log(max(factor, 1.0)))
    return scaling


def _llama_facts(facts: Facts, config: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> dict[str, Any]:
    return {"attention_bias": "blk.0.attn_q.bias" in tensors, "mlp_bias": "blk.0.ffn_gate.bias" in tensors}


def _mistral_facts(facts: Facts, config: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> dict[str, Any]:
    return {"sliding_window": facts.integer("attention.sliding_window")}


def _mixtral_facts(facts: Facts, config: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> dict[str, Any]:
    return {
        "num_local_experts": facts.integer("expert_count"),
        "num_experts_per_tok": facts.integer("expert_used_count"),
        "sliding_window": facts.optional_integer("attention.sliding_window", low=0) or None,
    }


def _qwen2_facts(facts: Facts, config: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> dict[str, Any]:
    # Published files may carry the window of a config.json that switches it off; llama.cpp reads none either.
    return {"use_sliding_window": False}


def _qwen3_facts(facts: Facts, config: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> dict[str, Any]:
    return {"use_sliding_window": False, "attention_bias": "blk.0.attn_q.bias" in tensors}


def _gemma3_facts(facts: Facts, config: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> dict[str, Any]:
    """GGUF has no key for the attention scale: as in llama.cpp, the 27B model, known by its depth, has its own."""
    layers, window = config["num_hidden_layers"], facts.optional_integer("attention.sliding_window", low=0)
    scalar = config["head_dim"] if layers != 62 else config["hidden_size"] // config["num_attention_heads"]
    return {
        "query_pre_attn_scalar": scalar,
        "sliding_window": window or None,
        "layer_types": _gemma3_layer_types(facts, layers) if window else ["full_attention"] * layers,
        "rope_local_base_freq": facts.number("rope.freq_base_swa"),
        "final_logit_softcapping": facts.optional_number("final_logit_softcapping"),
        "attention_bias": False,
    }


def _gemma3_layer_types(facts: Facts, layers: int) -> list[str]:
    """Every sixth layer is full, or every nth, or as a list of one flag a layer says."""
    pattern = facts.get("attention.sliding_window_pattern")
    if isinstance(pattern, bool):
        flags = [pattern] * layers
    elif isinstance(pattern, list):
        flags = [bool(flag) for flag in pattern]
    else:
        period = facts.optional_integer("attention.sliding_window_pattern") or 6
        flags = [(layer + 1) % period != 0 for layer in range(layers)]
    if len(flags) != layers:
        raise facts.wrong("attention.sliding_window_pattern", f"a number or {layers} flags")
    return ["sliding_attention" if sliding else "full_attention" for sliding in flags]


_FAMILY_FACTS = {
    "llama": _llama_facts,
    "mistral": _mistral_facts,
    "mixtral": _mixtral_facts,
    "qwen2": _qwen2_facts,
    "qwen3": _qwen3_facts,
    "gemma3_text": _gemma3_facts,
}
