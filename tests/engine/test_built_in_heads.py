"""Heads that come with the package: found for their target, in `auto` too, and missed in one line."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from specdec import LLM, SamplingParams
from specdec.config import EngineConfig
from specdec.core.control.types import Member
from specdec.engine import Engine
from specdec.engine.build import build_engine, load_models
from specdec.engine.built_in_heads import choose_heads
from specdec.engine.portfolio import portfolio_members
from specdec.kernels import QuantizedWeight
from specdec.kernels.cpu.library import KIND_F32, KIND_Q8
from specdec.models.built_in import SHELF, BuiltInHead, HeadShelf, WeightsFile, file_sha256
from specdec.models.head_codes import dequantized
from specdec.proposers.auto import member_names
from specdec.train.formats.convert import convert
from specdec.train.formats.eagle3 import write_eagle3
from specdec.train.formats.facts import Eagle3Facts
from tests.cli.fake import run
from tests.engine.test_draft_files import PROMPTS, save
from tests.train.formats.test_writing import eagle3_tensors

PARAMS = SamplingParams(temperature=0, max_tokens=12)
NAME = "tiny-eagle3"
FACTS = Eagle3Facts(
    hidden_size=32,
    intermediate_size=16,
    num_heads=2,
    num_kv_heads=1,
    head_dim=16,
    rms_norm_eps=1e-5,
    rope_theta=1e4,
    max_position_embeddings=128,
    vocab_size=256,
    draft_vocab_size=200,
    target_hidden_size=32,
    aux_layers=(0, 1, 3),
)


class KeepsNothing:
    """A proposer from outside that says that it has no KV."""

    kv_caches = ()

    def __init__(self, settings: object, context: object) -> None: ...

    def propose(self, sequences: object, inp: object) -> None: ...

    def forget(self, sequence: object) -> None: ...


class SaysNothing(KeepsNothing):
    """One that does not say."""

    kv_caches = None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("target"), layers=4)


@pytest.fixture(scope="module")
def shelf(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> HeadShelf:
    weights = folder / "model.safetensors"
    known = WeightsFile(weights.stat().st_size, file_sha256(weights))
    head = BuiltInHead(
        NAME,
        "eagle3",
        "tiny",
        "a head",
        "Apache-2.0",
        draft_length=5,
        confidence_threshold=0.05,
        acceptance=(0.5, 0.25),
        files=(known,),
    )
    shelf = HeadShelf(tmp_path_factory.mktemp("heads"), (head,))
    torch.manual_seed(0)
    write_eagle3(shelf.path(head), eagle3_tensors(FACTS, torch.float32, False, False), FACTS, dtype="int8")
    return shelf


def config(folder: Path, *entries: str | dict[str, Any], **options: Any) -> EngineConfig:
    listed = [{"method": entry} if isinstance(entry, str) else entry for entry in entries]
    sizes = {"kv_cache_tokens": 1024, "block_size": 8, "kernels": "reference"}
    return EngineConfig.from_mapping({"model": str(folder), "speculative_config": listed, **sizes, **options})


def answers(engine: Engine) -> tuple[list[list[int]], int]:
    """Token ids, and how many tokens were drafted."""
    finished = {}
    for i, text in enumerate(PROMPTS):
        engine.add_request(str(i), text, PARAMS)
    while engine.has_unfinished_requests():
        finished |= {output.request_id: output.outputs[0] for output in engine.step() if output.finished}
    samples = [finished[str(i)] for i in range(len(PROMPTS))]
    return [sample.token_ids for sample in samples], sum(sample.speculation.num_draft_tokens for sample in samples)


@pytest.mark.parametrize("entry", ["eagle", "eagle3", {"method": "eagle", "model": NAME}])
def test_a_head_drafts_that_nobody_named(entry: str | dict[str, Any], folder: Path, shelf: HeadShelf) -> None:
    plain, _ = answers(build_engine(config(folder)))
    tokens, drafted = answers(build_engine(config(folder, entry), shelf=shelf))
    assert tokens == plain
    assert drafted > 0


def test_a_head_is_computed_in_the_files_own_codes_by_kernels_that_can(
    folder: Path, shelf: HeadShelf, tmp_path: Path
) -> None:
    engine = build_engine(config(folder, "eagle", kernels="native"), shelf=shelf)
    kind = engine.runner.proposers["eagle"].head.lm_head.weight.kind
    convert(shelf.path(shelf.heads[0]), tmp_path / "wide", layout="eagle3", dtype="float32")
    wide = build_engine(config(folder, {"method": "eagle3", "model": str(tmp_path / "wide")}, kernels="native"))
    assert (kind, wide.runner.proposers["eagle3"].head.lm_head.weight.kind) == (KIND_Q8, KIND_F32)
    tokens, drafted = answers(engine)
    assert tokens == answers(build_engine(config(folder, kernels="native")))[0]
    assert drafted > 0
    # The others would unpack them at every call.
    plain = build_engine(config(folder, "eagle"), shelf=shelf).runner.proposers["eagle"].head.lm_head.weight
    assert isinstance(plain, torch.Tensor)


def test_what_is_not_in_codes_stays_as_it_is(folder: Path, shelf: HeadShelf, tmp_path: Path) -> None:
    """As the output matrix of many quantised models."""
    shutil.copytree(shelf.path(shelf.heads[0]), tmp_path / "head")
    weights = tmp_path / "head" / "model.safetensors"
    tensors = load_file(weights)
    scales = tensors.pop("lm_head.weight_scale")
    tensors["lm_head.weight"] = dequantized(tensors["lm_head.weight"], scales, 32)
    save_file(tensors, weights)
    entry = {"method": "eagle3", "model": str(tmp_path / "head")}
    head = build_engine(config(folder, entry, kernels="native")).runner.proposers["eagle3"].head
    assert (head.lm_head.weight.kind, head.layer.mlp.gate_up_proj.weight.kind) == (KIND_F32, KIND_Q8)


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_a_quantised_target_has_a_head_of_8_bits_in_the_files_own_codes(
    quantization: str, folder: Path, shelf: HeadShelf
) -> None:
    plain, _ = answers(build_engine(config(folder, quantization=quantization)))
    engine = build_engine(config(folder, "eagle", quantization=quantization), shelf=shelf)
    head = engine.runner.proposers["eagle"].head
    stored = load_file(shelf.path(shelf.heads[0]) / "model.safetensors")
    assert isinstance(head.lm_head.weight, QuantizedWeight)
    assert torch.equal(head.lm_head.weight.codes, stored["lm_head.weight"])
    assert torch.equal(head.lm_head.weight.scales, stored["lm_head.weight_scale"])
    gate_up = [stored[f"midlayer.mlp.{name}_proj.weight"] for name in ("gate", "up")]
    assert torch.equal(head.layer.mlp.gate_up_proj.weight.codes, torch.cat(gate_up))
    tokens, drafted = answers(engine)
    assert tokens == plain
    assert drafted > 0


@pytest.mark.parametrize(("own", "bits"), [("none", 32), ("int8", 8), ("int4", 4)])
def test_a_heads_own_quantization(own: str, bits: int, folder: Path, shelf: HeadShelf, tmp_path: Path) -> None:
    """Of a head without codes too."""
    convert(shelf.path(shelf.heads[0]), tmp_path / "wide", layout="eagle3", dtype="float32")
    for model in (NAME, str(tmp_path / "wide")):
        entry = {"method": "eagle3", "model": model, "quantization": own}
        weight = build_engine(config(folder, entry), shelf=shelf).runner.proposers["eagle3"].head.inputs.fc.weight
        assert isinstance(weight, QuantizedWeight) == (own != "none")
        # Codes that the file has are kept: fewer bits they have in a file of fewer.
        coded = 8 if own == "int4" and model == NAME else bits
        assert (weight.codes.dtype == torch.uint8 if own != "none" else False) == (coded == 4)


def test_a_head_computes_in_float64_where_its_target_does(folder: Path, shelf: HeadShelf) -> None:
    engine = build_engine(config(folder, "eagle", dtype="float64"), shelf=shelf)
    assert engine.runner.proposers["eagle"].head.lm_head.weight.dtype == torch.float64


def test_quantizations_that_cannot_be(folder: Path, shelf: HeadShelf) -> None:
    with pytest.raises(ValueError, match=r"unknown quantization of a draft head 'int3'; did you mean 'int8'"):
        build_engine(config(folder, {"method": "eagle", "quantization": "int3"}), shelf=shelf)
    with pytest.raises(ValueError, match=r"a draft head's quantization computes in float32, not in float64"):
        build_engine(config(folder, {"method": "eagle", "quantization": "int8"}, dtype="float64"), shelf=shelf)


def test_the_same_model_elsewhere_and_another_one(folder: Path, shelf: HeadShelf, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    assert answers(build_engine(config(tmp_path / "copy", "eagle"), shelf=shelf))[1] > 0
    other = save(tmp_path / "other", layers=4, seed=1)
    with pytest.raises(ValueError, match=rf"built in for the model '{other}' \(built in: {NAME} for tiny\); name a"):
        build_engine(config(other, "eagle"), shelf=shelf)
    # Whoever names it has it for whatever model it fits.
    assert answers(build_engine(config(other, {"method": "eagle3", "model": NAME}), shelf=shelf))[1] > 0


def test_a_proposer_of_another_kind_is_told_what_there_is(folder: Path, shelf: HeadShelf) -> None:
    with pytest.raises(ValueError, match=r"^no head of the proposer 'medusa' is built in for the model") as error:
        build_engine(config(folder, "medusa"), shelf=shelf)
    assert "\n" not in str(error.value)
    assert "--draft-model" in str(error.value)


def test_a_head_that_is_not_installed_is_missed_before_anything_is_fetched(tmp_path: Path) -> None:
    nothing = HeadShelf(tmp_path, SHELF.heads)
    for method in ("eagle", "eagle3"):
        asked = EngineConfig.from_mapping({"speculative_config": {"method": method}})
        with pytest.raises(ValueError, match=r"^the draft head smollm2-135m-eagle3 is not installed in this copy"):
            choose_heads(asked, nothing)
    assert choose_heads(EngineConfig.from_mapping({"speculative_config": {"method": "auto"}}), nothing).for_auto is None


def test_generate_and_llm_find_it(folder: Path, shelf: HeadShelf, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(asked: EngineConfig, progress: object) -> Engine:
        return build_engine(asked, shelf=shelf)

    args = ["generate", "--raw", "--json", "--max-tokens=8", f"--model={folder}", "--kernels=reference", "hello"]
    code, out, err = run([*args, "--proposer=eagle"], build)
    assert code == 0, err
    assert json.loads(out)["speculation"]["num_draft_tokens"] > 0
    monkeypatch.setattr("specdec.engine.build.build_engine", partial(build_engine, shelf=shelf))
    llm = LLM(str(folder), speculative_config={"method": "eagle"}, kv_cache_tokens=1024, kernels="reference")
    assert llm.generate(PROMPTS, PARAMS)[0].outputs[0].speculation.num_draft_tokens > 0


# Among those that auto chooses from


def members(engine_config: EngineConfig, shelf: HeadShelf) -> tuple[str, ...]:
    return member_names(choose_heads(engine_config, shelf).complete(engine_config))


def test_auto_has_the_head_that_is_installed(folder: Path, shelf: HeadShelf, tmp_path: Path) -> None:
    assert members(config(folder, "auto"), shelf) == ("ngram", "suffix", "eagle3")
    assert members(config(folder, "auto", "recycling"), shelf) == ("ngram", "suffix", "recycling", "eagle3")
    assert members(config(folder, "auto"), HeadShelf(tmp_path, shelf.heads)) == ("ngram", "suffix")
    assert members(config(tmp_path, "auto"), shelf) == ("ngram", "suffix")
    assert members(config(folder, "ngram"), shelf) == ()


def test_auto_leaves_it_out_where_it_is_told_to(folder: Path, shelf: HeadShelf) -> None:
    assert members(config(folder, {"method": "auto", "built_in_head": False}), shelf) == ("ngram", "suffix")
    assert members(config(folder, {"method": "auto", "proposers": ["ngram"]}), shelf) == ("ngram",)
    with pytest.raises(ValueError, match=r"built_in_head of 'auto' must be true or false; got 'no'"):
        members(config(folder, {"method": "auto", "built_in_head": "no"}), shelf)


def test_auto_has_one_head_and_one_with_kv(folder: Path, shelf: HeadShelf) -> None:
    assert members(config(folder, "auto", "eagle"), shelf) == ("ngram", "suffix", "eagle")
    draft = {"method": "draft", "num_draft_layers": 1}
    assert members(config(folder, "auto", draft), shelf) == ("ngram", "suffix", "draft")
    assert members(config(folder, {"method": "auto", "proposers": ["eagle", "ngram"]}), shelf) == ("eagle", "ngram")


def test_auto_asks_a_proposer_from_outside_whether_it_has_kv(folder: Path, shelf: HeadShelf) -> None:
    without, unknown = f"{__name__}:KeepsNothing", f"{__name__}:SaysNothing"
    assert members(config(folder, "auto", without), shelf)[-1] == "eagle3"
    assert "eagle3" not in members(config(folder, "auto", unknown), shelf)


@pytest.mark.parametrize(("k", "length"), [(16, 5), (3, 3)])
def test_how_long_its_drafts_are_in_auto_and_where_they_end(
    k: int, length: int, folder: Path, shelf: HeadShelf
) -> None:
    asked = config(folder, {"method": "auto", "num_speculative_tokens": k})
    added = choose_heads(asked, shelf).for_auto
    assert added is not None
    assert added.num_speculative_tokens == length
    assert added.settings["confidence_threshold"] == 0.05
    found = controllers_members(asked, shelf)
    assert found["eagle3"].expected == (0.5, 0.25)
    assert found["ngram"].expected == ()
    assert [name for name, member in found.items() if member.ends_early] == ["eagle3"]


def controllers_members(asked: EngineConfig, shelf: HeadShelf) -> dict[str, Member]:
    """What an engine's controller is told of whom it chooses from, by name."""
    engine = build_engine(asked, shelf=shelf)
    assert engine.config is not None
    return {member.name: member for member in portfolio_members(engine.config, 16, engine.runner.proposers)}


def test_auto_answers_as_plain_decoding_does(folder: Path, shelf: HeadShelf) -> None:
    plain, _ = answers(build_engine(config(folder)))
    engine = build_engine(config(folder, "auto"), shelf=shelf)
    assert set(engine.runner.proposers) == {"ngram", "suffix", "eagle3", "none"}
    assert answers(engine)[0] == plain


def test_loaded_models_make_engines_with_fewer_proposers(folder: Path, shelf: HeadShelf) -> None:
    both = config(folder, "auto", "ngram")
    models = load_models(both, shelf=shelf)
    assert "eagle3" in models.engine(both).runner.proposers
    assert set(models.engine(config(folder, "ngram")).runner.proposers) == {"ngram", "none"}
    own = config(folder, {"method": "auto", "built_in_head": False})
    assert "eagle3" not in models.engine(own).runner.proposers
    without = load_models(own, shelf=shelf)
    assert "eagle3" not in without.engine(both).runner.proposers
