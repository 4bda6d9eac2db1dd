"""What every layout of heads has in common: a config, names for the tensors, and how both go to disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from specdec.train.formats.directory import WEIGHTS, check_free, write_head
from specdec.train.formats.facts import HeadFacts
from specdec.train.formats.precision import Stored, store
from specdec.train.formats.stand_in import check_readable

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class LaidOut:
    """A head as a layout has it."""

    config: Mapping[str, Any]
    tensors: Mapping[str, torch.Tensor]
    file: str = WEIGHTS


def write(
    directory: Path, laid_out: LaidOut, stored: Stored, facts: HeadFacts, *, dtype: str | None, overwrite: bool
) -> None:
    """Put a head on disk as `dtype` (None: as it is), once specdec itself has read it back. See `write_head`."""
    check_free(directory, replace=overwrite)
    write_head(
        directory,
        laid_out.config,
        store(replace(stored, tensors=laid_out.tensors), dtype),
        file=laid_out.file,
        replace=overwrite,
        check=lambda path: check_readable(path, facts, shown=directory),
    )


def renamed(tensors: Mapping[str, torch.Tensor], prefixes: Mapping[str, str]) -> dict[str, torch.Tensor]:
    """The tensors with other beginnings of their names."""
    found = {}
    for name, tensor in tensors.items():
        old = next((prefix for prefix in prefixes if name.startswith(prefix)), "")
        found[prefixes.get(old, "") + name.removeprefix(old)] = tensor
    return found


@dataclass(frozen=True)
class Biases:
    """Which matrices of a layer have a bias."""

    qkv: bool
    output: bool
    mlp: bool

    @staticmethod
    def of(tensors: Mapping[str, torch.Tensor], prefix: str, layout: str) -> Biases:
        """Those of the layer whose names begin with `prefix`. ValueError where some have one and their like have none,
        for no config can say so."""
        has = {
            name: f"{prefix}{part}.{name}.bias" in tensors
            for part, names in (("self_attn", ATTENTION), ("mlp", MLP))
            for name in names
        }
        for group in (ATTENTION[:3], MLP):
            with_bias = [name for name in group if has[name]]
            if with_bias and len(with_bias) < len(group):
                raise cannot(layout, f"a bias of {', '.join(with_bias)} and none of its like")
        if has["o_proj"] and not has["q_proj"]:
            raise cannot(layout, "a bias of o_proj and none of q_proj, k_proj and v_proj")
        return Biases(has["q_proj"], has["o_proj"], has["gate_proj"])


def cannot(layout: str, what: str) -> ValueError:
    """The error of a head with something that a layout has no place for."""
    return ValueError(f"the layout {layout} cannot express {what}")
