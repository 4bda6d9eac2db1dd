"""Heads on disk: what kind they are, what of them is loaded, and every reason to refuse one, in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from specdec.models.decoder import Decoder
from specdec.models.head_files import TorchFile
from specdec.models.heads import head_kind
from specdec.models.safetensors_file import SafetensorsFiles
from tests.models.head_cases import CASES, Pair, difference
from tests.models.head_writing import (
    HIDDEN,
    MAX_LEN,
    VOCAB,
    Tensors,
    eagle3_tensors,
    eagle_tensors,
    load,
    load_eagle,
    mapping,
    medusa_tensors,
    target,
    write,
    write_eagle,
    write_eagle3,
    write_speculators,
)


def error_of(path: Path, to: Decoder | None = None, **options: Any) -> str:
    with pytest.raises(ValueError, match=r".") as error:
        load(path, to or target(), **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def outputs(count: int = 5) -> torch.Tensor:
    return torch.randn(count, HIDDEN, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


# Kinds


@pytest.mark.parametrize("name", CASES)
def test_the_kind_is_known_without_reading_weights(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = CASES[name].write(tmp_path / "head", CASES[name].tensors())
    for files in (TorchFile, SafetensorsFiles):
        monkeypatch.delattr(files, "read")
        monkeypatch.delattr(files, "read_any")
    assert head_kind(path) == name.split(":")[0]


def test_the_kind_of_medusa_files(tmp_path: Path) -> None:
    for i, file in enumerate(("medusa_lm_head.pt", "medusa_lm_head.safetensors", "model.safetensors")):
        assert head_kind(write(tmp_path / str(i), medusa_tensors(), None, file)) == "medusa"


def test_what_is_no_head_is_told_what_was_looked_for(tmp_path: Path) -> None:
    write(tmp_path, {"model.embed_tokens.weight": torch.ones(2, 2)}, {"architectures": ["LlamaForCausalLM"]})
    with pytest.raises(ValueError, match=r"is no draft head that is known: .*fc\.weight.*0\.0\.linear\.weight"):
        head_kind(tmp_path)
    with pytest.raises(ValueError, match=r"does not exist; expected the directory of a draft head$"):
        head_kind(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("value", "said"), [("mlp", "unknown speculators_model_type 'mlp'"), ([], "must be a name; got []")]
)
def test_other_speculators_are_refused(value: Any, said: str, tmp_path: Path) -> None:
    write_speculators(tmp_path, eagle3_tensors(), speculators_model_type=value)
    assert error_of(tmp_path).startswith(f"{tmp_path / 'config.json'}: ")
    assert said in error_of(tmp_path)


# What is loaded


def test_the_numbers_are_the_targets_unless_asked(tmp_path: Path) -> None:
    path = write_eagle3(tmp_path, eagle3_tensors())
    for dtype, expected in (("auto", torch.bfloat16), ("float32", torch.float32)):
        head = load_eagle(path, target(dtype=torch.bfloat16), dtype=dtype)
        assert head.kv_layout().dtype == expected
        assert {parameter.dtype for parameter in head.parameters()} == {expected}
        assert head.compute_logits(head.combine(torch.ones(2, 72))).dtype == torch.float32
    assert "unknown dtype 'int3'" in error_of(path, dtype="int3")


@pytest.mark.parametrize("name", ["eagle: neither", "eagle3: target's embedding"])
def test_a_head_of_other_numbers_than_the_target(name: str, tmp_path: Path) -> None:
    """What it shares with the target is converted on the way."""
    pair = Pair(name, tmp_path, torch.bfloat16)
    head = load_eagle(pair.directory, pair.target, dtype="float32")
    features = torch.ones(1, head.feature_size, dtype=torch.bfloat16)
    assert head.combine(features).shape == (1, HIDDEN)
    assert head.compute_logits(outputs().float()).dtype == torch.float32


def test_how_far_a_head_reaches(tmp_path: Path) -> None:
    path = write_eagle(tmp_path, eagle_tensors(), max_position_embeddings=64)
    assert load(path, target(max_model_len=MAX_LEN)).max_model_len == 64
    assert load(path, target(max_model_len=50)).max_model_len == 50
    assert load(path, target(), max_model_len=40).max_model_len == 40
    assert "max_model_len (65) is larger than the 64 positions" in error_of(path, max_model_len=65)
    assert "max_model_len (51) is larger than the 50 positions" in error_of(
        path, target(max_model_len=50), max_model_len=51
    )


def test_a_stretching_rope_stretches_the_reach(tmp_path: Path) -> None:
    scaling = {"type": "linear", "factor": 2.0}
    path = write_eagle(tmp_path, eagle_tensors(), max_position_embeddings=32, rope_scaling=scaling)
    head = load_eagle(path, target())
    assert head.max_model_len == 64
    assert head.config.model.layers[0].rope.scaling == {"rope_type": "linear", "factor": 2.0}


def test_the_bytes_of_a_head_are_those_beyond_the_target(tmp_path: Path) -> None:
    tables = 2 * MAX_LEN * 4 * 4
    shared = eagle_tensors(embeddings=False)
    head = load_eagle(write_eagle(tmp_path / "a", shared), target())
    assert head.weight_bytes == tables + 8 * sum(t.numel() for t in shared.values())
    tensors = eagle3_tensors()
    head = load_eagle(write_eagle3(tmp_path / "b", tensors), target())
    weights = {name: t for name, t in tensors.items() if name not in ("t2d", "d2t")}
    ids = tensors["d2t"].nbytes
    assert head.weight_bytes == tables + ids + 8 * sum(t.numel() for t in weights.values())
    assert head.kv_layout().bytes_per_token == 2 * 2 * 8 * 8


def test_the_target_is_no_part_of_the_head(tmp_path: Path) -> None:
    decoder = target()
    head = load_eagle(write_eagle(tmp_path, eagle_tensors(embeddings=False)), decoder)
    theirs = {id(tensor) for tensor in decoder.parameters()}
    assert not theirs & {id(tensor) for tensor in head.parameters()}


def test_left_over_tensors_are_ignored(tmp_path: Path) -> None:
    left = {"layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    load(write_eagle(tmp_path / "a", eagle_tensors() | left), target())
    left |= {"verifier_norm.weight": torch.ones(3), "verifier_lm_head.weight": torch.ones(3, 3)}
    load(write_speculators(tmp_path / "b", eagle3_tensors() | left), target())


def test_names_under_a_models_prefix(tmp_path: Path) -> None:
    def moved(tensors: Tensors) -> Tensors:
        return {name if name in ("lm_head.weight", "d2t", "t2d") else f"model.{name}": t for name, t in tensors.items()}

    for name, tensors, writer in (("a", eagle_tensors(), write_eagle), ("b", eagle3_tensors(), write_eagle3)):
        plain = load_eagle(writer(tmp_path / f"{name} plain", tensors), target())
        prefixed = load_eagle(writer(tmp_path / name, moved(tensors), bias=True), target())
        assert difference(plain.compute_logits(outputs()), prefixed.compute_logits(outputs())) == 0
        assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), prefixed.parameters(), strict=True))


# Tensors that do not fit


def test_missing_unused_and_mis_shaped_tensors_are_listed(tmp_path: Path) -> None:
    tensors = eagle3_tensors()
    del tensors["midlayer.hidden_norm.weight"]
    tensors["midlayer.mlp.up_proj.weight"] = torch.ones(3, 3)
    message = error_of(write_eagle3(tmp_path, tensors | {"midlayer.self_attn.q_proj.scale": torch.ones(1)}))
    assert message.startswith(f"{tmp_path} is no proper eagle3 head: tensors ")
    assert "missing: midlayer.hidden_norm.weight;" in message
    assert "unused: midlayer.self_attn.q_proj.scale;" in message
    assert "of the wrong shape: midlayer.mlp.up_proj.weight [3, 3], expected [20, 24]" in message


def without(*names: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {name: tensor for name, tensor in tensors.items() if name not in names}


def beside(*names: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: tensors | {name: torch.ones(HIDDEN) for name in names}


@pytest.mark.parametrize(
    ("change", "facts", "said"),
    [
        (without("fc.bias"), {"bias": None}, "missing: fc.bias"),
        (without("fc.bias"), {"bias": True}, "missing: fc.bias"),
        (without("layers.0.self_attn.k_proj.weight"), {}, "missing: layers.0.self_attn.k_proj.weight"),
        (without(), {"qkv_bias": True}, "missing: layers.0.self_attn.q_proj.bias, layers.0.self_attn.k_proj.bias"),
        (without(), {"attention_bias": True}, "missing: layers.0.self_attn.q_proj.bias"),
        (beside("lm_head.weight"), {}, "unused: lm_head.weight"),
        (beside("layers.0.input_layernorm.weight"), {}, "unused: layers.0.input_layernorm.weight"),
        (beside("layers.1.mlp.up_proj.weight"), {}, "unused: layers.1.mlp.up_proj.weight"),
        (beside("d2t"), {}, "unused: d2t"),
    ],
)
def test_tensors_of_eagle_that_do_not_fit(
    change: Callable[[Tensors], Tensors], facts: dict[str, Any], said: str, tmp_path: Path
) -> None:
    assert said in error_of(write_eagle(tmp_path, change(eagle_tensors()), **facts))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (without("norm.weight"), "missing: norm.weight"),
        (without("lm_head.weight"), "missing: lm_head.weight"),
        (without("fc.weight"), "missing: fc.weight"),
        (beside("midlayer.self_attn.k_norm.weight"), "unused: midlayer.self_attn.k_norm.weight"),
        (beside("input_norm.weight"), "unused: input_norm.weight"),
    ],
)
def test_tensors_of_eagle3_that_do_not_fit(change: Callable[[Tensors], Tensors], said: str, tmp_path: Path) -> None:
    whole = write_speculators(tmp_path, eagle3_tensors())
    config = json.loads((whole / "config.json").read_text())
    write(tmp_path, change(eagle3_tensors()), config)
    assert said in error_of(tmp_path)


def test_an_auxiliary_layer_too_few(tmp_path: Path) -> None:
    path = write_eagle3(tmp_path, eagle3_tensors(), eagle_aux_hidden_state_layer_ids=[1, 2])
    assert "of the wrong shape: fc.weight [24, 72], expected [24, 48]" in error_of(path)


@pytest.mark.parametrize("file", ["pytorch_model.bin", "model.safetensors"])
def test_quantised_weights_are_refused(file: str, tmp_path: Path) -> None:
    tensors = eagle_tensors()
    tensors["layers.0.mlp.up_proj.weight"] = torch.ones(20, 24, dtype=torch.int8)
    message = error_of(write_eagle(tmp_path, tensors, file))
    assert message.startswith(f"{tmp_path / file}: layers.0.mlp.up_proj.weight holds torch.int8 numbers")


# Vocabularies


def vocabulary(tmp_path: Path, ids: object) -> Path:
    path = tmp_path / "vocabulary.json"
    path.write_text(json.dumps(ids))
    return path


@pytest.mark.parametrize("soft_cap", [None, 2.0])
def test_an_eagle_head_takes_its_rows_of_the_targets_matrix(soft_cap: float | None, tmp_path: Path) -> None:
    ids, decoder = [7, 40, 0, 12], target(soft_cap=soft_cap)
    path = write_eagle(tmp_path / "head", eagle_tensors())
    whole = load_eagle(path, decoder)
    head = load(path, decoder, draft_vocab=vocabulary(tmp_path, ids))
    assert head.draft_token_ids.tolist() == ids
    assert difference(whole.compute_logits(outputs()), decoder.compute_logits(outputs())) == 0
    assert difference(head.compute_logits(outputs()), decoder.compute_logits(outputs())[:, ids]) < 1e-12
    assert (whole.num_logits, head.num_logits) == (VOCAB, 4)
    assert head.weight_bytes - whole.weight_bytes == 8 * 4 * HIDDEN + 8 * 4


def test_an_eagle3_head_keeps_its_rows(tmp_path: Path) -> None:
    path, ids = write_eagle3(tmp_path / "head", eagle3_tensors(draft_vocab=VOCAB)), [7, 40, 0, 12]
    head = load(path, target(), draft_vocab=vocabulary(tmp_path, ids))
    assert head.draft_token_ids.tolist() == ids
    whole = load_eagle(path, target())
    assert difference(head.compute_logits(outputs()), whole.compute_logits(outputs())[:, ids]) < 1e-12


def test_a_reduced_head_is_not_reduced_again(tmp_path: Path) -> None:
    path, listed = write_eagle3(tmp_path / "head", eagle3_tensors()), vocabulary(tmp_path, [1, 2])
    said = f"{path} has a draft vocabulary already, of 17 tokens; {listed} cannot be applied"
    assert error_of(path, draft_vocab=listed) == said


def test_a_mapping_of_every_token_is_none(tmp_path: Path) -> None:
    tensors = eagle3_tensors(draft_vocab=VOCAB) | mapping(torch.arange(VOCAB))
    assert load(write_eagle3(tmp_path / "a", tensors), target()).draft_token_ids is None
    shuffled = eagle3_tensors(draft_vocab=VOCAB) | mapping(torch.arange(VOCAB).flip(0))
    assert load(write_eagle3(tmp_path / "b", shuffled), target()).draft_token_ids.tolist() == [*range(VOCAB)][::-1]


def test_padding_of_the_vocabulary_is_dropped(tmp_path: Path) -> None:
    """A head padded beyond the target's vocabulary, in its embedding and its output matrix."""
    path, smaller = write_eagle3(tmp_path, eagle3_tensors(draft_vocab=VOCAB)), target(vocab_size=VOCAB - 6)
    head = load_eagle(path, smaller)
    assert (head.num_logits, head.draft_token_ids) == (VOCAB - 6, None)
    whole = load_eagle(path, target()).compute_logits(outputs())
    assert difference(head.compute_logits(outputs()), whole[:, : VOCAB - 6]) < 1e-12


def test_a_reduced_head_needs_its_mapping(tmp_path: Path) -> None:
    path = write_eagle3(tmp_path, without("d2t", "t2d")(eagle3_tensors()))
    said = f"{path} has no tensor d2t to say which 17 of 41 tokens it guesses (draft_vocab_size)"
    assert error_of(path) == said


def test_a_mapping_that_leads_nowhere_is_refused(tmp_path: Path) -> None:
    path = write_eagle3(tmp_path, eagle3_tensors() | {"d2t": torch.full((17,), VOCAB)})
    assert error_of(path) == f"{path}: d2t leads to token 41, and the model's tokens are 0 to 40"
