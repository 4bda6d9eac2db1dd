"""A head of any layout that specdec reads, as facts and tensors under their authors' names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from specdec.kernels import reference
from specdec.models.eagle import EagleHead
from specdec.models.facts import Facts
from specdec.models.head_codes import CONFIG_KEY, SCALE, CodedHeadTensors
from specdec.models.head_config import AUX_LAYER_IDS, EagleConfig
from specdec.models.head_files import HeadFiles, open_head
from specdec.models.head_weights import EagleNames, MedusaLayout
from specdec.models.heads import PreparedHead, head_kind, prepare_head
from specdec.models.safetensors_file import read_json
from specdec.train.formats import eagle, eagle3
from specdec.train.formats.facts import (
    DEFAULT_SPECULATIVE_TOKENS,
    Eagle3Facts,
    HeadFacts,
    LayerFacts,
    MedusaFacts,
    Target,
)
from specdec.train.formats.precision import Stored
from specdec.train.formats.stand_in import stand_in

_FUSED = {
    "self_attn.qkv_proj.": ("self_attn.q_proj.", "self_attn.k_proj.", "self_attn.v_proj."),
    "mlp.gate_up_proj.": ("mlp.gate_proj.", "mlp.up_proj."),
}
"""Matrices that a file may hold as one."""


@dataclass(frozen=True)
class ReadHead:
    """A whole head."""

    facts: HeadFacts
    stored: Stored


def read_head(path: Path) -> ReadHead:
    """The head at `path`, a directory or a file, all of its tensors in memory in the file's own numbers.

    ValueError, in one line, for one that is damaged, incomplete or not supported.
    """
    files = open_head(path)
    kind = head_kind(path)
    prepared = prepare_head(path, target=_target(files, kind), kernels=reference)
    quantization = read_json(files.config_path)[CONFIG_KEY] if isinstance(files.tensors, CodedHeadTensors) else None
    if kind == "medusa":
        return ReadHead(_medusa_facts(files), Stored(_medusa_tensors(files), quantization))
    assert isinstance(prepared.head, EagleHead)
    layer = _layer_facts(files, prepared.head.config)
    tensors = dict(_eagle_tensors(files, prepared, eagle.LAYER if kind == "eagle" else eagle3.LAYER))
    facts = layer if kind == "eagle" else _eagle3_facts(files, layer, prepared.head.config)
    return ReadHead(facts, Stored(tensors, quantization))


def _target(files: HeadFiles, kind: str) -> Any:
    """Whatever target the head is for, as far as its sizes go."""
    facts, layer = _sections(files)
    names = files.tensors.names()
    if kind == "medusa":
        matrix = _medusa_layout(files).output_matrix(0)
        shape = files.tensors.shape(matrix) if matrix in names else ()
        rows, width = shape if len(shape) == 2 else (1, 1)  # then the loader says what is missing
        return stand_in(hidden_size=width, vocab_size=facts.optional_integer("vocab_size") or rows)
    hidden = facts.optional_integer("target_hidden_size") or layer.integer("hidden_size")
    ids = _aux_layers(files) or ()
    return stand_in(hidden_size=hidden, vocab_size=layer.integer("vocab_size"), aux_layers=tuple(ids))


def _sections(files: HeadFiles) -> tuple[Facts, Facts]:
    """The config, and what it says of the layer: the same, or a section of its own."""
    where = str(files.config_path)
    facts = Facts(files.config, {}, where)
    if "speculators_model_type" not in files.config:
        return facts, facts
    return facts, Facts(facts.mapping("transformer_layer_config"), {}, f"{where}: transformer_layer_config")


def _aux_layers(files: HeadFiles) -> tuple[int, ...] | None:
    facts, _ = _sections(files)
    section = Facts(facts.mapping("eagle_config"), {}, facts.where)
    ids = (facts if section.get(AUX_LAYER_IDS) is None else section).integers(AUX_LAYER_IDS)
    return None if ids is None else tuple(ids)


def _layer_facts(files: HeadFiles, config: EagleConfig) -> LayerFacts:
    _, layer = _sections(files)
    model, rope = config.model, config.model.layers[0].rope
    assert rope is not None
    return LayerFacts(
        hidden_size=model.hidden_size,
        intermediate_size=model.intermediate_size,
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        rms_norm_eps=model.rms_norm_eps,
        rope_theta=rope.theta,
        # A scaling stretches what the model reaches, and is written beside the limit.
        max_position_embeddings=layer.optional_integer("max_position_embeddings") or model.max_position_embeddings,
        vocab_size=model.vocab_size,
        target=_served(files),
        model_type="llama" if model.qk_norm == "none" else "qwen3",
        rope_scaling=rope.scaling,
        speculative_tokens=_speculative_tokens(files),
    )


def _eagle3_facts(files: HeadFiles, layer: LayerFacts, config: EagleConfig) -> Eagle3Facts:
    return Eagle3Facts(
        hidden_size=layer.hidden_size,
        intermediate_size=layer.intermediate_size,
        num_heads=layer.num_heads,
        num_kv_heads=layer.num_kv_heads,
        head_dim=layer.head_dim,
        rms_norm_eps=layer.rms_norm_eps,
        rope_theta=layer.rope_theta,
        max_position_embeddings=layer.max_position_embeddings,
        vocab_size=layer.vocab_size,
        draft_vocab_size=config.draft_vocab_size,
        target_hidden_size=config.target_hidden_size,
        aux_layers=_aux_layers(files),
        norm_before_residual=config.norm_before_residual,
        target=layer.target,
        model_type=layer.model_type,
        rope_scaling=layer.rope_scaling,
        speculative_tokens=layer.speculative_tokens,
    )


def _served(files: HeadFiles) -> Target:
    facts, _ = _sections(files)
    name = facts.text("base_model_name_or_path")
    section = Facts(facts.mapping("speculators_config"), {}, f"{facts.prefix}speculators_config")
    verifier = Facts(section.mapping("verifier"), {}, f"{facts.prefix}verifier")
    architectures = verifier.get("architectures")
    first = architectures[0] if isinstance(architectures, list) and architectures else None
    return Target(name=verifier.text("name_or_path") or name, architecture=first if isinstance(first, str) else None)


def _speculative_tokens(files: HeadFiles) -> int:
    facts, _ = _sections(files)
    methods = Facts(facts.mapping("speculators_config"), {}, facts.where).get("proposal_methods")
    if not isinstance(methods, list) or not methods or not isinstance(methods[0], Mapping):
        return DEFAULT_SPECULATIVE_TOKENS
    first = Facts(methods[0], {}, f"{facts.prefix}proposal_methods")
    return first.optional_integer("speculative_tokens") or DEFAULT_SPECULATIVE_TOKENS


def _eagle_tensors(files: HeadFiles, prepared: PreparedHead, layer: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Without what nothing needs, such as copies of the target's tensors; fused matrices taken apart."""
    names = files.tensors.names()
    spelling = EagleNames.of(names) or EagleNames()
    assert isinstance(prepared.head, EagleHead)
    model = prepared.head.config.model
    sizes = {
        "self_attn.qkv_proj.": [
            count * model.head_dim for count in (model.num_heads, model.num_kv_heads, model.num_kv_heads)
        ],
        "mlp.gate_up_proj.": [model.intermediate_size] * 2,
    }
    kept = [name for name in names if name not in prepared.plan.ignored or name in ("d2t", "t2d")]
    for name in kept:
        (ours,) = spelling.canonical([name])
        ours = layer + ours.removeprefix("layer.") if ours.startswith("layer.") else ours
        fused = next((part for part in _FUSED if f"{layer}{part}" in ours), None)
        for suffix, tensor in _parts(files, name):
            if fused is None:
                yield ours + suffix, tensor
                continue
            for part, rows in zip(_FUSED[fused], torch.split(tensor, sizes[fused]), strict=True):
                yield ours.replace(fused, part) + suffix, rows


def _parts(files: HeadFiles, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    """A tensor as it stands in the file, and its scales if it is codes; with what is added to its name."""
    tensors = files.tensors
    yield "", tensors.read_any(name)
    scales = tensors.read_scales(name) if isinstance(tensors, CodedHeadTensors) else None
    if scales is not None:
        yield SCALE, scales


def _medusa_facts(files: HeadFiles) -> MedusaFacts:
    layout = _medusa_layout(files)
    rows, width = files.tensors.shape(layout.output_matrix(0))
    facts, _ = _sections(files)
    return MedusaFacts(
        hidden_size=width,
        vocab_size=facts.optional_integer("vocab_size") or rows,
        draft_vocab_size=rows if "d2t" in files.tensors.names() else None,
        num_heads=layout.num_heads,
        num_layers=layout.num_layers,
        target=_served(files),
    )


def _medusa_tensors(files: HeadFiles) -> dict[str, torch.Tensor]:
    prefix = _medusa_layout(files).prefix
    return {
        name.removeprefix(prefix) + suffix: tensor
        for name in files.tensors.names()
        for suffix, tensor in _parts(files, name)
    }


def _medusa_layout(files: HeadFiles) -> MedusaLayout:
    layout = MedusaLayout.of(files.tensors.names())
    assert layout is not None, "its names have shown that it is one"
    return layout
