"""Greedy and coupled answers have plain decoding's bytes in every precision of the native kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from specdec import LLM, SamplingParams, SpeculationParams
from tests.engine.test_draft_files import save

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


@pytest.mark.parametrize("precision", PRECISIONS, ids=lambda precision: "-".join(precision.values()))
@pytest.mark.filterwarnings("ignore:proposer .* the first drafted token")
def test_nobody_changes_a_byte(precision: dict[str, Any], tmp_path: Path) -> None:
    save(tmp_path, layers=3)
    try:
        llm = LLM(
            str(tmp_path),
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
        plain = [output.outputs[0].token_ids for output in alone]
        drafted = 0
        for proposer in PROPOSERS:
            outputs = llm.generate(prompts, params, speculation=SpeculationParams(proposer["method"]))
            assert [out.outputs[0].token_ids for out in outputs] == plain, proposer["method"]
            drafted += sum(out.outputs[0].speculation.num_draft_tokens for out in outputs)
        assert drafted > 0
