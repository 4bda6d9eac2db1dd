"""The tokens that a draft head can guess, where they are not all of the target's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch

from specdec.models.head_files import load_torch_file


def target_ids(
    offsets: torch.Tensor, marks: torch.Tensor | None, *, size: int, vocab_size: int, where: str
) -> torch.Tensor:
    """The target id of each of a head's `size` logits, int64 [size], from what its file says.

    `offsets` (d2t) are added to the logits' own numbers; `marks` (t2d), if there, are the target ids that come out.
    ValueError, in one line that names `where` they are from, if they do not fit a target of `vocab_size` tokens.
    """
    if offsets.shape != (size,) or offsets.is_floating_point():
        raise ValueError(
            f"{where}: d2t must be {size} integers, one for each row of the head's output matrix; "
            f"got {list(offsets.shape)} of {offsets.dtype}"
        )
    ids = torch.arange(size) + offsets.long()
    _check_ids(ids.tolist(), vocab_size, f"{where}: d2t leads to")
    if marks is not None:
        marked = marks.flatten().bool().nonzero().flatten()
        if not torch.equal(marked, ids.sort().values):
            raise ValueError(
                f"{where}: t2d marks {len(marked)} target tokens, and they are not those that d2t leads to"
            )
    return ids


def read_draft_vocab(path: Path, vocab_size: int) -> torch.Tensor:
    """The target ids to keep, int64, as listed in a JSON file or in a .pt file (a list or a tensor of integers).

    ValueError, in one line that names the file, if they are no token ids, repeat, or are not a target's of
    `vocab_size` tokens.
    """
    content = load_torch_file(path) if path.suffix == ".pt" else _read_json(path)
    if isinstance(content, torch.Tensor) and content.dim() == 1:
        content = content.tolist()
    if not isinstance(content, list) or not all(type(item) is int for item in content):
        raise ValueError(f"{path} must hold a list of token ids")
    if not content:
        raise ValueError(f"{path} lists no tokens; a draft vocabulary needs at least one")
    _check_ids(content, vocab_size, f"{path} lists")
    return torch.tensor(content)


def _check_ids(ids: Sequence[int], vocab_size: int, subject: str) -> None:
    seen = set()
    for token_id in ids:
        if not 0 <= token_id < vocab_size:
            raise ValueError(f"{subject} token {token_id}, and the model's tokens are 0 to {vocab_size - 1}")
        if token_id in seen:
            raise ValueError(f"{subject} token {token_id} more than once")
        seen.add(token_id)


def _read_json(path: Path) -> object:
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is neither JSON nor a .pt file: {error}") from None
