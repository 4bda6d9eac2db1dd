"""One look over the data before training: lengths, what the target says, and who is held out."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from specdec.train.batches import is_held_out
from specdec.train.samples import Samples

LEAST_TOKENS = 3
"""A shorter sample has no entry with a token after it."""


@dataclass(frozen=True)
class Survey:
    """Of a data set. Indices are its samples'."""

    lengths: tuple[int, ...]
    """Tokens of every sample."""
    training: tuple[int, ...]
    held_out: tuple[int, ...]
    counts: np.ndarray  # int64 [V]   how often the target says each token in the training samples' answers
    num_answer_tokens: int
    """Of the training samples."""
    digest: str
    """SHA-256 of all tokens and where samples begin and prompts end."""


def survey(samples: Samples, vocab_size: int, held_out_share: float) -> Survey:
    """ValueError if there is nothing to train on, or tokens are not the target's."""
    lengths, training, held_out = [], [], []
    counts = np.zeros(vocab_size, dtype=np.int64)
    digest = hashlib.sha256()
    for index in range(len(samples)):
        sample = samples[index]
        tokens, prompt = np.asarray(sample.token_ids, dtype=np.int64), sample.num_prompt_tokens
        if len(tokens) and not 0 <= tokens.min() <= tokens.max() < vocab_size:
            raise ValueError(f"sample {index} has token {tokens.max()}, and the target's are 0 to {vocab_size - 1}")
        digest.update(np.array([len(tokens), prompt], dtype=np.int64).tobytes() + tokens.tobytes())
        lengths.append(len(tokens))
        if len(tokens) < LEAST_TOKENS or prompt >= len(tokens):
            continue
        if is_held_out(tokens[:prompt], held_out_share):
            held_out.append(index)
        else:
            training.append(index)
            counts += np.bincount(tokens[prompt:], minlength=vocab_size)
    if not training:
        raise ValueError(f"the data has no answers to train on: {len(samples)} samples, {len(held_out)} held out")
    return Survey(tuple(lengths), tuple(training), tuple(held_out), counts, int(counts.sum()), digest.hexdigest())
