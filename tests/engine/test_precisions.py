"""Greedy and coupled answers have plain decoding's bytes in every precision of the native kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import Gemma2Config, Gemma2ForCausalLM

from specdec import LLM, SamplingParams, SpeculationParams
from tests.engine.test_draft_files import save

pytestmark = pytest.mark.filterwarnings("ignore:proposer .* the first drafted token")

PRECISIONS: list[dict[str, Any]] = [
    {"dtype": "float32"},
    {"dtype": "bfloat16"},
    {"dtype": "float16"},  # over a cache in float32: there is none in float16
    {"dtype": "bfloat16", "quantization": "int8"},
    {"dtype": "bfloat16", "quantization": "int4", "kv_cache_dtype": "int8"},
]
PROPOSERS: list[dict[str, Any]] = [
    {"method": "ngram", "num_speculative_tokens": 5},
    {"method": "suffix", "num_speculative_tokens": 4},
    {"method": "recycling", "num_speculative_tokens": 3},
    {"method": "draft", "num_draft_layers": 2, "num_speculative_tokens": 3, "tree": "breadth", "tree_nodes": 7},
]


def save_gemma2(path: Path) -> None:
    """A model whose logits and attention are soft-capped, with the tokenizer of the other."""
    save(path, layers=3)
    config = Gemma2Config(
        vocab_size=256,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        sliding_window=10,
        max_position_embeddings=128,
        eos_token_id=0,
        initializer_range=0.5,
        final_logit_softcapping=5.0,
    )
    Gemma2ForCausalLM(config).save_pretrained(path)


@pytest.mark.parametrize("precision", PRECISIONS, ids=lambda precision: "-".join(precision.values()))
def test_nobody_changes_a_byte(precision: dict[str, Any], tmp_path: Path) -> None:
    save(tmp_path, layers=3)
    check(tmp_path, precision)


def test_nobody_changes_a_byte_of_soft_capped_logits(tmp_path: Path) -> None:
    save_gemma2(tmp_path)
    check(tmp_path, {"dtype": "bfloat16"})


def check(folder: Path, precision: dict[str, Any]) -> None:
    try:
        llm = LLM(
            str(folder),
            speculative_config=PROPOSERS,
            kernels="native",
            verifier="coupled",
            max_num_batched_tokens=96,
            kv_cache_tokens=640,
            **precision,
        )
    except ValueError as error:
        if "no native kernels" in str(error):
            pytest.skip(str(error))
        raise
    prompts = [text * 2 for text in ("hello", "a longer prompt, in several blocks", "aaaa", "one, two, three, ")]
    for params in (
        SamplingParams(temperature=0, max_tokens=40, ignore_eos=True),
        SamplingParams(temperature=0.9, seed=5, max_tokens=40, ignore_eos=True),
    ):
        alone = llm.generate(prompts, params, speculation=SpeculationParams("none"))
        assert [output.outputs[0].error for output in alone] == [None] * len(prompts)
        plain = [output.outputs[0].token_ids for output in alone]
        drafted = 0
        for proposer in PROPOSERS:
            outputs = llm.generate(prompts, params, speculation=SpeculationParams(proposer["method"]))
            assert [out.outputs[0].token_ids for out in outputs] == plain, proposer["method"]
            drafted += sum(out.outputs[0].speculation.num_draft_tokens for out in outputs)
        assert drafted > 0
