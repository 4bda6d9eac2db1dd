"""What the writers put on disk: the same facts and bits when read again, and whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.train.formats.eagle import write_eagle
from specdec.train.formats.eagle3 import write_eagle3
from specdec.train.formats.facts import Eagle3Facts, LayerFacts, MedusaFacts, Target
from specdec.train.formats.medusa import write_medusa
from specdec.train.formats.reading import read_head
from specdec.train.formats.speculators import write_speculators
from tests.models.head_writing import Tensors, load, medusa_tensors, target

DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])
SIZES = st.integers(1, 4)
NAMES = st.builds(
    Target, name=st.sampled_from([None, "some/model"]), architecture=st.sampled_from([None, "LlamaForCausalLM"])
)


@st.composite
def layers(draw: st.DrawFn) -> LayerFacts:
    kv_heads = draw(SIZES)
    return LayerFacts(
        hidden_size=draw(st.integers(1, 40)),
        intermediate_size=draw(st.integers(1, 9)),
        num_heads=kv_heads * draw(SIZES),
        num_kv_heads=kv_heads,
        head_dim=2 * draw(SIZES),
        rms_norm_eps=draw(st.sampled_from([1e-5, 1e-6])),
        rope_theta=draw(st.sampled_from([5000.0, 1e6])),
        max_position_embeddings=draw(st.integers(4, 64)),
        vocab_size=draw(st.integers(1, 20)),
        target=draw(NAMES),
        rope_scaling=draw(st.sampled_from([None, {"rope_type": "linear", "factor": 2.0}])),
        speculative_tokens=draw(SIZES),
    )


@st.composite
def eagle3_heads(draw: st.DrawFn) -> Eagle3Facts:
    layer = draw(layers())
    return Eagle3Facts(
        **vars(layer),
        draft_vocab_size=draw(st.integers(1, layer.vocab_size)),
        target_hidden_size=draw(st.integers(1, 30)),
        aux_layers=draw(st.none() | st.lists(st.integers(0, 12), min_size=1, max_size=4).map(tuple)),
        norm_before_residual=draw(st.booleans()),
    )


def layer_tensors(prefix: str, facts: LayerFacts | Eagle3Facts, input_size: int, biases: bool) -> Tensors:
    q, kv, hidden = facts.num_heads * facts.head_dim, facts.num_kv_heads * facts.head_dim, facts.hidden_size
    shapes = {"self_attn.q_proj": (q, input_size), "self_attn.k_proj": (kv, input_size)}
    shapes |= {"self_attn.v_proj": (kv, input_size), "self_attn.o_proj": (hidden, q)}
    inner = facts.intermediate_size
    shapes |= {"mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden), "mlp.down_proj": (hidden, inner)}
    tensors = {f"{prefix}{name}.weight": torch.randn(shape) for name, shape in shapes.items()}
    if biases:
        tensors |= {f"{prefix}{name}.bias": torch.randn(shape[0]) for name, shape in shapes.items()}
    return tensors | {f"{prefix}post_attention_layernorm.weight": torch.randn(hidden)}


def eagle3_tensors(facts: Eagle3Facts, dtype: torch.dtype, biases: bool, own_embedding: bool) -> Tensors:
    hidden, count = facts.hidden_size, 3 if facts.aux_layers is None else len(facts.aux_layers)
    tensors = layer_tensors("midlayer.", facts, 2 * hidden, biases)
    tensors |= {f"midlayer.{name}.weight": torch.randn(hidden) for name in ("hidden_norm", "input_layernorm")}
    tensors |= {"fc.weight": torch.randn(hidden, count * facts.target_hidden_size), "norm.weight": torch.randn(hidden)}
    tensors["lm_head.weight"] = torch.randn(facts.draft_vocab_size, hidden)
    if own_embedding or hidden != facts.target_hidden_size:
        tensors["embed_tokens.weight"] = torch.randn(facts.vocab_size, hidden)
    tensors = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    ids = torch.randperm(facts.vocab_size)[: facts.draft_vocab_size].sort().values
    return tensors | {"d2t": ids - torch.arange(len(ids)), "t2d": torch.isin(torch.arange(facts.vocab_size), ids)}


def assert_read(directory: Path, facts: object, tensors: Tensors) -> None:
    head = read_head(directory)
    assert head.facts == facts
    assert head.stored.tensors.keys() == tensors.keys()
    for name, tensor in head.stored.tensors.items():
        assert tensor.dtype == tensors[name].dtype
        assert torch.equal(tensor, tensors[name])


@given(eagle3_heads(), DTYPES, st.booleans(), st.booleans())
@settings(max_examples=25, deadline=None)
def test_eagle3_heads(facts: Eagle3Facts, dtype: torch.dtype, biases: bool, own_embedding: bool) -> None:
    tensors = eagle3_tensors(facts, dtype, biases, own_embedding)
    with TemporaryDirectory() as folder:
        write_speculators(Path(folder, "speculators"), tensors, facts)
        assert_read(Path(folder, "speculators"), facts, tensors)
        write_eagle3(Path(folder, "eagle3"), tensors, facts)
        # The authors' config has no place for these two.
        known = {"target": Target(name=facts.target.name), "speculative_tokens": 4}
        assert_read(Path(folder, "eagle3"), Eagle3Facts(**{**vars(facts), **known}), tensors)


@given(layers(), DTYPES, st.booleans(), st.booleans())
@settings(max_examples=15, deadline=None)
def test_eagle_heads(facts: LayerFacts, dtype: torch.dtype, bias: bool, own_embedding: bool) -> None:
    tensors = layer_tensors("layers.0.", facts, facts.hidden_size, bias)
    tensors["fc.weight"] = torch.randn(facts.hidden_size, 2 * facts.hidden_size)
    if bias:
        tensors["fc.bias"] = torch.randn(facts.hidden_size)
    if own_embedding:
        tensors["embed_tokens.weight"] = torch.randn(facts.vocab_size, facts.hidden_size)
    tensors = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    with TemporaryDirectory() as folder:
        write_speculators(Path(folder, "speculators"), tensors, facts)
        assert_read(Path(folder, "speculators"), facts, tensors)
        write_eagle(Path(folder, "eagle"), tensors, facts)
        known = {"target": Target(name=facts.target.name), "speculative_tokens": 4}
        assert_read(Path(folder, "eagle"), LayerFacts(**{**vars(facts), **known}), tensors)


@given(SIZES, SIZES, st.integers(1, 40), st.integers(1, 9), DTYPES, st.booleans())
@settings(max_examples=15, deadline=None)
def test_medusa_heads(heads: int, num_layers: int, hidden: int, vocab: int, dtype: torch.dtype, pickled: bool) -> None:
    facts = MedusaFacts(hidden_size=hidden, vocab_size=vocab, num_heads=heads, num_layers=num_layers)
    tensors: Tensors = {}
    for head in range(heads):
        for layer in range(num_layers):
            tensors[f"{head}.{layer}.linear.weight"] = torch.randn(hidden, hidden).to(dtype)
            tensors[f"{head}.{layer}.linear.bias"] = torch.randn(hidden).to(dtype)
        tensors[f"{head}.{num_layers}.weight"] = torch.randn(vocab, hidden).to(dtype)
    with TemporaryDirectory() as folder:
        write_medusa(Path(folder, "head"), tensors, facts, pickled=pickled)
        assert_read(Path(folder, "head"), facts, tensors)


# One small head for the rest

FACTS = Eagle3Facts(
    hidden_size=24,
    intermediate_size=5,
    num_heads=2,
    num_kv_heads=1,
    head_dim=4,
    rms_norm_eps=1e-5,
    rope_theta=1e4,
    max_position_embeddings=32,
    vocab_size=41,
    draft_vocab_size=7,
    target_hidden_size=24,
    aux_layers=(1, 2, 5),
)


def small_head() -> Tensors:
    torch.manual_seed(0)
    return eagle3_tensors(FACTS, torch.float32, False, False)


def refused(directory: Path, tensors: Tensors, overwrite: bool = False) -> str:
    with pytest.raises(ValueError, match=r".") as error:
        write_eagle3(directory, tensors, FACTS, overwrite=overwrite)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_the_authors_config_and_names(tmp_path: Path) -> None:
    write_eagle3(tmp_path / "head", small_head(), FACTS, dtype="bfloat16")
    config = json.loads((tmp_path / "head" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert config["draft_vocab_size"] == 7
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 2, 5]
    assert config["torch_dtype"] == "bfloat16"
    head = load(tmp_path / "head", target())
    assert head.draft_token_ids is not None
    assert head.draft_token_ids.tolist() == small_head()["t2d"].nonzero().flatten().tolist()


def test_marks_are_made_where_only_offsets_are_given(tmp_path: Path) -> None:
    tensors = small_head()
    marks = tensors.pop("t2d")
    write_eagle3(tmp_path / "head", tensors, FACTS)
    assert torch.equal(read_head(tmp_path / "head").stored.tensors["t2d"], marks)


def test_the_medusa_file_and_its_config(tmp_path: Path) -> None:
    facts = MedusaFacts(hidden_size=24, vocab_size=41, num_heads=3, target=Target(name="some/model"))
    write_medusa(tmp_path / "head", medusa_tensors(), facts, dtype="float16")
    assert {path.name for path in (tmp_path / "head").iterdir()} == {"config.json", "medusa_lm_head.safetensors"}
    config = json.loads((tmp_path / "head" / "config.json").read_text())
    assert (config["medusa_num_heads"], config["medusa_num_layers"]) == (3, 1)
    assert load(tmp_path / "head", target()).num_heads == 3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"midlayer.mlp.up_proj.weight": None}, "tensors missing: midlayer.mlp.up_proj.weight"),
        ({"lm_head.weight": torch.ones(6, 24)}, "of the wrong shape: lm_head.weight [6, 24], expected [7, 24]"),
        ({"gate.weight": torch.ones(2)}, "tensors unused: gate.weight"),
        ({"d2t": torch.full((7,), 40), "t2d": None}, "d2t leads to token 41, and the model's tokens are 0 to 40"),
        ({"midlayer.mlp.up_proj.bias": torch.ones(5)}, "a bias of up_proj and none of its like"),
    ],
)
def test_a_head_that_could_not_be_read_is_not_written(change: dict, said: str, tmp_path: Path) -> None:
    tensors = {name: tensor for name, tensor in (small_head() | change).items() if tensor is not None}
    message = refused(tmp_path / "head", tensors)
    assert said in message
    assert ".head-" not in message, "the folder that is worked in is nobody's business"
    assert list(tmp_path.iterdir()) == []


def test_a_head_is_replaced_only_where_that_is_asked_for(tmp_path: Path) -> None:
    head, other = tmp_path / "head", small_head()
    write_eagle3(head, other, FACTS)
    (head / "notes.txt").write_text("mine")
    other["fc.weight"] = other["fc.weight"] + 1
    assert "holds a head already" in refused(head, other)
    assert not torch.equal(read_head(head).stored.tensors["fc.weight"], other["fc.weight"])
    write_eagle3(head, other, FACTS, overwrite=True)
    assert torch.equal(read_head(head).stored.tensors["fc.weight"], other["fc.weight"])
    assert [path.name for path in tmp_path.iterdir()] == ["head"]
    assert len({path.stat().st_mode for path in head.iterdir()}) == 1, "who may read one file may read all"


def test_what_is_no_head_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "a.txt").write_text("dear")
    (tmp_path / "file").write_text("x")
    for overwrite in (False, True):
        assert "is there already and holds no head" in refused(tmp_path / "letters", small_head(), overwrite)
        assert "is a file; a head is a directory" in refused(tmp_path / "file", small_head(), overwrite)
    assert (tmp_path / "letters" / "a.txt").read_text() == "dear"


def test_a_new_head_that_fails_leaves_the_old_one(tmp_path: Path) -> None:
    head, broken = tmp_path / "head", small_head()
    write_eagle3(head, small_head(), FACTS)
    before = (head / "model.safetensors").read_bytes()
    del broken["norm.weight"]
    assert "tensors missing: norm.weight" in refused(head, broken, overwrite=True)
    assert (head / "model.safetensors").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["head"]


def test_an_empty_directory_is_filled_and_folders_above_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    for directory in (tmp_path / "empty", tmp_path / "a" / "b" / "head"):
        write_eagle3(directory, small_head(), FACTS)
        assert_read(directory, FACTS, small_head())
    monkeypatch.chdir(tmp_path)
    write_eagle3(Path("relative"), small_head(), FACTS)
    assert_read(tmp_path / "relative", FACTS, small_head())


def test_medusa_heads_of_fewer_tokens(tmp_path: Path) -> None:
    """Ours: the tokens are listed as in an EAGLE-3 head."""
    tensors = medusa_tensors(vocab_size=9)
    ids = torch.tensor([0, 3, 4, 7, 8, 11, 20, 33, 40])
    tensors["d2t"] = ids - torch.arange(9)
    facts = MedusaFacts(hidden_size=24, vocab_size=41, draft_vocab_size=9, num_heads=3)
    write_medusa(tmp_path / "head", tensors, facts)
    head = load(tmp_path / "head", target())
    assert head.draft_token_ids is not None
    assert torch.equal(head.draft_token_ids, ids)
    assert head(torch.ones(2, 24).double()).shape == (3, 2, 9)
    marks = torch.isin(torch.arange(41), ids)
    assert_read(tmp_path / "head", facts, tensors | {"t2d": marks})
    tensors["d2t"] = ids - torch.arange(9) + 1
    with pytest.raises(ValueError, match=r"d2t leads to token 41, and the model's tokens are 0 to 40"):
        write_medusa(tmp_path / "other", tensors, facts)
