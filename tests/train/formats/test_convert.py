"""Every layout that is read becomes every layout that can express it, bit for bit, and the head computes the same."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from specdec.models.eagle import EagleHead
from specdec.models.medusa import MedusaHead
from specdec.train.formats.convert import LAYOUTS, convert
from specdec.train.formats.facts import Eagle3Facts, HeadFacts, LayerFacts, Target
from specdec.train.formats.reading import read_head
from tests.models.head_cases import CASES, EVERY_BIAS, QKV, features, prompt
from tests.models.head_stepping import chunked_outputs
from tests.models.head_writing import (
    TARGET_HIDDEN,
    VOCAB,
    Tensors,
    eagle3_tensors,
    eagle_tensors,
    load,
    medusa_tensors,
    target,
    write,
    write_eagle,
    write_eagle3,
    write_speculators,
)

QWEN, BIASED = "eagle3: speculators, qwen3", "eagle: qkv biases"
BEYOND = {(QWEN, "eagle3"), (BIASED, "speculators")}
"""Heads and layouts that cannot express them."""
FITTING = {
    "eagle": {"eagle", "speculators"},
    "eagle3": {"eagle3", "speculators"},
    "medusa": {"medusa", "medusa-pt"},
}
PAIRS = [
    (name, layout) for name in CASES for layout in sorted(FITTING[name.split(":")[0]]) if (name, layout) not in BEYOND
]


def logits(head: EagleHead | MedusaHead) -> list[torch.Tensor]:
    if isinstance(head, MedusaHead):
        return [head(torch.randn(3, TARGET_HIDDEN, generator=torch.Generator().manual_seed(0)).double())]
    tokens = prompt(9)
    combined = head.combine(features(head.kind, head.aux_layers, 8))
    outputs = chunked_outputs(head, [tokens], [combined], 4)[0]
    return [outputs, head.compute_logits(outputs)]


def own_facts(path: Path) -> HeadFacts:
    """What every layout says: not who the target is, nor how much is to be drafted."""
    facts = read_head(path).facts
    assert isinstance(facts, LayerFacts | Eagle3Facts)
    return replace(facts, target=Target(), speculative_tokens=1)


def assert_same(source: Path, copy: Path) -> None:
    """The loaded heads have the same facts, the same bits and the same logits."""
    one, other = load(source, target()), load(copy, target())
    if isinstance(one, EagleHead):
        assert isinstance(other, EagleHead)
        # The numbers of the file are of no moment to the computation.
        assert replace(one.config, model=replace(one.config.model, dtype="")) == replace(
            other.config, model=replace(other.config.model, dtype="")
        )
        assert one.max_model_len == other.max_model_len
    state, copied = dict(one.named_parameters()), dict(other.named_parameters())
    assert state.keys() == copied.keys()
    assert all(torch.equal(state[name], copied[name]) for name in state)
    if one.draft_token_ids is None:
        assert other.draft_token_ids is None
    else:
        assert other.draft_token_ids is not None
        assert torch.equal(one.draft_token_ids, other.draft_token_ids)
    with torch.inference_mode():
        assert all(torch.equal(a, b) for a, b in zip(logits(one), logits(other), strict=True))


@pytest.mark.parametrize(("name", "layout"), PAIRS)
def test_eagle_heads_of_every_layout(name: str, layout: str, tmp_path: Path) -> None:
    case = CASES[name]
    source = case.write(tmp_path / "source", case.tensors())
    convert(source, tmp_path / "copy", layout=layout)
    assert_same(source, tmp_path / "copy")
    assert sorted(file.name for file in (tmp_path / "copy").iterdir()) == ["config.json", "model.safetensors"]
    # Nothing is lost on the way: back in its own layout it is the same head still.
    for back in [back for other, back in PAIRS if other == name]:
        convert(tmp_path / "copy", tmp_path / back, layout=back)
        assert_same(source, tmp_path / back)
        assert own_facts(tmp_path / back) == own_facts(source)


@pytest.mark.parametrize("layout", ["medusa", "medusa-pt"])
@pytest.mark.parametrize("file", ["medusa_lm_head.pt", "medusa_lm_head.safetensors", "model.safetensors"])
@pytest.mark.parametrize("prefix", ["", "medusa_head."])
def test_medusa_heads_of_every_layout(layout: str, file: str, prefix: str, tmp_path: Path) -> None:
    tensors = medusa_tensors(num_layers=2, prefix=prefix)
    source = write(tmp_path / "source", tensors, {"base_model_name_or_path": "some/model"}, file)
    convert(source, tmp_path / "copy", layout=layout)
    assert_same(source, tmp_path / "copy")
    written = {file.name for file in (tmp_path / "copy").iterdir()}
    assert written == {"config.json", "medusa_lm_head." + ("safetensors" if layout == "medusa" else "pt")}
    config = json.loads((tmp_path / "copy" / "config.json").read_text())
    assert config["medusa_num_heads"] == 3
    assert config["medusa_num_layers"] == 2
    assert config["base_model_name_or_path"] == "some/model"


def test_medusa_heads_of_a_vocabulary_with_padding(tmp_path: Path) -> None:
    """Rows beyond the target's tokens are kept: the config does not say that they are none."""
    source = write(tmp_path / "source", medusa_tensors(vocab_size=VOCAB + 7), None, "medusa_lm_head.pt")
    convert(source, tmp_path / "copy", layout="medusa")
    assert_same(source, tmp_path / "copy")


def test_vllms_names_of_an_eagle3_head(tmp_path: Path) -> None:
    tensors = {name.replace("midlayer.", "model.layers.0."): tensor for name, tensor in eagle3_tensors().items()}
    renamed: Tensors = {
        name if name in ("lm_head.weight", "d2t", "t2d") or name.startswith("model.") else f"model.{name}": tensor
        for name, tensor in tensors.items()
    }
    assert "model.fc.weight" in renamed
    source = write_eagle3(tmp_path / "source", renamed)
    convert(source, tmp_path / "copy", layout="eagle3")
    assert_same(source, tmp_path / "copy")
    assert set(read_head(tmp_path / "copy").stored.tensors) == set(eagle3_tensors())


def test_fused_matrices_are_taken_apart(tmp_path: Path) -> None:
    tensors = eagle3_tensors(biases=EVERY_BIAS)
    for kind in ("weight", "bias"):
        for fused, parts in (("self_attn.qkv", "qkv"), ("mlp.gate_up", ("gate", "up"))):
            owner = fused.split(".")[0]
            names = [f"midlayer.{owner}.{part}_proj.{kind}" for part in parts]
            tensors[f"midlayer.{fused}_proj.{kind}"] = torch.cat([tensors.pop(name) for name in names])
    source = write_eagle3(tmp_path / "source", tensors, attention_bias=True, mlp_bias=True)
    convert(source, tmp_path / "copy", layout="speculators")
    assert_same(source, tmp_path / "copy")
    assert "layers.0.self_attn.k_proj.bias" in (tmp_path / "copy" / "model.safetensors").read_bytes().decode("latin1")


def test_a_stretched_rope_stays_as_it_is(tmp_path: Path) -> None:
    for i, scaling in enumerate(({"type": "linear", "factor": 2.0}, {"rope_type": "yarn", "factor": 4.0})):
        source = write_eagle(tmp_path / f"s{i}", eagle_tensors(), max_position_embeddings=16, rope_scaling=scaling)
        convert(source, tmp_path / f"a{i}", layout="speculators")
        convert(tmp_path / f"a{i}", tmp_path / f"b{i}", layout="eagle")
        assert_same(source, tmp_path / f"b{i}")


def test_what_the_speculators_library_adds(tmp_path: Path) -> None:
    """Copies of the target's tensors go; what is known of the target stays."""
    tensors = eagle3_tensors() | {"verifier_norm.weight": torch.ones(TARGET_HIDDEN)}
    source = write_speculators(tmp_path / "source", tensors)
    convert(source, tmp_path / "copy", layout="speculators")
    assert_same(source, tmp_path / "copy")
    config = json.loads((tmp_path / "copy" / "config.json").read_text())
    assert config["speculators_config"]["verifier"] == {
        "name_or_path": "some/model",
        "architectures": ["LlamaForCausalLM"],
    }
    assert config["speculators_config"]["proposal_methods"] == [{"proposal_type": "greedy", "speculative_tokens": 3}]
    assert "verifier_norm.weight" not in read_head(tmp_path / "copy").stored.tensors


# What cannot be


def refused(source: Path, to: Path, layout: str) -> str:
    with pytest.raises(ValueError, match=r".") as error:
        convert(source, to, layout=layout)
    assert "\n" not in str(error.value)
    assert not to.exists()
    return str(error.value)


def test_a_layout_is_for_heads_of_its_kind(tmp_path: Path) -> None:
    sources = {
        "eagle": write_eagle(tmp_path / "e1", eagle_tensors()),
        "eagle3": write_eagle3(tmp_path / "e3", eagle3_tensors()),
        "medusa": write(tmp_path / "m", medusa_tensors(), None, "medusa_lm_head.pt"),
    }
    for kind, source in sources.items():
        for layout in set(LAYOUTS) - FITTING[kind]:
            said = refused(source, tmp_path / "copy", layout)
            assert said.startswith(f"the layout {layout} is not for heads of kind {kind}")
            assert all(fitting in said for fitting in FITTING[kind])
    assert "unknown layout 'eagel'; did you mean 'eagle'?" in refused(sources["eagle"], tmp_path / "copy", "eagel")


def test_what_a_layout_cannot_express_is_named(tmp_path: Path) -> None:
    cases = [
        (CASES[QWEN].write(tmp_path / "a", CASES[QWEN].tensors()), "eagle3", "a layer of qwen3"),
        (
            write_eagle(tmp_path / "b", eagle_tensors(biases=QKV)),
            "speculators",
            "biases of q_proj, k_proj and v_proj and none of o_proj",
        ),
        (
            write_eagle(tmp_path / "c", eagle_tensors(biases=("self_attn.o_proj",))),
            "eagle",
            "a bias of o_proj and none of q_proj, k_proj and v_proj",
        ),
        (
            write_eagle3(tmp_path / "d", eagle3_tensors() | {"fc.bias": torch.ones(TARGET_HIDDEN)}),
            "eagle3",
            "a bias of fc in an EAGLE-3 head",
        ),
    ]
    for source, layout, what in cases:
        assert f"the layout {layout} cannot express {what}" in refused(source, tmp_path / "copy", layout)


def test_a_source_that_is_no_whole_head(tmp_path: Path) -> None:
    tensors = eagle3_tensors()
    del tensors["midlayer.mlp.up_proj.weight"]
    said = refused(write_eagle3(tmp_path / "a", tensors), tmp_path / "copy", "eagle3")
    assert said == (f"{tmp_path / 'a'} is no proper eagle3 head: tensors missing: midlayer.mlp.up_proj.weight")
    assert "does not exist" in refused(tmp_path / "nowhere", tmp_path / "copy", "eagle3")
    odd = write_eagle3(tmp_path / "b", eagle3_tensors() | {"gate.weight": torch.ones(2, 2)})
    assert "tensors unused: gate.weight" in refused(odd, tmp_path / "copy", "eagle3")
    other = write_eagle3(tmp_path / "c", eagle3_tensors(), norm_before_fc=True)
    assert "norm_before_fc true is not supported" in refused(other, tmp_path / "copy", "eagle3")
