"""What training needs of the target: its embedding, its output matrix and its last layer. No forward pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from specdec.models.config import ModelConfig
from specdec.models.loader import Checkpoint, open_checkpoint
from specdec.models.weights import WeightPlan, plan_weights


@dataclass(frozen=True)
class TargetParts:
    """Tensors are float32, on the CPU."""

    config: ModelConfig
    embedding: torch.Tensor  # [V, H]
    output_matrix: torch.Tensor  # [V, H]   the embedding itself where the two are tied
    final_norm: torch.Tensor  # [H]
    last_layer: Mapping[str, torch.Tensor]
    """By the decoder's names, `attention.qkv_proj.weight` and so on."""


def read_target(path: Path) -> TargetParts:
    """The parts of the checkpoint at `path`. ValueError, in one line, if it is none."""
    checkpoint = open_checkpoint(path)
    config = checkpoint.config
    plan = plan_weights(config, checkpoint.names())
    embedding = _read(checkpoint, plan, "embed_tokens.weight")
    matrix = embedding if config.tie_word_embeddings else _read(checkpoint, plan, "lm_head.weight")
    prefix = f"layers.{config.num_layers - 1}."
    layer = {
        name.removeprefix(prefix): _read(checkpoint, plan, name) for name in plan.pieces if name.startswith(prefix)
    }
    return TargetParts(config, embedding, matrix, _read(checkpoint, plan, "norm.weight"), layer)


def _read(checkpoint: Checkpoint, plan: WeightPlan, name: str) -> torch.Tensor:
    """A parameter in one piece."""
    pieces = [checkpoint.read(piece.name).float() for piece in plan.pieces[name]]
    return torch.cat(pieces) if len(pieces) > 1 else pieces[0]
