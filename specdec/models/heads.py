"""From the files of a draft head to the head, ready to guess for one target."""

from __future__ import annotations

from pathlib import Path

import torch

from specdec.kernels import Kernels
from specdec.models.decoder import Decoder
from specdec.models.eagle import EagleHead
from specdec.models.medusa import MedusaHead

__all__ = ["EagleHead", "MedusaHead", "head_kind", "load_head"]


def head_kind(path: Path) -> str:
    """What the head at `path` is, from its config and the names of its tensors: "eagle", "eagle3" or "medusa"."""
    raise NotImplementedError


def load_head(
    path: Path,
    *,
    target: Decoder,
    dtype: str,
    device: torch.device,
    kernels: Kernels,
    max_model_len: int | None = None,
    draft_vocab: Path | None = None,
) -> EagleHead | MedusaHead:
    """Load the head at `path` for `target`."""
    raise NotImplementedError
