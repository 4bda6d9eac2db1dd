"""What config.json files mean, as published and as transformers writes them, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from transformers import PreTrainedConfig
from transformers.models.auto import CONFIG_MAPPING

from specdec.models.config import ModelConfig, MoeConfig, RopeConfig
from specdec.models.families import FAMILIES, model_config
from tests.models.cases import CASES

SMALL: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
}


def read(architecture: str, **facts: Any) -> ModelConfig:
    return model_config({"architectures": [architecture], **SMALL, **facts})


def windows(config: ModelConfig) -> list[int | None]:
    return [layer.sliding_window for layer in config.layers]


@pytest.mark.parametrize("case", CASES)
def test_layers_are_those_that_transformers_derives(case: str) -> None:
    theirs = CASES[case]()
    ours = model_config(_saved(theirs))
    assert ours.num_layers == theirs.num_hidden_layers
    assert (ours.num_heads, ours.num_kv_heads) == (theirs.num_attention_heads, theirs.num_key_value_heads)
    kinds = getattr(theirs, "layer_types", None)
    if kinds is None:
        window = getattr(theirs, "sliding_window", None)
        assert windows(ours) == [window] * ours.num_layers
    else:
        assert windows(ours) == [theirs.sliding_window if k == "sliding_attention" else None for k in kinds]


def _saved(config: PreTrainedConfig) -> dict[str, Any]:
    by_type = {family.model_type: name for name, family in FAMILIES.items()}
    return json.loads(config.to_json_string()) | {"architectures": [by_type[config.model_type]]}


@pytest.mark.parametrize("architecture", FAMILIES)
def test_what_a_file_leaves_out_is_what_transformers_assumes(architecture: str) -> None:
    """A sparse config.json reads as the one transformers makes of it and writes out in full."""
    family = FAMILIES[architecture]
    sparse = {**SMALL, "num_key_value_heads": 2}
    if architecture in ("Gemma3ForCausalLM", "Gemma2ForCausalLM"):
        for key in ("num_attention_heads", "num_key_value_heads", "vocab_size"):
            del sparse[key]
    full = _saved(CONFIG_MAPPING[family.model_type](**sparse))
    assert model_config({"architectures": [architecture], **sparse}) == model_config(full)


def test_llama_31() -> None:
    scaling = {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    }
    config = read(
        "LlamaForCausalLM",
        rope_theta=500000.0,
        rope_scaling=scaling,
        max_position_embeddings=131072,
        eos_token_id=[128001, 128008],
        torch_dtype="bfloat16",
        num_key_value_heads=2,
        rms_norm_eps=1e-5,
    )
    assert config.layers[0].rope == RopeConfig(500000.0, 16, scaling)
    assert config.max_position_embeddings == 131072
    assert config.eos_token_ids == (128001, 128008)
    assert (config.dtype, config.rms_norm_eps, config.num_kv_heads) == ("bfloat16", 1e-5, 2)
    assert config.norm_placement == "pre"
    assert not config.tie_word_embeddings


def test_qwen2_has_biases_on_queries_keys_and_values_alone() -> None:
    config = read("Qwen2ForCausalLM", num_key_value_heads=2, use_sliding_window=False, sliding_window=32768)
    assert (config.qkv_bias, config.output_bias, config.mlp_bias) == (True, False, False)
    assert windows(config) == [None] * 4


def test_qwen3_biases_and_norms() -> None:
    config = read("Qwen3ForCausalLM", num_key_value_heads=2, attention_bias=True)
    assert (config.qkv_bias, config.output_bias, config.qk_norm, config.head_dim) == (True, True, "head", 128)


def test_gemma2_caps_scales_and_alternates() -> None:
    config = read("Gemma2ForCausalLM", query_pre_attn_scalar=144, sliding_window=8)
    assert windows(config) == [8, None, 8, None]
    assert config.scale == 1 / 12
    assert (config.attention_soft_cap, config.final_soft_cap, config.embedding_scale) == (50.0, 30.0, 8.0)
    assert (config.norm_placement, config.norm_unit_offset) == ("sandwich", True)
    assert (config.activation, config.tie_word_embeddings, config.head_dim) == ("gelu_tanh", True, 256)
    uncapped = read("Gemma2ForCausalLM", attn_logit_softcapping=None, final_logit_softcapping=None)
    assert (uncapped.attention_soft_cap, uncapped.final_soft_cap) == (None, None)


def test_gemma3_as_published_with_vision() -> None:
    """gemma-3-4b-it leaves most of its text model to defaults."""
    config = model_config(
        {
            "architectures": ["Gemma3ForConditionalGeneration"],
            "eos_token_id": [1, 106],
            "model_type": "gemma3",
            "torch_dtype": "bfloat16",
            "text_config": {
                "hidden_size": 2560,
                "intermediate_size": 10240,
                "model_type": "gemma3_text",
                "num_hidden_layers": 34,
                "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                "sliding_window": 1024,
            },
            "vision_config": {"hidden_size": 1152},
        }
    )
    assert config.architecture == "Gemma3ForCausalLM"
    assert (config.num_heads, config.num_kv_heads, config.head_dim, config.vocab_size) == (8, 4, 256, 262208)
    assert (config.eos_token_ids, config.dtype, config.max_position_embeddings) == ((1, 106), "bfloat16", 131072)
    assert [i for i, window in enumerate(windows(config)) if window is None] == [5, 11, 17, 23, 29]
    assert config.layers[5].rope == RopeConfig(1e6, 256, {"factor": 8.0, "rope_type": "linear"})
    assert config.layers[0].rope == RopeConfig(1e4, 256)


def test_phi3_old_name_of_longrope_and_partial_rotation() -> None:
    factors = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    config = read(
        "Phi3ForCausalLM",
        rope_scaling={"type": "su", **factors},
        partial_rotary_factor=0.5,
        max_position_embeddings=131072,
        original_max_position_embeddings=4096,
        sliding_window=2047,
    )
    rope = config.layers[0].rope
    assert rope is not None
    assert rope.scaling is not None
    assert rope.rotary_dim == 8
    assert rope.scaling["rope_type"] == "longrope"
    assert rope.scaling["factor"] == 32.0
    assert windows(config) == [2047] * 4


def test_olmo2_normalises_after_and_over_all_heads() -> None:
    config = read("Olmo2ForCausalLM")
    assert (config.norm_placement, config.qk_norm, config.rms_norm_eps) == ("post", "full", 1e-5)


def test_smollm3_layers_without_rotation() -> None:
    every_fourth = read("SmolLM3ForCausalLM")
    assert [layer.rope is None for layer in every_fourth.layers] == [False, False, False, True]
    listed = read("SmolLM3ForCausalLM", no_rope_layers=[0, 1, 0, 1])
    assert [layer.rope is None for layer in listed.layers] == [True, False, True, False]


def test_mixtral_and_qwen3_moe_experts() -> None:
    mixtral = read("MixtralForCausalLM", num_key_value_heads=2, num_local_experts=8, num_experts_per_tok=2)
    assert [layer.moe for layer in mixtral.layers] == [MoeConfig(8, 2, 96, True)] * 4
    qwen = read(
        "Qwen3MoeForCausalLM",
        num_experts=16,
        num_experts_per_tok=4,
        moe_intermediate_size=24,
        decoder_sparse_step=2,
        mlp_only_layers=[3],
    )
    assert [layer.moe for layer in qwen.layers] == [None, MoeConfig(16, 4, 24, False), None, None]


def test_an_architecture_may_go_by_its_model_type() -> None:
    assert model_config({**SMALL, "model_type": "llama"}).architecture == "LlamaForCausalLM"


@pytest.mark.parametrize(
    ("architecture", "facts", "message"),
    [
        ("MambaForCausalLM", {}, "unknown architecture 'MambaForCausalLM'.*LlamaForCausalLM"),
        ("LlamaForSequenceClassification", {}, "unknown architecture"),
        (
            "Qwen3NextForCausalLM",
            {"layer_types": ["linear_attention", "full_attention"]},
            "'linear_attention', a layer that cannot be rolled back",
        ),
        ("JambaForCausalLM", {"layers_block_type": ["mamba", "attention"]}, "'mamba', a layer that cannot be rolled"),
        ("Qwen3ForCausalLM", {"layer_types": ["full_attention"] * 3 + ["linear_attention"]}, "'linear_attention'"),
        ("Qwen3ForCausalLM", {"layer_types": ["full_attention"] * 3 + ["chunked_attention"]}, "'chunked_attention'"),
        ("Qwen3ForCausalLM", {"layer_types": ["full_attention"]}, "layer_types must be a list of 4"),
        ("LlamaForCausalLM", {"layer_types": ["sliding_attention"] * 4}, "layer_types other than 'full_attention'"),
        (
            "Qwen2ForCausalLM",
            {"layer_types": ["sliding_attention"] * 4, "sliding_window": None},
            "sliding_window must be an integer",
        ),
        ("Phi3ForCausalLM", {"attention_bias": True}, "attention_bias True is not supported for Phi3ForCausalLM"),
        ("MistralForCausalLM", {"mlp_bias": True}, "mlp_bias True is not supported"),
        ("LlamaForCausalLM", {"sliding_window": 128}, "sliding_window 128 is not supported"),
        ("LlamaForCausalLM", {"hidden_act": "relu"}, "hidden_act 'relu' is not supported"),
        ("LlamaForCausalLM", {"hidden_act": ["x"]}, r"hidden_act must be a name; got \['x'\]"),
        ("Gemma2ForCausalLM", {"hidden_activation": {}}, "hidden_activation must be a name; got {}"),
        ("LlamaForCausalLM", {"architectures": None, "model_type": ["x"]}, r"model_type must be a name; got \['x'\]"),
        ("Gemma2ForCausalLM", {"hidden_activation": "gelu"}, "hidden_activation 'gelu' is not supported"),
        ("Gemma3ForCausalLM", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping 50.0 is not supported"),
        ("Gemma3ForCausalLM", {"use_bidirectional_attention": True}, "use_bidirectional_attention True"),
        ("Gemma3ForCausalLM", {"rope_parameters": {"rope_type": "linear"}}, "full_attention and sliding_attention"),
        ("LlamaForCausalLM", {"rope_scaling": {"rope_type": "spiral"}}, "rope type 'spiral' is not supported"),
        ("LlamaForCausalLM", {"quantization_config": {"bits": 4}}, "quantization_config is not supported"),
        ("LlamaForCausalLM", {"num_local_experts": 4}, "num_local_experts 4 is not supported"),
        ("LlamaForCausalLM", {"torch_dtype": "float8_e4m3fn"}, "dtype 'float8_e4m3fn' is not supported"),
        ("LlamaForCausalLM", {"hidden_size": "big"}, "hidden_size must be an integer of at least 1; got 'big'"),
        ("LlamaForCausalLM", {"vocab_size": None}, "vocab_size must be an integer"),
        ("LlamaForCausalLM", {"num_key_value_heads": 3}, "num_key_value_heads must be a divisor"),
        ("LlamaForCausalLM", {"tie_word_embeddings": "no"}, "tie_word_embeddings must be true or false"),
        ("LlamaForCausalLM", {"eos_token_id": "</s>"}, "eos_token_id must be a token id"),
        ("LlamaForCausalLM", {"rms_norm_eps": 0}, "rms_norm_eps must be a number above 0"),
        ("LlamaForCausalLM", {"rope_scaling": "linear"}, "rope_scaling must be an object"),
        ("MixtralForCausalLM", {"num_experts_per_tok": 9}, "num_experts_per_tok must be at most"),
        ("Qwen3MoeForCausalLM", {"mlp_only_layers": 3}, "mlp_only_layers must be a list of integers"),
        ("SmolLM3ForCausalLM", {"no_rope_layers": [1]}, "no_rope_layers must be a list of at least 4"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(architecture: str, facts: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        read(architecture, **facts)
    assert str(error.value).startswith("config.json: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("config", [{**SMALL, "model_type": "rwkv"}, SMALL, {**SMALL, "architectures": "Llama"}])
def test_a_file_that_names_no_known_architecture_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"architecture|model_type"):
        model_config(config)


@pytest.mark.parametrize(
    "change",
    [
        {"layer_types": 5},
        {"hidden_act": ["x"]},
        {"rope_scaling": {"rope_type": ["x"]}},
        {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "beta_fast": "x"}},
        {"rope_scaling": {"rope_type": "longrope", "factor": 2.0, "short_factor": ["a"] * 4, "long_factor": [1] * 4}},
        {"architectures": [5]},
        {"rope_theta": 1},
        {"rms_norm_eps": float("inf")},
        {"num_hidden_layers": 10**9},
        {"vocab_size": 2**63},
        {"rope_scaling": {"rope_type": "linear", "factor": float("inf")}},
        {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "attention_factor": "a"}},
        {"rope_scaling": {"rope_type": "longrope", "factor": 2.0, "short_factor": [0] * 4, "long_factor": [1] * 4}},
        {"max_position_embeddings": 1e400, "rope_scaling": {"rope_type": "linear", "factor": 1e308}},
    ],
)
@pytest.mark.parametrize("model_type", ["qwen3", "gemma3_text", "llama"])
def test_values_of_the_wrong_kind_are_one_line(change: dict, model_type: str) -> None:
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 64}
    config = {"model_type": model_type, "vocab_size": 10, "head_dim": 8, "max_position_embeddings": 64, **sizes}
    refused = refusal({**config, **change})
    assert refused is None or (refused.startswith("config.json: ") and "\n" not in refused)


def refusal(config: dict) -> str | None:
    """Why a config is refused; None if it is read."""
    try:
        model_config(config)
    except ValueError as error:
        return str(error)
    return None
