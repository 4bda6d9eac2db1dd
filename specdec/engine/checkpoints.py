"""A model on disk and the tokenizer that belongs to it, before any weights are read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from specdec.models.gguf import GGUFCheckpoint
from specdec.models.hub import remedy, resolve
from specdec.models.loader import Checkpoint, open_checkpoint
from specdec.tokenizer import Tokenizer


def open_model(model: str, progress: Callable[[str], None] | None = None) -> tuple[Checkpoint, Tokenizer]:
    """A model's checkpoint and tokenizer, no weights read; ValueError if it is damaged or the two do not match."""
    path = resolve(model, progress)
    try:
        checkpoint = open_checkpoint(path)
        tokenizer = load_tokenizer(path, checkpoint)
    except ValueError as error:
        raise ValueError(f"{error}{remedy(model)}") from None
    # Models may have ids to spare. Added tokens may lie beyond theirs, if no text is meant to hold them (Gemma 3).
    if tokenizer.text_vocab_size > checkpoint.config.vocab_size:
        raise ValueError(
            f"{path}: the tokenizer does not belong to this model: it has {tokenizer.text_vocab_size} tokens, "
            f"and the model's vocabulary {checkpoint.config.vocab_size}"
        )
    return checkpoint, tokenizer


def load_tokenizer(path: Path, checkpoint: Checkpoint) -> Tokenizer:
    """The tokenizer that belongs to a checkpoint."""
    if isinstance(checkpoint, GGUFCheckpoint):
        return Tokenizer.from_gguf(checkpoint.metadata)
    return Tokenizer.from_directory(path)
