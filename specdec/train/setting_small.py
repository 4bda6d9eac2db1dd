"""What `specdec.train.setting` does for an EAGLE-3 head, for Medusa heads and for a small draft model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from specdec.engine.checkpoints import open_model
from specdec.models.hub import resolve
from specdec.train.recipe import TrainConfig
from specdec.train.setting import Setting, Tell, choose_device, choose_dtype, kept_weights, vocabulary
from specdec.train.trainees.draft import DraftPlan, DraftTrainee, start_draft
from specdec.train.trainees.medusa import MedusaPlan, MedusaTrainee, start_medusa

Weights = TypeVar("Weights", bound=nn.Module)


def medusa(setting: Setting, config: TrainConfig, start_from: Path | None, tell: Tell) -> MedusaTrainee:
    """The heads that the recipe describes. `start_from` is a checkpoint whose weights and vocabulary they take over."""
    own, kept = config.medusa, kept_weights(start_from, MedusaTrainee.name)
    token_ids = kept.get("token_ids")
    if token_ids is None:
        token_ids = vocabulary(setting.data.survey, own.draft_vocab_size, tell)
    weights = _with(start_medusa(setting.target, token_ids, own.num_heads), kept, start_from)
    device = choose_device(config.run.device)
    plan = MedusaPlan(
        decay=config.loss.unroll_decay,
        answers_only=own.train_on == "answers",
        weight_dtype=getattr(torch, own.weight_dtype),
        dtype=choose_dtype(config.run.dtype, device),
        device=device,
    )
    return MedusaTrainee(weights, setting.target, plan, setting.identity["name"])


def draft(setting: Setting, config: TrainConfig, start_from: Path | None, tell: Tell) -> DraftTrainee:
    """The model that the recipe describes. `start_from` is a checkpoint whose weights it takes over."""
    own, kept, name = config.draft, kept_weights(start_from, DraftTrainee.name), setting.identity["name"]
    token_ids = kept.get("token_ids")
    if token_ids is None:
        token_ids = vocabulary(setting.data.survey, own.loss_vocab_size, tell)
    start = start_draft(resolve(name, tell), setting.target, own.num_layers, token_ids)
    weights = _with(start, kept, start_from)
    device = choose_device(config.run.device)
    plan = DraftPlan(
        answers_only=own.train_on == "answers",
        weight_dtype=getattr(torch, own.weight_dtype),
        dtype=choose_dtype(config.run.dtype, device),
        device=device,
    )
    return DraftTrainee(weights, setting.target, open_model(name, tell)[1], plan)


def _with(weights: Weights, kept: Mapping[str, torch.Tensor], path: Path | None) -> Weights:
    if kept:
        try:
            weights.load_state_dict(kept)
        except RuntimeError:
            raise ValueError(f"{path} is of another shape, or for another target") from None
    return weights
