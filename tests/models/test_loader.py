"""Checkpoints on disk: layouts that load, and damage that is told in one line."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Gemma3Config, Gemma3ForConditionalGeneration, PreTrainedModel

from specdec import LLM
from specdec.kernels import reference
from specdec.models.config import ModelConfig
from specdec.models.decoder import Decoder
from specdec.models.loader import HuggingFaceCheckpoint, load_model, open_checkpoint
from tests.engine.test_draft_files import save as save_bytes_model
from tests.models.cases import BASE, CASES, build, load, tokens, transformers_logits
from tests.models.stepping import chunked_logits

PROMPT = tokens(24)
CPU = torch.device("cpu")


def saved(case: str, directory: Path) -> PreTrainedModel:
    model = build(CASES[case]())
    model.save_pretrained(directory)
    return model


def rewrite(directory: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    """Replace the tensors of the directory's single file by what `change` makes of them."""
    path = directory / "model.safetensors"
    save_file({name: t.contiguous() for name, t in change(load_file(path)).items()}, path)


def edit_config(directory: Path, **facts: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | facts))


def agrees(decoder: Decoder, model: PreTrainedModel) -> bool:
    logits = chunked_logits(decoder, [PROMPT], len(PROMPT))[0]
    return (logits - transformers_logits(model, PROMPT)).abs().max().item() < 1e-4


def error_of(directory: Path, **options: Any) -> str:
    with pytest.raises(ValueError, match=r".") as error:
        load(directory, **options)
    message = str(error.value)
    assert "\n" not in message
    return message


# Layouts


def test_shards_with_an_index(tmp_path: Path) -> None:
    model = build(CASES["llama"]())
    model.save_pretrained(tmp_path, max_shard_size="60KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    assert agrees(load(tmp_path), model)


def test_shards_without_an_index(tmp_path: Path) -> None:
    model = build(CASES["llama"]())
    model.save_pretrained(tmp_path, max_shard_size="60KB")
    (tmp_path / "model.safetensors.index.json").unlink()
    assert agrees(load(tmp_path), model)


def test_experts_in_one_tensor(tmp_path: Path) -> None:
    """As transformers 5 holds them in memory."""
    for case in ("mixtral", "qwen3_moe"):
        directory = tmp_path / case
        model = saved(case, directory)
        state = dict(model.state_dict())
        assert any(name.endswith("experts.gate_up_proj") for name in state)
        rewrite(directory, lambda _, state=state: state)
        assert agrees(load(directory), model)


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_the_text_part_of_a_model_that_sees(prefix: str, tmp_path: Path) -> None:
    text = CASES["gemma3"]()
    vision = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = Gemma3Config(text_config=text.to_dict(), vision_config={**vision, "image_size": 28, "patch_size": 14})
    Gemma3ForConditionalGeneration(config).save_pretrained(tmp_path)
    model = build(text)
    tensors = {name.replace("model.", prefix, 1): t for name, t in model.state_dict().items() if "lm_head" not in name}

    def swap_text(old: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: t for name, t in old.items() if not name.startswith("language_model.")} | tensors

    rewrite(tmp_path, swap_text)
    assert any("vision_tower" in name for name in open_checkpoint(tmp_path).names())
    assert agrees(load(tmp_path), model)


def test_left_over_rotary_buffers_are_ignored(tmp_path: Path) -> None:
    model = saved("llama", tmp_path)
    rewrite(tmp_path, lambda old: old | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)})
    assert agrees(load(tmp_path), model)


def test_a_tied_output_matrix_in_the_file(tmp_path: Path) -> None:
    """The same as the embedding: tied. Another one: it is used, as transformers does."""
    model = saved("llama_biased", tmp_path)
    embedding = model.get_input_embeddings().weight.detach()
    rewrite(tmp_path, lambda old: old | {"lm_head.weight": embedding.clone()})
    tied = load(tmp_path)
    assert tied.lm_head is None
    assert agrees(tied, model)
    rewrite(tmp_path, lambda old: old | {"lm_head.weight": 2 * embedding})
    untied = load(tmp_path)
    hidden = torch.randn(3, 64)
    assert torch.allclose(untied.compute_logits(hidden), 2 * tied.compute_logits(hidden))


# Facts beside the weights


def test_eos_ids_come_from_the_generation_config_first(tmp_path: Path) -> None:
    saved("llama", tmp_path)
    (tmp_path / "generation_config.json").unlink()
    assert open_checkpoint(tmp_path).config.eos_token_ids == (2,)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 9]}')
    assert open_checkpoint(tmp_path).config.eos_token_ids == (7, 9)
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.5}')
    assert open_checkpoint(tmp_path).config.eos_token_ids == (2,)


def test_dtype(tmp_path: Path) -> None:
    build(CASES["llama"]()).to(torch.bfloat16).save_pretrained(tmp_path)
    dtypes = [load(tmp_path, dtype).kv_layout().dtype for dtype in ("auto", "float32", "float16")]
    assert dtypes == [torch.bfloat16, torch.float32, torch.float16]
    assert {p.dtype for p in load(tmp_path, "float64").parameters()} == {torch.float64}
    config = json.loads((tmp_path / "config.json").read_text())
    del config["dtype"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert open_checkpoint(tmp_path).config.dtype == "bfloat16"
    assert "unknown dtype 'bfloat61'; did you mean 'bfloat16'" in error_of(tmp_path, dtype="bfloat61")


def test_max_model_len(tmp_path: Path) -> None:
    saved("llama", tmp_path)
    assert load(tmp_path).max_model_len == 128
    assert load(tmp_path, max_model_len=50).max_model_len == 50
    message = error_of(tmp_path, max_model_len=129)
    assert "129" in message
    assert "128" in message


# Reading


class Watched:
    """A checkpoint that notes how many of the tensors it handed out are alive at a time."""

    config: ModelConfig

    def __init__(self, inner: HuggingFaceCheckpoint) -> None:
        self.inner = inner
        self.config = inner.config
        self.alive: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()
        self.most_alive = 0
        self.reads: list[str] = []

    def names(self) -> list[str]:
        return self.inner.names()

    def shape(self, name: str) -> tuple[int, ...]:
        return self.inner.shape(name)

    def read(self, name: str) -> torch.Tensor:
        tensor = self.inner.read(name).clone()
        self.alive.add(tensor)
        self.reads.append(name)
        self.most_alive = max(self.most_alive, len(self.alive))
        return tensor


def test_tensors_are_read_once_and_one_at_a_time(tmp_path: Path) -> None:
    saved("qwen3_moe", tmp_path)
    watched = Watched(HuggingFaceCheckpoint(tmp_path))
    load_model(watched, dtype="float16", device=CPU, kernels=reference, max_model_len=None)
    assert watched.most_alive == 1
    assert sorted(watched.reads) == sorted(watched.names())


def test_nothing_is_read_of_a_checkpoint_that_does_not_fit(tmp_path: Path) -> None:
    saved("llama", tmp_path)
    rewrite(tmp_path, lambda old: {name: t for name, t in old.items() if "o_proj" not in name})
    watched = Watched(HuggingFaceCheckpoint(tmp_path))
    with pytest.raises(ValueError, match="missing"):
        load_model(watched, dtype="auto", device=CPU, kernels=reference, max_model_len=None)
    assert watched.reads == []


# Damage


def test_missing_unused_and_mis_shaped_tensors_are_listed_in_one_error(tmp_path: Path) -> None:
    saved("llama", tmp_path)

    def damage(old: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        del old["model.layers.1.self_attn.k_proj.weight"]
        old["model.norm.weight"] = torch.ones(63)
        return old | {"model.layers.0.self_attn.q_norm.weight": torch.ones(16)}

    rewrite(tmp_path, damage)
    message = error_of(tmp_path)
    assert "LlamaForCausalLM" in message
    assert "missing: model.layers.1.self_attn.k_proj.weight" in message
    assert "unused: model.layers.0.self_attn.q_norm.weight" in message
    assert "of the wrong shape: model.norm.weight [63], expected [64]" in message


def test_long_lists_are_shortened(tmp_path: Path) -> None:
    saved("mixtral", tmp_path)
    rewrite(tmp_path, lambda old: {name: t for name, t in old.items() if "experts" not in name})
    message = error_of(tmp_path)
    assert "and 37 more" in message
    assert len(message) < 1000


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2])
def test_quantised_weights_are_refused(dtype: torch.dtype, tmp_path: Path) -> None:
    saved("llama", tmp_path)
    rewrite(tmp_path, lambda old: {name: t.to(dtype) if "down" in name else t for name, t in old.items()})
    message = error_of(tmp_path)
    assert f"down_proj.weight holds {dtype} numbers" in message
    assert message.startswith(str(tmp_path / "model.safetensors"))


@pytest.mark.parametrize("keep", [0, 4, 200, -100])
def test_a_truncated_file_is_named(keep: int, tmp_path: Path) -> None:
    saved("llama", tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    assert error_of(tmp_path).startswith(f"{path} is damaged")


def test_a_corrupt_header_is_named(tmp_path: Path) -> None:
    saved("llama", tmp_path)
    path = tmp_path / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[8:20] = b"not a header"
    path.write_bytes(bytes(content))
    assert error_of(tmp_path).startswith(f"{path} is damaged")


def test_weights_that_cannot_be_opened_are_not_called_damaged(tmp_path: Path) -> None:
    saved("llama", tmp_path)
    path = tmp_path / "model.safetensors"
    path.unlink()
    path.mkdir()
    assert error_of(tmp_path) == f"{path} cannot be read: Is a directory"


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    build(CASES["llama"]()).save_pretrained(tmp_path, max_shard_size="60KB")
    shard = sorted(tmp_path.glob("model-*.safetensors"))[1]
    shard.unlink()
    assert error_of(tmp_path).startswith(f"{shard} is missing")


@pytest.mark.parametrize("content", ["{", "[1]", "\x00", "[" * 100_000, '{"a": ' + "9" * 5000 + "}"], ids=range(5))
@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_malformed_json_is_named(file: str, content: str, tmp_path: Path) -> None:
    saved("llama", tmp_path)
    (tmp_path / file).write_text(content)
    message = error_of(tmp_path)
    assert message.startswith(str(tmp_path / file))
    assert "JSON" in message


def test_a_directory_without_config_or_weights(tmp_path: Path) -> None:
    assert error_of(tmp_path).startswith(f"{tmp_path / 'config.json'} is missing")
    (tmp_path / "config.json").write_text(json.dumps({**BASE, "architectures": ["LlamaForCausalLM"]}))
    assert "holds no model*.safetensors" in error_of(tmp_path)


def test_what_is_no_checkpoint(tmp_path: Path) -> None:
    assert "does not exist" in error_of(tmp_path / "nowhere")
    (tmp_path / "weights.bin").write_bytes(b"")
    assert "neither a model directory nor a .gguf file" in error_of(tmp_path / "weights.bin")


def test_an_unsupported_config_is_refused_before_weights_are_looked_for(tmp_path: Path) -> None:
    facts = {**BASE, "architectures": ["Qwen3ForCausalLM"], "layer_types": ["linear_attention"] * 3}
    (tmp_path / "config.json").write_text(json.dumps(facts))
    assert "cannot be rolled back" in error_of(tmp_path)


def test_an_error_names_the_config_file(tmp_path: Path) -> None:
    saved("llama", tmp_path)
    edit_config(tmp_path, hidden_act="relu")
    assert error_of(tmp_path).startswith(f"{tmp_path / 'config.json'}: hidden_act 'relu'")


def test_sizes_that_nothing_could_hold_are_refused_at_once(tmp_path: Path) -> None:
    saved("llama", tmp_path)
    edit_config(tmp_path, max_position_embeddings=2**30)
    assert "rotary tables" in error_of(tmp_path)
    assert "give a smaller max_model_len" in error_of(tmp_path)
    assert load(tmp_path, max_model_len=64).max_model_len == 64
    edit_config(tmp_path, max_position_embeddings=64, num_hidden_layers=9_999)
    assert "the config has 9999 layers, but the checkpoint only" in error_of(tmp_path)


def test_quantised_weights_in_float64_are_refused(tmp_path: Path) -> None:
    save_bytes_model(tmp_path, layers=1)
    with pytest.raises(ValueError, match="quantization 'int4' computes in float32, not in float64: give another dtype"):
        LLM(str(tmp_path), dtype="float64", quantization="int4")
