"""Draft models from files: tiny Hugging Face models through `LLM`, vocabularies, memory."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

from specdec import LLM, SamplingParams
from specdec.config import EngineConfig, SpeculativeConfig
from specdec.core.scheduler import Schedule, ScheduledRow
from specdec.core.sequence import Sequence
from specdec.engine.checkpoints import open_model
from specdec.engine.draft_models import SeparateModel, check_vocabularies, open_draft_models
from specdec.kernels import QuantizedWeight, reference
from specdec.models.loader import prepare_model
from specdec.models.safetensors_file import HuggingFaceCheckpoint
from specdec.step.batch import Batch
from specdec.step.kv_cache import KVCache
from specdec.tokenizer import Tokenizer
from specdec.train.formats.eagle3 import write_eagle3
from tests.train.formats.test_writing import FACTS, eagle3_tensors

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
PROMPTS = ["hello", "a longer prompt, in several blocks of the cache", "aaaa", "x"]


def save(path: Path, *, layers: int = 2, seed: int = 0, vocab_size: int = 256, pieces: list[str] = ALPHABET) -> Path:
    """A random Llama over bytes, as a Hugging Face directory."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        eos_token_id=0,
        initializer_range=0.5,
    )
    LlamaForCausalLM(config).save_pretrained(path)
    backend = Backend(models.BPE({piece: i for i, piece in enumerate(pieces)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({}))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("target"), layers=3)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another model with the same tokenizer and a few logits to spare."""
    return save(tmp_path_factory.mktemp("draft"), layers=1, seed=1, vocab_size=264)


def load(folder: Path, k: int = 3, **settings: Any) -> LLM:
    speculative = {"method": "draft", "num_speculative_tokens": k, **settings} if settings else None
    return LLM(str(folder), speculative_config=speculative, kv_cache_tokens=1024, block_size=8, dtype="float64")


def answers(llm: LLM, params: SamplingParams) -> tuple[list[list[int]], int, int]:
    """Token ids, drafted tokens and accepted tokens."""
    outputs = llm.generate(PROMPTS, params)
    stats = [output.outputs[0].speculation for output in outputs]
    return (
        [output.outputs[0].token_ids for output in outputs],
        sum(each.num_draft_tokens for each in stats),
        sum(each.num_accepted_tokens for each in stats),
    )


@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("own", [1, 2, 3])
def test_the_models_own_layers_draft_for_it(folder: Path, k: int, own: int) -> None:
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    tokens, drafted, accepted = answers(load(folder, k, num_draft_layers=own), params)
    assert tokens == answers(load(folder), params)[0]
    assert drafted > 0
    assert (accepted == drafted) == (own == 3)


def test_all_layers_are_accepted_whole_when_sampling(folder: Path) -> None:
    params = SamplingParams(temperature=0.8, top_p=0.9, max_tokens=60, ignore_eos=True, seed=4)
    _, drafted, accepted = answers(load(folder, 4, num_draft_layers=3), params)
    assert accepted == drafted > 0


def test_a_second_model_drafts(folder: Path, small: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    with pytest.warns(UserWarning, match="proposer draft: the first drafted token was accepted in"):
        tokens, drafted, accepted = answers(load(folder, 3, model=str(small)), params)
    assert tokens == answers(load(folder), params)[0]
    assert drafted > accepted
    same, drafted, accepted = answers(load(folder, 3, model=str(folder)), params)
    assert same == tokens
    assert accepted == drafted > 0


def test_the_drafts_kv_is_what_is_computed_from_scratch(folder: Path, small: Path) -> None:
    engine = load(folder, 3, model=str(small)).engine
    for i, prompt in enumerate(PROMPTS):
        engine.add_request(str(i), prompt, SamplingParams(temperature=1.0, max_tokens=50, ignore_eos=True, seed=i))
    proposer = engine.runner.proposers["draft"]
    for _ in range(12):
        engine.step()
    assert engine.scheduler.running
    for sequence in engine.scheduler.running:
        count = sequence.num_tokens - 1
        assert sequence.num_draft_computed_tokens >= count
        fresh = recomputed(proposer.model, sequence.token_ids[:count])
        slots = torch.tensor([sequence.block_table[p // 8] * 8 + p % 8 for p in range(count)])
        for ours, theirs in zip(proposer.kv.read(0, slots), fresh.read(0, torch.arange(count)), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def recomputed(model: Any, token_ids: list[int]) -> KVCache:
    from specdec.types import Request

    request = Request("fresh", tuple(token_ids), SamplingParams(), seed=0, arrival=0)
    kv = KVCache(model.kv_layout(), 16, 8, torch.device("cpu"))
    sequence = Sequence(request, 0, token_ids, block_table=list(range(16)))
    with torch.inference_mode():
        model.forward(Batch.build(Schedule((ScheduledRow(sequence, 0, len(token_ids)),)), 8, torch.device("cpu")), kv)
    return kv


def test_the_drafts_bytes_are_in_the_memory_plan(folder: Path, small: Path) -> None:
    plain, own, second = (
        load(folder).engine.memory,
        load(folder, num_draft_layers=2).engine.memory,
        load(folder, model=str(small)).engine.memory,
    )
    assert (plain.draft_bytes, own.draft_bytes) == (0, 0)
    assert second.draft_bytes > 264 * 32 * 8
    assert own.kv_bytes_per_token * 3 == plain.kv_bytes_per_token * 5
    assert second.kv_bytes_per_token * 3 == plain.kv_bytes_per_token * 4
    assert own.logits_bytes > plain.logits_bytes


def precision_of(folder: Path, draft: Path, **options: Any) -> tuple[bool, torch.dtype]:
    """Whether the draft model's matrices are quantised, and the dtype of its cache."""
    own = options.pop("own", {})
    llm = LLM(
        str(folder),
        speculative_config={"method": "draft", "model": str(draft), **own},
        kv_cache_tokens=256,
        dtype="float32",
        kernels="reference",
        **options,
    )
    model = llm.engine.runner.proposers["draft"].model  # type: ignore[attr-defined]
    return isinstance(model.output_matrix(), QuantizedWeight), model.kv_layout().dtype


def test_a_draft_model_has_the_models_precision_unless_it_is_given_its_own(folder: Path, small: Path) -> None:
    assert precision_of(folder, small) == (False, torch.float32)
    assert precision_of(folder, small, quantization="int8") == (True, torch.bfloat16)
    assert precision_of(folder, small, quantization="int4", kv_cache_dtype="int8") == (True, torch.int8)
    assert precision_of(folder, small, kv_cache_dtype="bfloat16") == (False, torch.bfloat16)
    own = {"quantization": "none", "kv_cache_dtype": "auto"}
    assert precision_of(folder, small, quantization="int4", kv_cache_dtype="int8", own=own) == (False, torch.float32)
    assert precision_of(folder, small, own={"quantization": "int4"}) == (True, torch.bfloat16)


def test_where_the_model_keeps_codes_that_a_draft_model_has_not_a_line_says_so(folder: Path, small: Path) -> None:
    speculative = (SpeculativeConfig("draft", 3, {"model": str(small)}),)
    config = EngineConfig(model=str(folder), quantization="gguf", speculative=speculative)
    checkpoint, tokenizer = open_model(str(folder))
    target = prepare_model(checkpoint, kernels=reference, max_model_len=None).decoder
    told: list[str] = []
    opened = open_draft_models(config, target, tokenizer, told.append)["draft"]
    assert isinstance(opened, SeparateModel)
    assert opened.quantization == "int8"
    assert told == [f"the draft model {small} is no .gguf file with codes to keep: its weights are int8"]


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading any weight ends the test."""

    def read(self: HuggingFaceCheckpoint, name: str) -> torch.Tensor:
        raise AssertionError(f"{name} was read")

    monkeypatch.setattr(HuggingFaceCheckpoint, "read", read)


@pytest.mark.usefixtures("no_weights")
def test_what_is_right_is_read(folder: Path, small: Path) -> None:
    for settings in ({}, {"num_draft_layers": 3}, {"model": str(small)}):
        with pytest.raises(AssertionError, match="was read"):
            load(folder, **settings)


def refused(folder: Path, **settings: Any) -> str:
    with pytest.raises(ValueError, match=r".") as error:
        load(folder, **settings)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.usefixtures("no_weights")
def test_more_layers_than_the_model_has_are_refused_before_weights_are_read(folder: Path) -> None:
    message = refused(folder, num_draft_layers=4)
    assert message == "num_draft_layers (4) is more than the 3 layers of the model"


@pytest.mark.usefixtures("no_weights")
def test_a_wrong_draft_model_is_refused_before_weights_are_read(folder: Path, small: Path, tmp_path: Path) -> None:
    nowhere = str(tmp_path / "nowhere.gguf")
    assert refused(folder, model=nowhere).startswith(f"the draft model {nowhere}: there is no model at '{nowhere}'")
    damaged = tmp_path / "damaged"
    shutil.copytree(small, damaged)
    (damaged / "model.safetensors").write_bytes(b"no tensors")
    assert refused(folder, model=str(damaged)).startswith(f"the draft model {damaged}: {damaged}/model.safetensors is")
    head = tmp_path / "head"
    write_eagle3(head, eagle3_tensors(FACTS, torch.float32, False, False), FACTS)
    message = refused(folder, model=str(head))
    assert message.startswith(f"the draft model {head}: it is a draft head of kind eagle3: give it with --proposer")


@pytest.mark.usefixtures("no_weights")
def test_a_precision_that_a_draft_model_cannot_have_is_refused_before_weights_are_read(
    folder: Path, small: Path
) -> None:
    model = str(small)
    assert refused(folder, model=model, quantization="gguf") == (
        f"the draft model {model}: quantization 'gguf' keeps the codes of a .gguf file; this model is not one"
    )
    assert "computes in float32, not in float64" in refused(folder, model=model, quantization="int8")
    assert "unknown quantization of the draft 'int3'" in refused(folder, model=model, quantization="int3")
    assert "unknown kv_cache_dtype of the draft 8" in refused(folder, model=model, kv_cache_dtype=8)
    assert "the draft's kv_cache_dtype is of a draft model" in refused(
        folder, num_draft_layers=1, kv_cache_dtype="int8"
    )


@pytest.mark.usefixtures("no_weights")
def test_missing_tensors_of_a_draft_model_are_listed_before_weights_are_read(folder: Path, tmp_path: Path) -> None:
    save(tmp_path, layers=1)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 2}))
    message = refused(folder, model=str(tmp_path))
    assert message.startswith(
        f"the draft model {tmp_path}: the checkpoint does not fit LlamaForCausalLM: tensors missing"
    )


@pytest.mark.usefixtures("no_weights")
def test_another_vocabulary_is_refused_with_its_first_difference(folder: Path, tmp_path: Path) -> None:
    swapped = [*ALPHABET[:100], ALPHABET[101], ALPHABET[100], *ALPHABET[102:]]
    message = refused(folder, model=str(save(tmp_path, pieces=swapped)))
    assert "another vocabulary than the model: token 100 is" in message


def tokenizer(pieces: list[str], special: list[str]) -> Tokenizer:
    backend = Backend(models.BPE({piece: i for i, piece in enumerate(pieces)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(special)
    return Tokenizer(backend)


def test_vocabularies_are_compared_by_content_and_not_by_size() -> None:
    ours = tokenizer(ALPHABET, ["<end>"])
    for draft in (tokenizer(ALPHABET, []), tokenizer(ALPHABET, ["<end>", "<more>"])):
        check_vocabularies(ours, draft, "d")
        check_vocabularies(draft, ours, "d")
    with pytest.raises(ValueError, match="token 256 is b'<stop>' there and b'<end>' here"):
        check_vocabularies(ours, tokenizer(ALPHABET, ["<stop>"]), "d")
