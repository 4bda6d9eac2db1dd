"""The adapters of what is installed here: transformers, and specdec itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from specdec.config import EngineConfig, SpeculativeConfig
from specdec.eval.peers.generation import Load
from specdec.eval.peers.run_openvino import weights_of
from specdec.eval.peers.run_specdec import SpecdecPeer, config_text
from specdec.eval.peers.run_transformers import load
from specdec.types import SamplingParams
from tests.eval.helpers import toy_engine
from tests.models.cases import CASES, build
from tests.toys import generate

PROMPTS = [[3, 4, 5, 6, 7], [8, 9], [10, 11, 12]]


def asked(model: Path, **options: str) -> Load:
    return Load(str(model), torch.get_num_threads(), 64, 4, options)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    build(CASES["llama"]()).save_pretrained(folder)
    return folder


def test_transformers_answers_batches_as_it_answers_each_alone(tiny: Path) -> None:
    peer = load(asked(tiny))
    assert peer.library.startswith("transformers 5")
    assert peer.precision == "float32"
    alone = [peer.generate([ids], 6) for ids in PROMPTS]
    together = peer.generate(PROMPTS, 6)
    assert together.token_ids == [each.token_ids[0] for each in alone]
    for told, size in [*((each, 1) for each in alone), (together, 3)]:
        assert [len(ids) for ids in told.token_ids] == [6] * size, "no end before its time"
        assert told.first_tokens == size
        assert told.first_token_s is not None
        assert 0 < told.first_token_s < told.total_s


def test_transformers_takes_a_dtype_and_prompt_lookup(tiny: Path) -> None:
    plain, lookup = load(asked(tiny)), load(asked(tiny, prompt_lookup="3"))
    prompt = [3, 4, 5, 3, 4, 5, 3, 4]
    told = lookup.generate([prompt], 12)
    assert told.token_ids == plain.generate([prompt], 12).token_ids
    assert told.first_tokens >= 1
    assert load(asked(tiny, dtype="bfloat16")).precision == "bfloat16"
    with pytest.raises(ValueError, match="no option 'speed'; its options are dtype, prompt_lookup"):
        load(asked(tiny, speed="1"))


@pytest.mark.parametrize("proposer", ["none", "ngram"])
def test_specdec_answers_as_its_engine_does_and_reuses_nothing(proposer: str) -> None:
    prompts = [[97, 98, 99] * 4, [100, 101]]
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, seed=0)
    expected = [output.outputs[0].token_ids for output in generate(toy_engine(proposer=proposer), prompts, params)]
    engine = toy_engine(proposer=proposer)
    peer = SpecdecPeer(engine)
    assert peer.precision == "float64"
    for _ in range(2):
        before = engine.runner.model.num_computed
        told = peer.generate(prompts, 20)
        assert told.token_ids == expected
        assert told.first_tokens == 2
        assert told.first_token_s is not None
        assert 0 < told.first_token_s < told.total_s
        assert engine.runner.model.num_computed - before >= 14 + 2 * 19, "the prompts are computed again"


def test_specdec_goes_on_after_a_group_that_it_refused() -> None:
    engine = toy_engine()
    peer = SpecdecPeer(engine)
    with pytest.raises(ValueError, match="300 tokens"):
        peer.generate([[97], [98] * 300], 4)
    assert not engine.has_unfinished_requests()
    assert len(peer.generate([[97], [98]], 4).token_ids) == 2


def test_a_configuration_comes_back_as_it_was() -> None:
    tree = SpeculativeConfig("draft", 6, {"num_draft_layers": 3, "tree": [[0], [0, 0]]})
    for config in (
        EngineConfig("m", seed=4, verifier="block", speculative=(tree,)),
        EngineConfig("m", dtype="float64"),
    ):
        assert EngineConfig.from_mapping(json.loads(config_text(config))) == config


def test_openvinos_precision_is_that_of_most_bytes(tmp_path: Path) -> None:
    constants = [("f32", 100), ("u4", 900), ("f16", 200), ("f32", 150)]
    lines = [f'<data element_type="{kind}" shape="1" offset="0" size="{size}" />' for kind, size in constants]
    (tmp_path / "openvino_model.xml").write_text("\n".join(lines))
    assert weights_of(tmp_path) == "u4"
    (tmp_path / "x.gguf").touch()
    assert weights_of(tmp_path / "x.gguf") == "as in x.gguf"
