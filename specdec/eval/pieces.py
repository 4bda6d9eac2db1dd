"""Texts cut into pieces that a model reads by themselves, each as a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specdec.tokenizer import Tokenizer

Piece = tuple[int, ...]
"""Token ids; each but the last of them is a position at which the next is known."""

SHORTEST = 2


def read_text(path: Path) -> str:
    """A file of plain UTF-8; ValueError in one line for any other, and for one that is blank."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not valid UTF-8 at byte {error.start + 1}") from None
    if not text.strip():
        raise ValueError(f"{path}: there is no text in it")
    return text


def cut(texts: Sequence[str], tokenizer: Tokenizer, context: int, max_positions: int) -> list[Piece]:
    """Pieces of at most `context` tokens with at most `max_positions` positions in all.

    The first piece of every text comes first, then the second of every text, and so on. Each piece begins with what the
    model wants before a text (BOS). ValueError where no text has two tokens.
    """
    rounds = zip_longest(*(_windows(text, tokenizer, context) for text in texts))
    pieces: list[Piece] = []
    left = max_positions
    for piece in (piece for pieces_of_round in rounds for piece in pieces_of_round if piece is not None):
        own = piece[: left + 1]
        if len(own) >= SHORTEST:
            pieces.append(own)
            left -= len(own) - 1
    if not pieces:
        raise ValueError(f"the texts are too short: none has {SHORTEST} tokens")
    return pieces


def _windows(text: str, tokenizer: Tokenizer, context: int) -> list[Piece]:
    """One text's pieces, in order; none where the model's own beginning leaves no room."""
    tokens = tokenizer.encode(text, add_special_tokens=False)
    before = _before(tokenizer.encode(text), tokens)
    room = context - len(before)
    if room < 1:
        return []
    return [(*before, *tokens[start : start + room]) for start in range(0, len(tokens), room)]


def _before(whole: Sequence[int], inner: Sequence[int]) -> Sequence[int]:
    """What stands in `whole` before `inner`; nothing if the two do not fit."""
    for start in range(len(whole) - len(inner) + 1):
        if whole[start : start + len(inner)] == inner:
            return whole[:start]
    return []
