"""What configs of EAGLE heads say, and what in them is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from specdec.models.head_config import EagleConfig, EagleKind, read_eagle_config
from tests.models.head_writing import HIDDEN, NUM_LAYERS, VOCAB, layer_facts, target

OWN = frozenset({"embed_tokens.weight"})
IDS = "eagle_aux_hidden_state_layer_ids"


def read(
    kind: EagleKind,
    facts: Mapping[str, Any],
    tensors: frozenset[str] = OWN,
    *,
    num_layers: int = NUM_LAYERS,
    hidden_size: int = HIDDEN,
    vocab_size: int = VOCAB,
) -> EagleConfig:
    config = target(num_layers=num_layers, hidden_size=hidden_size, vocab_size=vocab_size).config
    return read_eagle_config({**layer_facts(), **facts}, kind, tensors, config, "config.json")


def speculators(layer: Mapping[str, Any], **facts: Any) -> dict[str, Any]:
    nested = {**layer_facts(), "model_type": "llama", **layer}
    return {"speculators_model_type": "eagle3", "transformer_layer_config": nested, **facts}


def error_of(kind: EagleKind, facts: Mapping[str, Any], *tensors: str, **of_target: int) -> str:
    with pytest.raises(ValueError, match=r".") as error:
        read(kind, facts, frozenset(tensors) or OWN, **of_target)
    assert "\n" not in str(error.value)
    return str(error.value)


# Auxiliary layers


@pytest.mark.parametrize(("num_layers", "expected"), [(7, (2, 3, 4)), (9, (2, 4, 6)), (32, (2, 16, 29))])
def test_the_authors_choice_of_layers(num_layers: int, expected: tuple[int, ...]) -> None:
    config = read("eagle3", {}, num_layers=num_layers)
    assert config.aux_layers == expected
    assert config.feature_size == 3 * HIDDEN


@pytest.mark.parametrize("num_layers", [1, 2, 3, 5, 6])
def test_small_targets_need_a_choice_of_their_own(num_layers: int) -> None:
    said = f"{IDS} is missing, and the default, layers 2, n // 2 and n - 3, needs a model of at least 7 layers; this "
    assert error_of("eagle3", {}, num_layers=num_layers) == f"config.json: {said}one has {num_layers}"
    chosen = [0, 1, num_layers]
    assert read("eagle3", {IDS: chosen}, num_layers=num_layers).aux_layers == tuple(chosen)


def test_the_section_of_eagle_goes_before_the_top_level() -> None:
    assert read("eagle3", {"eagle_config": {IDS: [4, 2]}, IDS: [1, 2, 3]}).aux_layers == (4, 2)
    assert read("eagle3", {"eagle_config": {IDS: None}, IDS: [1, 2, 3]}).aux_layers == (1, 2, 3)


@pytest.mark.parametrize("ids", [[], [-1, 2], [2, NUM_LAYERS + 1], [1.5], 3, ["1"]])
def test_layers_that_the_target_does_not_have(ids: Any) -> None:
    message = error_of("eagle3", {"eagle_config": {IDS: ids}})
    assert message.startswith(f"config.json: eagle_config: {IDS} must be a list of ")
    assert message.endswith(f"got {ids!r}")


def test_eagle_has_no_auxiliary_layers() -> None:
    config = read("eagle", {IDS: [1, 2, 3]}, num_layers=1)
    assert (config.aux_layers, config.feature_size) == ((), HIDDEN)


# Biases and norms


@pytest.mark.parametrize(
    ("facts", "tensors", "expected"),
    [
        ({}, (), True),
        ({"bias": None}, (), True),
        ({"bias": True}, (), True),
        ({"bias": False}, (), False),
        ({"bias": False}, ("fc.bias",), True),
        ({"speculators_model_type": "eagle", "transformer_layer_config": layer_facts()}, (), False),
        ({**speculators({}), "fusion_bias": True}, (), True),
    ],
)
def test_whether_eagle_has_a_bias(facts: dict[str, Any], tensors: tuple[str, ...], expected: bool) -> None:
    assert read("eagle", facts, OWN | frozenset(tensors)).fc_bias == expected


def test_eagle3_has_no_bias_unless_the_file_has() -> None:
    assert not read("eagle3", {"bias": True}).fc_bias
    assert read("eagle3", {}, OWN | {"fc.bias"}).fc_bias


def test_biases_of_the_layer() -> None:
    asked = read("eagle3", {"attention_bias": True, "mlp_bias": True}).model
    assert (asked.qkv_bias, asked.output_bias, asked.mlp_bias) == (True, False, True)
    names = {f"layer.{name}.bias" for name in ("self_attn.q_proj", "self_attn.o_proj", "mlp.down_proj")}
    found = read("eagle3", {}, OWN | names).model
    assert (found.qkv_bias, found.output_bias, found.mlp_bias) == (True, True, True)
    plain = read("eagle3", {}).model
    assert (plain.qkv_bias, plain.output_bias, plain.mlp_bias) == (False, False, False)


def test_norm_before_residual() -> None:
    assert not read("eagle3", {}).norm_before_residual
    assert read("eagle3", {"norm_before_residual": True}).norm_before_residual
    assert "norm_before_residual must be true or false" in error_of("eagle3", {"norm_before_residual": "yes"})


# The layer


def test_a_window_that_is_switched_off() -> None:
    config = read("eagle", {"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False})
    assert config.model.layers[0].sliding_window is None


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"num_hidden_layers": 2}, "num_hidden_layers must be 1: heads of several layers are not supported; got 2"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is not supported"),
        ({"sliding_window": 64}, "sliding_window 64 is not supported"),
        ({"hidden_act": "relu"}, "hidden_act 'relu' is not supported"),
        ({"num_local_experts": 8}, "num_local_experts 8 is not supported"),
        ({"rope_scaling": {"type": "spiral", "factor": 2}}, "rope type 'spiral' is not supported"),
        ({"hidden_size": None}, "hidden_size must be an integer"),
        ({"norm_before_fc": True}, "norm_before_fc true is not supported for eagle3 heads"),
        ({"fc_norm": True}, "fc_norm true is not supported"),
        ({"norm_output": True}, "norm_output true is not supported"),
        ({"parallel_drafting": True}, "parallel_drafting true is not supported"),
        ({"eagle_config": {"norm_before_fc": True}}, "eagle_config: norm_before_fc true is not supported"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state false is not supported"),
        ({"eagle_config": {"use_last_layernorm": False}}, "use_last_layernorm false is not supported"),
        ({"eagle_config": [1]}, "eagle_config must be an object"),
        ({"draft_vocab_size": 0}, "draft_vocab_size must be an integer of at least 1"),
        (speculators({"model_type": "mamba"}), "unknown model_type of a head's layer 'mamba'"),
        (speculators({"num_hidden_layers": 3}), "transformer_layer_config: num_hidden_layers must be 1"),
        (speculators({}, quantization_config={"bits": 4}), "quantization_config is not supported"),
        (speculators({}, transformer_layer_config=None), "num_attention_heads must be an integer"),
        (
            speculators(
                {"model_type": "qwen3", "sliding_window": 64, "use_sliding_window": True, "max_window_layers": 0}
            ),
            "sliding_window 64 is not supported for heads",
        ),
    ],
)
def test_what_is_not_supported_is_refused_by_name(facts: dict[str, Any], said: str) -> None:
    message = error_of("eagle3", facts)
    assert message.startswith("config.json: ")
    assert said in message


def test_flags_that_say_the_usual_are_fine() -> None:
    usual = {"use_aux_hidden_state": True, "use_last_layernorm": True, "use_mtp_layernorm": False}
    read("eagle3", {"eagle_config": usual, "norm_before_fc": False, "fc_norm": None})
    assert "layernorms true is not supported for eagle heads" in error_of("eagle", {"layernorms": True})


# The target


def test_a_head_for_other_features_is_refused() -> None:
    said = "config.json: the head is for a model of hidden size 24; this model's is 32"
    assert error_of("eagle", {}, hidden_size=32) == said
    assert error_of("eagle3", {}, hidden_size=32) == said
    assert error_of("eagle", {"target_hidden_size": 32}, hidden_size=32) == said
    assert error_of("eagle3", {"target_hidden_size": 48}).endswith("of hidden size 48; this model's is 24")
    assert read("eagle3", {"target_hidden_size": 32}, hidden_size=32).feature_size == 3 * 32


def test_a_narrow_head_needs_an_embedding_of_its_own() -> None:
    narrow = {"hidden_size": 16, "target_hidden_size": HIDDEN}
    assert read("eagle3", narrow).own_embedding
    assert error_of("eagle3", narrow, "fc.weight") == (
        "config.json: the head has no embed_tokens.weight and cannot use the model's embedding: its hidden_size is 16, "
        "the model's 24"
    )


def test_a_smaller_vocabulary_is_refused() -> None:
    said = f"config.json: the head is for a vocabulary of {VOCAB} tokens; this model has {VOCAB + 1}"
    assert error_of("eagle3", {}, vocab_size=VOCAB + 1) == said
    assert read("eagle3", {}, vocab_size=VOCAB - 1).draft_vocab_size == VOCAB
