"""GGUF checkpoints against the transformers models they were written from: config, tensors, logits; and refusals."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import (
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from specdec.models.config import ModelConfig
from specdec.models.families import model_config
from specdec.models.gguf import GGUFCheckpoint
from specdec.models.hub import ALIASES, resolve
from specdec.models.rope import inverse_frequencies
from tests.models.cases import BASE, build, load, tokens, transformers_logits
from tests.models.gguf_writing import equal_bits, write_model
from tests.models.stepping import chunked_logits

SHAPE = {**BASE, "intermediate_size": 96}
PROMPT = tokens(80)
GEMMA_ROPE = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}


def _llama(**rope: Any) -> Callable[[], PreTrainedConfig]:
    return lambda: LlamaConfig(**SHAPE, rope_parameters={"rope_theta": 10000.0, **rope})


CASES: dict[str, tuple[Callable[[], PreTrainedConfig], dict[str, Any]]] = {
    "llama": (lambda: LlamaConfig(**SHAPE), {}),
    "llama_tied": (lambda: LlamaConfig(**SHAPE, tie_word_embeddings=True, head_dim=24, rms_norm_eps=1e-5), {}),
    "llama_biased": (lambda: LlamaConfig(**SHAPE, attention_bias=True, mlp_bias=True), {}),
    "mistral": (lambda: MistralConfig(**SHAPE, sliding_window=9), {}),
    "mixtral": (lambda: MixtralConfig(**SHAPE, num_local_experts=5, sliding_window=None), {}),
    "mixtral_sliding": (lambda: MixtralConfig(**SHAPE, num_local_experts=3, sliding_window=20), {}),
    "qwen2": (lambda: Qwen2Config(**SHAPE), {}),
    "qwen2_window_off": (lambda: Qwen2Config(**SHAPE), {"qwen2.attention.sliding_window": 9}),
    "qwen3": (lambda: Qwen3Config(**SHAPE, head_dim=24, tie_word_embeddings=True), {}),
    "qwen3_biased": (lambda: Qwen3Config(**SHAPE, head_dim=16, attention_bias=True), {}),
    "gemma3": (
        lambda: Gemma3TextConfig(
            **{**SHAPE, "num_hidden_layers": 7}, head_dim=16, sliding_window=10, query_pre_attn_scalar=16
        ),
        {},
    ),
    "gemma3_period": (
        lambda: Gemma3TextConfig(
            **{**SHAPE, "num_hidden_layers": 4},
            head_dim=16,
            sliding_window=10,
            sliding_window_pattern=2,
            query_pre_attn_scalar=16,
            rope_parameters=GEMMA_ROPE,
        ),
        {"gemma3.attention.sliding_window_pattern": 2},
    ),
    "gemma3_flags": (
        lambda: Gemma3TextConfig(
            **SHAPE,
            head_dim=16,
            sliding_window=10,
            query_pre_attn_scalar=16,
            layer_types=["full_attention", "sliding_attention", "full_attention"],
            final_logit_softcapping=20.0,
        ),
        {"gemma3.attention.sliding_window_pattern": [False, True, False], "gemma3.final_logit_softcapping": 20.0},
    ),
    "gemma3_all_sliding": (
        lambda: Gemma3TextConfig(
            **SHAPE,
            head_dim=16,
            sliding_window=10,
            query_pre_attn_scalar=16,
            layer_types=["sliding_attention"] * 3,
        ),
        {"gemma3.attention.sliding_window_pattern": [True, True, True]},
    ),
    "gemma3_27b": (
        lambda: Gemma3TextConfig(
            **{**SHAPE, "num_hidden_layers": 62}, head_dim=24, sliding_window=10, query_pre_attn_scalar=16
        ),
        {},
    ),
    "rope_linear": (_llama(rope_type="linear", factor=3.0), {}),
    "rope_yarn": (_llama(rope_type="yarn", factor=4.0, original_max_position_embeddings=32), {}),
    "rope_yarn_betas": (
        _llama(rope_type="yarn", factor=4.0, original_max_position_embeddings=32, beta_fast=20.0, beta_slow=2.0),
        {},
    ),
    "rope_yarn_attention": (
        _llama(
            rope_type="yarn",
            factor=4.0,
            original_max_position_embeddings=32,
            attention_factor=1.5 * (1 + 0.1 * np.log(4.0)),
        ),
        {"llama.rope.scaling.attn_factor": 1.5},
    ),
    "rope_llama3": (
        _llama(
            rope_type="llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=32,
        ),
        {},
    ),
}
"""A transformers config, and metadata that the converter would add for it."""


@dataclasses.dataclass
class Written:
    name: str
    model: PreTrainedModel
    path: Path
    checkpoint: GGUFCheckpoint


@pytest.fixture(params=CASES, scope="module")
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Written:
    make, extra = CASES[request.param]
    model = build(make())
    path = write_model(tmp_path_factory.mktemp("gguf") / f"{request.param}.gguf", model, extra=extra)
    return Written(request.param, model, path, GGUFCheckpoint(path))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("small") / "small.gguf", build(LlamaConfig(**SHAPE)))


def test_the_config_is_the_one_it_was_written_from(case: Written) -> None:
    plain = {
        key: value
        for key, value in case.model.config.to_dict().items()
        if value is not None or key in ("sliding_window", "final_logit_softcapping")
    }
    expected = model_config({**plain, "architectures": [type(case.model).__name__], "use_sliding_window": False})
    config = case.checkpoint.config
    if case.name in ("rope_llama3", "rope_yarn_attention"):
        # The file holds what the scaling comes to, not its parameters.
        assert rotations(config) == pytest.approx(rotations(expected), rel=1e-6)
        expected = dataclasses.replace(expected, layers=config.layers)
    assert config == expected


def rotations(config: ModelConfig) -> list[float]:
    """The frequencies that the first layer rotates with, and the factor of its cosines and sines."""
    rope = config.layers[0].rope
    assert rope is not None
    frequencies, factor = inverse_frequencies(rope, config.max_position_embeddings)
    return [*frequencies.tolist(), factor]


def test_tensors_come_back_in_hugging_faces_layout(case: Written) -> None:
    state = dict(case.model.state_dict())
    if case.model.config.tie_word_embeddings:
        del state["lm_head.weight"]
    if "mixtral" in case.name:
        state = published_experts(state)
    assert set(case.checkpoint.names()) == set(state)
    holds_one = case.name.startswith("gemma3")
    for name in case.checkpoint.names():
        weights = case.checkpoint.read(name)
        assert weights.dtype == torch.float32
        assert case.checkpoint.shape(name) == tuple(weights.shape) == tuple(state[name].shape)
        if holds_one and name.endswith("norm.weight"):
            assert equal_bits(1 + weights, 1 + state[name])
        else:
            assert equal_bits(weights, state[name])


def published_experts(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """transformers' stacked experts under the names of published mixtral checkpoints."""
    split = {}
    for name, weights in state.items():
        layer = name.rpartition(".mlp.")[0]
        if name.endswith("mlp.gate.weight"):
            split[f"{layer}.block_sparse_moe.gate.weight"] = weights
        elif name.endswith("experts.gate_up_proj"):
            for expert, (gate, up) in enumerate(matrix.chunk(2) for matrix in weights):
                split[f"{layer}.block_sparse_moe.experts.{expert}.w1.weight"] = gate
                split[f"{layer}.block_sparse_moe.experts.{expert}.w3.weight"] = up
        elif name.endswith("experts.down_proj"):
            for expert, down in enumerate(weights):
                split[f"{layer}.block_sparse_moe.experts.{expert}.w2.weight"] = down
        else:
            split[name] = weights
    return split


def test_logits_equal_transformers(case: Written) -> None:
    logits = chunked_logits(load(case.path), [PROMPT], 33)[0]
    assert (logits - transformers_logits(case.model, PROMPT)).abs().max() < 1e-4


@pytest.mark.parametrize("name", ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_quantised_models_equal_transformers_with_the_same_weights(name: str, tmp_path: Path) -> None:
    """The model is given the weights that quantisation leaves; permuted rows are quantised as the file has them."""
    model, kind = build(LlamaConfig(**SHAPE)), GGMLQuantizationType[name]
    path = write_model(tmp_path / "model.gguf", model, kind)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                raw = gguf.quants.quantize(parameter.numpy(), kind)
                parameter.copy_(torch.from_numpy(gguf.quants.dequantize(raw, kind)))
    for tensor, weights in model.state_dict().items():
        assert equal_bits(GGUFCheckpoint(path).read(tensor), weights)
    logits = chunked_logits(load(path), [PROMPT], 80)[0]
    assert (logits - transformers_logits(model, PROMPT)).abs().max() < 1e-4


def test_end_tokens_are_those_the_file_names(tmp_path: Path) -> None:
    extra = {"tokenizer.ggml.eot_token_id": 7, "tokenizer.ggml.eom_token_id": 2}
    path = write_model(tmp_path / "model.gguf", build(LlamaConfig(**SHAPE)), extra=extra)
    assert GGUFCheckpoint(path).config.eos_token_ids == (2, 7)


def test_metadata_is_the_files_own(small: Path) -> None:
    metadata = GGUFCheckpoint(small).metadata
    assert metadata["general.architecture"] == "llama"
    assert metadata["llama.block_count"] == SHAPE["num_hidden_layers"]
    assert metadata["tokenizer.ggml.eos_token_id"] == 2


def rewritten(
    source: Path, target: Path, values: dict[str, Any] | None = None, tensors: dict[str, Any] | None = None
) -> Path:
    """A copy of a float32 file with other metadata and tensors; None leaves an entry out."""
    file = GGUFCheckpoint(source)._file
    metadata = {**file.metadata, **(values or {})}
    writer = GGUFWriter(target, metadata.pop("general.architecture"))
    for key, value in metadata.items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string, list: writer.add_array}
        if value is not None:
            add[type(value)](key, value)
    weights = {name: file.read(name).numpy() for name in file.tensors} | (tensors or {})
    for name, array in weights.items():
        if array is not None:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


ONES = np.ones(8, np.float32)
REFUSALS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "architecture": ({"general.architecture": "mamba"}, {}, "unknown GGUF architecture 'mamba'"),
    "near architecture": (
        {"general.architecture": "qwen4"},
        {},
        "did you mean 'qwen[23]'.*gemma3, llama, qwen2",
    ),
    "split": ({"split.count": 3}, {}, "one of 3 parts of a split model"),
    "no depth": ({"llama.block_count": None}, {}, "block_count must be an integer of at least 1; got None"),
    "depth": ({"llama.block_count": 400_000_000}, {}, "block_count is 400000000, but the file has 30 tensors"),
    "no heads": ({"llama.attention.head_count": 0}, {}, "attention.head_count must be an integer of at least 1; got 0"),
    "heads by layer": ({"llama.attention.head_count": [4, 2, 4]}, {}, r"head_count must be .*; got \[4, 2, 4\]"),
    "kv heads": ({"llama.attention.head_count_kv": 3}, {}, "num_key_value_heads must be a divisor"),
    "text for a number": ({"llama.context_length": "long"}, {}, "context_length must be .*; got 'long'"),
    "epsilon": (
        {"llama.attention.layer_norm_rms_epsilon": None},
        {},
        "layer_norm_rms_epsilon must be a number above 0",
    ),
    "theta": ({"llama.rope.freq_base": -1.0}, {}, "rope.freq_base must be a number above 0; got -1.0"),
    "value size": ({"llama.attention.value_length": 8}, {}, "attention.value_length .8. must equal the head size .16."),
    "partial rope": ({"llama.rope.dimension_count": 8}, {}, "rope.dimension_count .8. must equal the head size"),
    "rope type": ({"llama.rope.scaling.type": "longrope"}, {}, "rope.scaling.type 'longrope' is not supported"),
    "rope factor": ({"llama.rope.scaling.type": "yarn"}, {}, "rope.scaling.factor must be a number above 0; got"),
    "yarn weights": (
        {
            "llama.rope.scaling.type": "yarn",
            "llama.rope.scaling.factor": 2.0,
            "llama.rope.scaling.yarn_ext_factor": 0.5,
        },
        {},
        "rope.scaling.yarn_ext_factor must be 1; got 0.5",
    ),
    "two ropes": ({"llama.rope.scaling.factor": 2.0}, {"rope_freqs.weight": ONES}, "together with rope_freqs.weight"),
    "rope divisors": ({}, {"rope_freqs.weight": ONES * 0}, "rope_freqs.weight must hold finite numbers above 0"),
    "number of divisors": ({}, {"rope_freqs.weight": ONES[:5]}, "short_factor must be a list of 8 numbers"),
    "clamped": ({"llama.attention.clamp_kqv": 8.0}, {}, "attention.clamp_kqv .8.0. is not supported"),
    "scaled": ({"llama.logit_scale": 0.5}, {}, "logit_scale .0.5. is not supported"),
    "end token": ({"tokenizer.ggml.eos_token_id": "</s>"}, {}, "eos_token_id must be an integer of at least 0"),
    "no embedding": ({}, {"token_embd.weight": None}, "the tensor token_embd.weight is missing"),
    "unknown tensor": ({}, {"blk.0.ssm_in.weight": ONES}, "tensors unknown to llama: blk.0.ssm_in.weight"),
    "unknown suffix": ({}, {"blk.0.attn_q.scale": ONES}, "tensors unknown to llama: blk.0.attn_q.scale"),
    "unknown tensors": (
        {},
        {f"blk.{i}.attn_sinks.weight": ONES for i in range(7)},
        "blk.0.attn_sinks.weight, .*blk.4.attn_sinks.weight and 2 more",
    ),
    "rows": ({}, {"blk.0.attn_q.weight": np.ones((12, 64), np.float32)}, "attn_q.weight has 12 rows, which 4 heads"),
    "no stack": (
        {"llama.expert_count": 4, "llama.expert_used_count": 2},
        {
            **{f"blk.{i}.ffn_{part}.weight": None for i in range(3) for part in ("gate", "up", "down")},
            "blk.0.ffn_up_exps.weight": np.ones((5, 96, 64), np.float32),
        },
        r"ffn_up_exps.weight of shape \[5, 96, 64\] is not a stack of 4 matrices",
    ),
}


@pytest.mark.parametrize("fault", REFUSALS)
def test_what_cannot_be_run_exactly_is_refused_by_name(fault: str, small: Path, tmp_path: Path) -> None:
    values, tensors, message = REFUSALS[fault]
    path = rewritten(small, tmp_path / "made.gguf", values, tensors)
    with pytest.raises(ValueError, match=message) as caught:
        GGUFCheckpoint(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_gemma_flags_must_fit_the_depth(tmp_path: Path) -> None:
    extra = {"gemma3.attention.sliding_window_pattern": [True, False]}
    config = Gemma3TextConfig(**SHAPE, head_dim=16, sliding_window=10)
    path = write_model(tmp_path / "model.gguf", build(config), extra=extra)
    with pytest.raises(ValueError, match="sliding_window_pattern must be a number or 3 flags"):
        GGUFCheckpoint(path)


def test_one_number_may_stand_for_every_layer(small: Path, tmp_path: Path) -> None:
    values = {"llama.attention.head_count": [4, 4, 4], "llama.feed_forward_length": [96] * 3}
    path = rewritten(small, tmp_path / "made.gguf", values)
    assert GGUFCheckpoint(path).config == GGUFCheckpoint(small).config


def test_a_missing_or_misshapen_tensor_is_listed_by_the_loader(small: Path, tmp_path: Path) -> None:
    tensors = {"blk.1.ffn_up.weight": None, "blk.2.attn_norm.weight": ONES, "blk.9.attn_norm.weight": ONES}
    path = rewritten(small, tmp_path / "made.gguf", {}, tensors)
    with pytest.raises(ValueError, match=r"layers\.1\.mlp\.up_proj\.weight") as caught:
        load(path)
    for name in ("layers.2.input_layernorm.weight", "layers.9.input_layernorm.weight"):
        assert name in str(caught.value)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_headers_are_refused_or_read(data: st.DataObject, small: Path, tmp_path: Path) -> None:
    damaged = bytearray(small.read_bytes())
    header = min(info.offset for info in GGUFCheckpoint(small)._file.tensors.values())
    flips = st.lists(st.tuples(st.integers(24, header - 1), st.integers(1, 255)), min_size=1, max_size=3)
    for at, change in data.draw(flips):
        damaged[at] ^= change
    path = tmp_path / "damaged.gguf"
    path.write_bytes(bytes(damaged))
    try:
        checkpoint = GGUFCheckpoint(path)
    except ValueError as error:
        message = str(error)
    else:
        message = f"{path}: read"
        for name in checkpoint.names():
            assert tuple(checkpoint.read(name).shape) == checkpoint.shape(name)
    assert str(path) in message
    assert "\n" not in message


@pytest.mark.model
def test_the_default_model_is_read_as_its_reader_has_it() -> None:
    path = resolve(next(iter(ALIASES)))
    checkpoint = GGUFCheckpoint(path)
    config = checkpoint.config
    assert (config.num_layers, config.hidden_size, config.intermediate_size) == (30, 576, 1536)
    assert (config.num_heads, config.num_kv_heads, config.head_dim, config.vocab_size) == (9, 3, 64, 49152)
    assert (config.rms_norm_eps, config.max_position_embeddings, config.eos_token_ids) == (1e-5, 8192, (2,))
    assert config.tie_word_embeddings
    assert config.layers[0].rope is not None
    assert config.layers[0].rope.theta == 1e5
    assert len(checkpoint.names()) == 272
    tensors = {tensor.name: tensor for tensor in GGUFReader(path).tensors}
    for name, source in (
        ("model.embed_tokens.weight", "token_embd.weight"),
        ("model.layers.7.mlp.down_proj.weight", "blk.7.ffn_down.weight"),
        ("model.layers.29.input_layernorm.weight", "blk.29.attn_norm.weight"),
    ):
        tensor = tensors[source]
        assert equal_bits(checkpoint.read(name), gguf.quants.dequantize(tensor.data, tensor.tensor_type))
    stored = tensors["blk.3.attn_k.weight"]
    rows = gguf.quants.dequantize(stored.data, stored.tensor_type)  # [192, 576]: 3 heads of 32 pairs of rows
    expected = np.concatenate([half for head in np.split(rows, 3) for half in (head[0::2], head[1::2])])
    assert equal_bits(checkpoint.read("model.layers.3.self_attn.k_proj.weight"), expected)
