"""A head's directory on disk: there whole or not at all, and never in the place of another by accident."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from specdec.models.head_codes import CONFIG_KEY
from specdec.models.heads import head_kind
from specdec.train.formats.precision import Stored

CONFIG = "config.json"
WEIGHTS = "model.safetensors"


def write_head(
    directory: Path,
    config: Mapping[str, Any],
    stored: Stored,
    *,
    file: str = WEIGHTS,
    replace: bool = False,
    check: Callable[[Path], None] = lambda path: None,
) -> None:
    """Write a head's config.json and its tensors, in a file of that name (its ending is its format).

    `check` sees the finished directory before it takes its place. ValueError where `directory` is there already, unless
    it is empty, or holds a head and `replace` allows that to go, with all that lies beside it.
    """
    with fresh_directory(directory, replace=replace) as staged:
        full = {**config, "torch_dtype": stored.dtype}
        if stored.quantization is not None:
            full[CONFIG_KEY] = stored.quantization
        (staged / CONFIG).write_text(json.dumps(full, indent=2) + "\n", encoding="utf-8")
        tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in stored.tensors.items()}
        if file.endswith(".safetensors"):
            save_file(tensors, staged / file, metadata={"format": "pt"})
            # That library lets nobody else read what it writes.
            (staged / file).chmod((staged / CONFIG).stat().st_mode)
        else:
            torch.save(tensors, staged / file)
        check(staged)


def holds_head(directory: Path) -> bool:
    """Whether there is a draft head."""
    try:
        head_kind(directory)
    except ValueError:
        return False
    return True


@contextmanager
def fresh_directory(directory: Path, *, replace: bool, holds: Callable[[Path], bool] = holds_head) -> Iterator[Path]:
    """A folder to fill, which becomes `directory` at the end of the body, and goes if that fails. `holds` as in
    `check_free`."""
    check_free(directory, replace=replace, holds=holds)
    directory = directory.absolute()
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{directory.name}-", dir=directory.parent) as folder:
        staged = Path(folder) / "new"
        staged.mkdir()
        yield staged
        check_free(directory, replace=replace, holds=holds)
        _put(staged, directory, Path(folder) / "old")


def check_free(directory: Path, *, replace: bool, holds: Callable[[Path], bool] = holds_head) -> None:
    """ValueError if nothing may be written to `directory`: something is there, and it is not what `holds` knows, or may
    not be replaced."""
    if not directory.exists():
        return
    if not directory.is_dir():
        raise ValueError(f"{directory} is a file; a head is a directory")
    if not any(directory.iterdir()):
        return
    if not holds(directory):
        raise ValueError(f"{directory} is there already and holds no head; name another directory")
    if not replace:
        raise ValueError(
            f"{directory} holds a head already; name another directory, or say that it is to be replaced "
            "(--force), with all that lies beside it"
        )


def _put(staged: Path, directory: Path, old: Path) -> None:
    """Let `staged` take the place of `directory`, and that, if it is there, go to `old`. Whatever fails, what was there
    stays."""
    if not directory.exists():
        os.replace(staged, directory)
        return
    os.replace(directory, old)
    try:
        os.replace(staged, directory)
    except BaseException:
        os.replace(old, directory)
        raise
