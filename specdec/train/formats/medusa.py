"""The layout of Medusa's authors: medusa_lm_head.safetensors (or .pt), with a config.json beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from specdec.train.formats.eagle3 import with_marks
from specdec.train.formats.facts import MedusaFacts
from specdec.train.formats.layout import LaidOut, write
from specdec.train.formats.precision import Stored

STEM = "medusa_lm_head"


def write_medusa(
    directory: Path,
    tensors: Mapping[str, torch.Tensor],
    facts: MedusaFacts,
    *,
    dtype: str | None = None,
    overwrite: bool = False,
    pickled: bool = False,
) -> None:
    """Write Medusa heads, whose `tensors` bear the authors' names; `pickled`: as .pt. See `write_eagle3`."""
    laid_out = lay_out_pickled(tensors, facts) if pickled else lay_out(tensors, facts)
    write(directory, laid_out, Stored(tensors), facts, dtype=dtype, overwrite=overwrite)


def lay_out(tensors: Mapping[str, torch.Tensor], facts: MedusaFacts) -> LaidOut:
    """The config has the authors' keys, and those of vLLM's Medusa beside them."""
    config = {
        "model_type": "medusa",
        "architectures": ["MedusaModel"],
        "medusa_num_heads": facts.num_heads,
        "medusa_num_layers": facts.num_layers,
        "base_model_name_or_path": facts.target.name,
        "num_heads": facts.num_heads,
        "num_hidden_layers": facts.num_layers,
        "hidden_size": facts.hidden_size,
        "vocab_size": facts.vocab_size,
    }
    if facts.draft_vocab_size is not None:
        config["draft_vocab_size"] = facts.draft_vocab_size
    return LaidOut(config, with_marks(tensors, facts.vocab_size), f"{STEM}.safetensors")


def lay_out_pickled(tensors: Mapping[str, torch.Tensor], facts: MedusaFacts) -> LaidOut:
    laid_out = lay_out(tensors, facts)
    return LaidOut(laid_out.config, laid_out.tensors, f"{STEM}.pt")
