"""The layout of EAGLE-3's authors: a llama config, `fc.`, `midlayer.`, `norm.`, `lm_head.`, `d2t` and `t2d`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from specdec.models.head_config import AUX_LAYER_IDS
from specdec.train.formats.facts import Eagle3Facts, layer_config
from specdec.train.formats.layout import Biases, LaidOut, cannot, write
from specdec.train.formats.precision import Stored

LAYOUT = "eagle3"
LAYER = "midlayer."


def write_eagle3(
    directory: Path,
    tensors: Mapping[str, torch.Tensor],
    facts: Eagle3Facts,
    *,
    dtype: str | None = None,
    overwrite: bool = False,
) -> None:
    """Write an EAGLE-3 head: config.json and model.safetensors, under the authors' names, which `tensors` bear.

    `dtype` is float32, bfloat16, float16 or int8 (matrices as codes with a scale for each 32 weights); None keeps the
    tensors' own. The head appears whole or not at all, once specdec has read it back. ValueError, in one line, for
    tensors that are missing, left over or of the wrong shape, and where there is a head already, unless `overwrite`.
    """
    write(directory, lay_out(tensors, facts), Stored(tensors), facts, dtype=dtype, overwrite=overwrite)


def lay_out(tensors: Mapping[str, torch.Tensor], facts: Eagle3Facts) -> LaidOut:
    if facts.model_type != "llama":
        raise cannot(LAYOUT, f"a layer of {facts.model_type}; its layers are llama's")
    found = biases_of(tensors, LAYOUT)
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        **layer_config(facts.layer, attention_bias=found.output, mlp_bias=found.mlp),
        "draft_vocab_size": facts.draft_vocab_size,
        "target_hidden_size": facts.target_hidden_size,
        "norm_before_residual": facts.norm_before_residual,
    }
    if found.qkv:
        config["qkv_bias"] = True
    if facts.aux_layers is not None:
        config["eagle_config"] = {"use_aux_hidden_state": True, AUX_LAYER_IDS: list(facts.aux_layers)}
    if facts.target.name is not None:
        config["base_model_name_or_path"] = facts.target.name
    return LaidOut(config, with_marks(tensors, facts.vocab_size))


def biases_of(tensors: Mapping[str, torch.Tensor], layout: str) -> Biases:
    """Those of the layer; ValueError for some that no key of a config tells of."""
    if "fc.bias" in tensors:
        raise cannot(layout, "a bias of fc in an EAGLE-3 head")
    return Biases.of(tensors, LAYER, layout)


def with_marks(tensors: Mapping[str, torch.Tensor], vocab_size: int) -> dict[str, torch.Tensor]:
    """The tensors with t2d, which other engines look for, where only d2t is there."""
    found = dict(tensors)
    offsets = tensors.get("d2t")
    if offsets is not None and "t2d" not in tensors:
        marks = torch.zeros(vocab_size, dtype=torch.bool)
        ids = torch.arange(len(offsets)) + offsets.long()
        # Ids that the target has not are for the reader to refuse, by name.
        marks[ids[(ids >= 0) & (ids < vocab_size)]] = True
        found["t2d"] = marks
    return found
