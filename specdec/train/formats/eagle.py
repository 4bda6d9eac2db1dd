"""The layout of EAGLE-1/2's authors: a llama config, `fc.`, `layers.0.` and `embed_tokens.`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from specdec.train.formats.facts import LayerFacts, layer_config
from specdec.train.formats.layout import Biases, LaidOut, cannot, write
from specdec.train.formats.precision import Stored

LAYOUT = "eagle"
LAYER = "layers.0."


def write_eagle(
    directory: Path,
    tensors: Mapping[str, torch.Tensor],
    facts: LayerFacts,
    *,
    dtype: str | None = None,
    overwrite: bool = False,
) -> None:
    """Write an EAGLE-1/2 head: config.json and model.safetensors. See `write_eagle3`."""
    write(directory, lay_out(tensors, facts), Stored(tensors), facts, dtype=dtype, overwrite=overwrite)


def lay_out(tensors: Mapping[str, torch.Tensor], facts: LayerFacts) -> LaidOut:
    if facts.model_type != "llama":
        raise cannot(LAYOUT, f"a layer of {facts.model_type}; its layers are llama's")
    found = Biases.of(tensors, LAYER, LAYOUT)
    config = {
        "architectures": ["LlamaForCausalLM"],
        **layer_config(facts, attention_bias=found.output, mlp_bias=found.mlp),
        "bias": "fc.bias" in tensors,
    }
    if found.qkv:
        config["qkv_bias"] = True
    if facts.target.name is not None:
        config["base_model_name_or_path"] = facts.target.name
    return LaidOut(config, tensors)
