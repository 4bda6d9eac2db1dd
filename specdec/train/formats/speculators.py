"""The layout of the speculators library, which vLLM reads: the layer's config is a section, and tensors are renamed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from specdec.models.head_config import AUX_LAYER_IDS
from specdec.train.formats import eagle, eagle3
from specdec.train.formats.facts import Eagle3Facts, LayerFacts, layer_config
from specdec.train.formats.layout import Biases, LaidOut, cannot, renamed, write
from specdec.train.formats.precision import Stored

LAYOUT = "speculators"
VERSION = "0.3.0"
"""Of the library whose layout this is."""


def write_speculators(
    directory: Path,
    tensors: Mapping[str, torch.Tensor],
    facts: Eagle3Facts | LayerFacts,
    *,
    dtype: str | None = None,
    overwrite: bool = False,
) -> None:
    """Write an EAGLE-3 or EAGLE-1/2 head, whose `tensors` bear their authors' names. See `write_eagle3`."""
    write(directory, lay_out(tensors, facts), Stored(tensors), facts, dtype=dtype, overwrite=overwrite)


def lay_out(tensors: Mapping[str, torch.Tensor], facts: Eagle3Facts | LayerFacts) -> LaidOut:
    return _eagle3(tensors, facts) if isinstance(facts, Eagle3Facts) else _eagle(tensors, facts)


def _eagle3(tensors: Mapping[str, torch.Tensor], facts: Eagle3Facts) -> LaidOut:
    layer = _layer(facts.layer, eagle3.biases_of(tensors, LAYOUT))
    config = {
        "architectures": ["Eagle3Speculator"],
        **_common("eagle3", layer, facts),
        "draft_vocab_size": facts.draft_vocab_size,
        "norm_before_residual": facts.norm_before_residual,
        "norm_before_fc": False,
        "target_hidden_size": facts.target_hidden_size,
        AUX_LAYER_IDS: None if facts.aux_layers is None else list(facts.aux_layers),
        "embed_requires_grad": False,
    }
    return LaidOut(config, renamed(eagle3.with_marks(tensors, facts.vocab_size), {eagle3.LAYER: "layers.0."}))


def _eagle(tensors: Mapping[str, torch.Tensor], facts: LayerFacts) -> LaidOut:
    layer = _layer(facts, Biases.of(tensors, eagle.LAYER, LAYOUT))
    config = {
        "architectures": ["EagleSpeculator", "LlamaDecoderLayer"],
        **_common("eagle", layer, facts),
        "transformer_layer_architecture": "LlamaDecoderLayer",
        "layernorms": False,
        "fusion_bias": "fc.bias" in tensors,
    }
    return LaidOut(config, renamed(tensors, {"fc.": "fusion_fc.", eagle.LAYER: "transformer."}))


def _layer(facts: LayerFacts, biases: Biases) -> dict[str, Any]:
    if biases.qkv != biases.output:
        raise cannot(LAYOUT, "biases of q_proj, k_proj and v_proj and none of o_proj")
    return layer_config(facts, attention_bias=biases.qkv, mlp_bias=biases.mlp)


def _common(algorithm: str, layer: Mapping[str, Any], facts: Eagle3Facts | LayerFacts) -> dict[str, Any]:
    architecture = facts.target.architecture
    return {
        "speculators_model_type": algorithm,
        "speculators_version": VERSION,
        "transformer_layer_config": layer,
        "tie_word_embeddings": False,
        "speculators_config": {
            "algorithm": algorithm,
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": facts.speculative_tokens}],
            "verifier": {
                "name_or_path": facts.target.name,
                "architectures": [] if architecture is None else [architecture],
            },
        },
    }
