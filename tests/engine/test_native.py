"""Engines on native kernels: what requests ask for is what the reference kernels give, and several in one process."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from threading import Event, current_thread

import pytest
import torch

from specdec import LLM, SamplingParams, SpeculationParams
from specdec.config import EngineConfig
from specdec.engine import Engine
from specdec.engine.build import load_models
from specdec.train.formats.eagle3 import write_eagle3
from tests.engine.test_built_in_heads import FACTS
from tests.engine.test_draft_files import PROMPTS, save
from tests.engine.test_lossless import VARIATIONS
from tests.toys import run
from tests.train.formats.test_writing import eagle3_tensors

PARAMETERS = VARIATIONS | {"allowed_token_ids": {"allowed_token_ids": [65, 66, 67]}}
OPTIONS = {"dtype": "float32", "kv_cache_tokens": 1024, "block_size": 8, "verifier": "coupled"}


@contextmanager
def where_there_are_native_kernels() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        if "no native kernels" in str(error):
            pytest.skip(str(error))
        raise


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def native(folder: Path) -> LLM:
    ngram = {"method": "ngram", "num_speculative_tokens": 3}
    with where_there_are_native_kernels():
        return LLM(str(folder), kernels="native", speculative_config=ngram, **OPTIONS)


@pytest.fixture(scope="module")
def plain(folder: Path) -> LLM:
    return LLM(str(folder), kernels="reference", **OPTIONS)


@pytest.mark.parametrize("name", [field.name for field in fields(SamplingParams)])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_sampling_parameter_does_what_it_does_on_the_reference(
    name: str, temperature: float, native: LLM, plain: LLM
) -> None:
    params = SamplingParams(**{"temperature": temperature, "seed": 7, "max_tokens": 20} | PARAMETERS[name])

    def said(llm: LLM, proposer: str) -> list[object]:
        outputs = llm.generate(PROMPTS, params, speculation=SpeculationParams(proposer))
        return [
            (sample.token_ids, sample.text, sample.finish_reason, sample.stop_reason, sample.error)
            for output in outputs
            for sample in output.outputs
        ]

    expected = said(plain, "none")
    assert said(native, "none") == expected
    assert said(native, "ngram") == expected


def test_two_engines_of_loaded_models_in_two_threads(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One is held in the middle of recording its forward pass until the other has answered everything."""
    config = EngineConfig.from_mapping({"model": str(folder), "kernels": "native", **OPTIONS})
    with where_there_are_native_kernels():
        models = load_models(config)
    params = SamplingParams(temperature=0, max_tokens=12)

    def answer(engine: Engine) -> list[list[int]]:
        for prompt in PROMPTS:
            engine.add_request(prompt, prompt, params)
        finished = run(engine)
        return [finished[prompt].outputs[0].token_ids for prompt in PROMPTS]

    expected = answer(models.engine(config))
    is_recording, others_are_done = Event(), Event()
    embed, this_thread = models.model.embed, current_thread()

    def held(token_ids: torch.Tensor) -> torch.Tensor:
        hidden = embed(token_ids)
        if current_thread() is not this_thread and not is_recording.is_set():
            is_recording.set()
            assert others_are_done.wait(60)
        return hidden

    monkeypatch.setattr(models.model, "embed", held)
    first, second = models.engine(config), models.engine(config)
    with ThreadPoolExecutor(1) as other:
        answered = other.submit(answer, first)
        assert is_recording.wait(60)
        try:
            found = answer(second)
        finally:
            others_are_done.set()
        assert found == expected
        assert answered.result() == expected


@pytest.mark.parametrize("precision", [{}, {"kv_cache_dtype": "int8"}, {"quantization": "int8"}])
def test_a_head_drafts_to_the_end_in_precisions_whose_states_are_wider(
    precision: dict[str, str], folder: Path, tmp_path: Path
) -> None:
    """Where the last steps have nothing to draft, there are states of no token."""
    write_eagle3(
        tmp_path / "head", eagle3_tensors(FACTS, torch.float32, False, False), replace(FACTS, aux_layers=(0, 1, 2))
    )
    entry = {"method": "eagle3", "num_speculative_tokens": 3, "model": str(tmp_path / "head")}
    options = {**OPTIONS, "dtype": "bfloat16", **precision}
    with where_there_are_native_kernels():
        llm = LLM(str(folder), kernels="native", speculative_config=entry, **options)
    params = SamplingParams(temperature=0, max_tokens=9)
    for prompt in PROMPTS:
        plain, drafted = (
            llm.generate(prompt, params, speculation=SpeculationParams(name))[0].outputs[0]
            for name in ("none", "eagle3")
        )
        assert drafted.token_ids == plain.token_ids
        assert drafted.speculation.num_drafts >= 2
