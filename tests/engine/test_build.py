"""What is found out about a model and its tokenizer before any weights are read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from specdec.engine.checkpoints import open_model
from specdec.models.hub import ALIASES
from tests.tokenizer import helpers


def save(directory: Path, vocab_size: int, added: int = 0) -> int:
    """A model directory with an empty model; the number of tokens that text can hold in its tokenizer."""
    backend = helpers.byte_level_backend()
    size: int = backend.get_vocab_size(with_added_tokens=False)
    backend.add_tokens([f"<added {i}>" for i in range(added)])
    backend.save(str(directory / "tokenizer.json"))
    facts = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 8}
    facts |= {"vocab_size": vocab_size, "max_position_embeddings": 16, "rms_norm_eps": 1e-6}
    (directory / "config.json").write_text(json.dumps({"model_type": "llama", **facts}))
    save_file({"lm_head.weight": torch.zeros(1)}, directory / "model.safetensors")
    return size


def test_a_tokenizer_of_a_larger_vocabulary_is_refused(tmp_path: Path) -> None:
    size = save(tmp_path, 10)
    with pytest.raises(ValueError, match="the tokenizer does not belong to this model") as refused:
        open_model(str(tmp_path))
    assert str(refused.value).endswith(f"it has {size} tokens, and the model's vocabulary 10")


def test_vocabularies_may_have_more_ids_than_the_tokenizer_and_fewer_than_its_added_tokens(tmp_path: Path) -> None:
    size = save(tmp_path, 10_000)
    assert open_model(str(tmp_path))[1].text_vocab_size == size
    save(tmp_path, size, added=3)
    assert open_model(str(tmp_path))[1].vocab_size > size + 3


def test_a_damaged_file_of_the_cache_can_be_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path))
    alias = ALIASES["smollm2-135m"]
    alias.path.parent.mkdir(parents=True)
    with alias.path.open("wb") as file:
        file.truncate(alias.size)
    with pytest.raises(ValueError, match=r"; delete the file, and smollm2-135m will be fetched again$"):
        open_model(alias.name)


def test_a_damaged_file_of_ones_own_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECDEC_CACHE", "~no-such-user")
    path = tmp_path / "own.gguf"
    path.write_bytes(b"no model")
    with pytest.raises(ValueError, match=f"{path}: not a GGUF file") as refused:
        open_model(str(path))
    assert "delete" not in str(refused.value)
