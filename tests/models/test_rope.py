"""Rotary tables against transformers' formulas, and that they depend on nothing but the config and the position."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig, Phi3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from specdec.models.config import RopeConfig
from specdec.models.facts import Facts
from specdec.models.rope import RopeTable, inverse_frequencies
from specdec.models.rope_config import extended_limit, read_gemma3_rope, read_rope

HEAD_DIM, LIMIT = 32, 64
DEFAULTS = {"rope_theta": 10000.0}


def ours(parameters: dict[str, Any], head_dim: int = HEAD_DIM) -> RopeConfig:
    values = {"max_position_embeddings": LIMIT, "rope_parameters": parameters}
    return read_rope(Facts(values, DEFAULTS), head_dim, partial=False)


def theirs(parameters: dict[str, Any], head_dim: int = HEAD_DIM) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=2 * head_dim,
        num_attention_heads=2,
        max_position_embeddings=LIMIT,
        rope_parameters=dict(parameters),
    )


factors = st.floats(1.0, 64.0)
thetas = st.sampled_from([500.0, 1e4, 5e5, 1e6])
optional = st.none() | st.floats(0.5, 2.0)
scalings = st.one_of(
    st.fixed_dictionaries({"rope_type": st.just("linear"), "factor": factors}),
    st.fixed_dictionaries(
        {
            "rope_type": st.just("llama3"),
            "factor": factors,
            "low_freq_factor": st.sampled_from([1.0, 1.5]),
            "high_freq_factor": st.sampled_from([2.0, 4.0]),
            "original_max_position_embeddings": st.sampled_from([16, 32]),
        }
    ),
    st.fixed_dictionaries(
        {
            "rope_type": st.just("yarn"),
            "factor": factors,
            "original_max_position_embeddings": st.sampled_from([8, 16, 32]),
        },
        optional={
            "attention_factor": optional,
            "mscale": optional,
            "mscale_all_dim": optional,
            "beta_fast": st.sampled_from([None, 20, 40]),
            "beta_slow": st.sampled_from([None, 0.5, 2]),
            "truncate": st.booleans(),
        },
    ),
)


@given(scalings, thetas, st.sampled_from([8, 32, 64]))
def test_frequencies_equal_transformers(scaling: dict[str, Any], theta: float, head_dim: int) -> None:
    parameters = {**scaling, "rope_theta": theta}
    frequencies, factor = inverse_frequencies(ours(parameters, head_dim), LIMIT)
    expected, expected_factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](theirs(parameters, head_dim))
    assert torch.allclose(frequencies, expected, rtol=2e-6, atol=0)
    assert factor == pytest.approx(expected_factor)


@given(thetas)
def test_plain_tables_equal_transformers_bit_for_bit(theta: float) -> None:
    rotary = LlamaRotaryEmbedding(theirs({"rope_type": "default", "rope_theta": theta}))
    cos, sin = rotary(torch.zeros(1), torch.arange(LIMIT)[None])
    table = RopeTable(ours({"rope_type": "default", "rope_theta": theta}), LIMIT)
    assert torch.equal(table.cos, cos[0, :, : HEAD_DIM // 2])
    assert torch.equal(table.sin, sin[0, :, : HEAD_DIM // 2])


@given(st.floats(1.0, 8.0), thetas, st.integers(0, 4 * LIMIT - 1))
def test_dynamic_is_what_transformers_does_token_by_token(factor: float, theta: float, position: int) -> None:
    parameters = {"rope_type": "dynamic", "factor": factor, "rope_theta": theta}
    frequencies, _ = inverse_frequencies(ours(parameters), 4 * LIMIT)
    expected, _ = ROPE_INIT_FUNCTIONS["dynamic"](theirs(parameters), seq_len=torch.tensor(position + 1))
    assert torch.allclose(frequencies[position], expected, rtol=5e-6, atol=0)


def test_dynamic_changes_nothing_up_to_the_original_length() -> None:
    dynamic, _ = inverse_frequencies(ours({"rope_type": "dynamic", "factor": 4.0}), 2 * LIMIT)
    plain, _ = inverse_frequencies(ours({}), 2 * LIMIT)
    assert torch.allclose(dynamic[:LIMIT], plain.expand(LIMIT, -1), rtol=1e-6, atol=0)
    assert (dynamic[LIMIT + 8, 1:] < plain[1:]).all()


LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0 + 0.1 * i for i in range(16)],
    "long_factor": [2.0 + i for i in range(16)],
    "original_max_position_embeddings": 16,
}


@pytest.mark.parametrize("options", [{}, {"factor": 2.0}, {"attention_factor": 1.3}])
@pytest.mark.parametrize(("max_model_len", "seq_len"), [(16, 16), (17, 17), (64, 64)])
def test_longrope_goes_by_the_model_length(options: dict[str, Any], max_model_len: int, seq_len: int) -> None:
    parameters = {**LONGROPE, "rope_theta": 1e4, **options}
    frequencies, factor = inverse_frequencies(ours(parameters), max_model_len)
    expected, expected_factor = ROPE_INIT_FUNCTIONS["longrope"](theirs(parameters), seq_len=seq_len)
    assert torch.allclose(frequencies, expected, rtol=2e-6, atol=0)
    assert factor == pytest.approx(expected_factor)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"rope_theta": 5e5}, {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}),
        (
            {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}},
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}},
        ),
        (
            {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}},
            {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}},
        ),
        ({"rope_scaling": None}, {"rope_parameters": {}}),
    ],
)
def test_old_and_new_spellings_say_the_same(old: dict[str, Any], new: dict[str, Any]) -> None:
    read = [read_rope(Facts({"max_position_embeddings": 64, **v}, DEFAULTS), 32, partial=False) for v in (old, new)]
    assert read[0] == read[1]


def test_what_a_scaling_leaves_out_is_filled_in() -> None:
    yarn = ours({"rope_type": "yarn", "original_max_position_embeddings": 16}).scaling
    assert yarn is not None
    assert yarn["factor"] == LIMIT / 16
    dynamic = ours({"rope_type": "dynamic", "factor": 2}).scaling
    assert dynamic is not None
    assert dynamic["original_max_position_embeddings"] == LIMIT


def test_phi3_takes_its_original_length_from_the_top_level() -> None:
    parameters = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    config = Phi3Config(
        hidden_size=64,
        num_attention_heads=4,
        max_position_embeddings=64,
        original_max_position_embeddings=16,
        rope_parameters=dict(parameters),
        pad_token_id=0,
    )
    expected, expected_factor = ROPE_INIT_FUNCTIONS["longrope"](config, seq_len=17)
    values = {"max_position_embeddings": 64, "original_max_position_embeddings": 16, "rope_parameters": parameters}
    frequencies, factor = inverse_frequencies(read_rope(Facts(values, DEFAULTS), 16, partial=True), 64)
    assert torch.allclose(frequencies, expected, rtol=2e-6, atol=0)
    assert factor == pytest.approx(expected_factor)


@pytest.mark.parametrize(
    ("parameters", "limit"),
    [
        ({}, 64),
        ({"rope_type": "linear", "factor": 4.0}, 256),
        ({"rope_type": "dynamic", "factor": 2.0}, 128),
        ({"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 16}, 128),
        ({"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 16}, 64),
        (LONGROPE, 64),
    ],
)
def test_how_far_a_model_reaches(parameters: dict[str, Any], limit: int) -> None:
    assert extended_limit(LIMIT, ours(parameters)) == limit


def test_gemma3_rotates_full_and_sliding_layers_apart() -> None:
    defaults = {"rope_theta": 1e6, "rope_local_base_freq": 1e4}
    old = {"rope_theta": 5e5, "rope_local_base_freq": 2e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    new = {
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
        }
    }
    read = [read_gemma3_rope(Facts({"max_position_embeddings": 64, **v}, defaults), 32) for v in (old, new)]
    assert read[0] == read[1]
    assert read[0]["full_attention"] == RopeConfig(5e5, 32, {"rope_type": "linear", "factor": 8.0})
    assert read[0]["sliding_attention"] == RopeConfig(2e4, 32)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"rope_type": "mrope"}, "rope type 'mrope' is not supported"),
        ({"rope_type": "linear"}, "factor must be a number above 0; got None"),
        ({"rope_type": "linear", "factor": "2"}, "factor must be a number"),
        ({"rope_type": "llama3", "factor": 8.0}, "low_freq_factor must be a number"),
        ({**LONGROPE, "long_factor": [1.0]}, "long_factor must be a list of 16 numbers"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not supported"),
        ({"full_attention": {"rope_type": "default"}}, "per layer type"),
        ({"rope_theta": -1}, "rope_theta must be a number above 0"),
    ],
)
def test_unsupported_rope_is_refused_by_name(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ours(parameters)
