"""A run on disk, from which it goes on to the same bits. A file appears whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

LAST, BEST = "last.pt", "best.pt"


@dataclass(frozen=True)
class Checkpoint:
    step: int
    """Steps done."""
    weights: Mapping[str, torch.Tensor]
    """The trainee's own, `module.state_dict()`."""
    optimiser: Mapping[str, Any]
    history: list[dict[str, Any]]
    facts: Mapping[str, Any]
    """What the run may not differ in when it goes on."""


def save_checkpoint(path: Path, checkpoint: Checkpoint, provenance: Mapping[str, Any]) -> None:
    """Write a checkpoint and, beside it, `provenance` as NAME.json."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _replacing(path) as temporary:
        torch.save(vars(checkpoint), temporary)
    write_json(path.with_suffix(".json"), provenance)


def load_checkpoint(path: Path) -> Checkpoint | None:
    """What `save_checkpoint` wrote; None if there is nothing. ValueError if it is damaged."""
    if not path.exists():
        return None
    try:
        return Checkpoint(**torch.load(path, map_location="cpu", weights_only=True))
    except Exception:  # whatever torch's reader raises over bytes that are not its own
        raise ValueError(f"{path} is no last.pt or best.pt of a training run, or a damaged one") from None


def check_same(facts: Mapping[str, Any], given: Mapping[str, Any], path: Path) -> None:
    """ValueError unless a run that was begun with `facts` may go on with what is `given`."""
    before, now = _flat(facts), _flat(given)
    for key in sorted(before.keys() | now.keys()):
        if before.get(key) != now.get(key):
            raise ValueError(
                f"{path} was begun with {key} {before.get(key)!r}, and now it is {now.get(key)!r}: give the same, or "
                "another output directory"
            )


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    with _replacing(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    with _replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


class _replacing:
    """A temporary path beside `path`, which takes its place once all has been written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.temporary = path.with_name(f".{path.name}.part")

    def __enter__(self) -> Path:
        return self.temporary

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            os.replace(self.temporary, self.path)
        else:
            self.temporary.unlink(missing_ok=True)


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, each in value.items():
        if isinstance(each, Mapping):
            flat |= _flat(each, f"{prefix}{key}.")
        else:
            flat[prefix + key] = list(each) if isinstance(each, tuple) else each
    return flat
