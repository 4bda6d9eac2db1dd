"""The draft's vocabulary: the tokens that the target says most often.

A head's output matrix over all of a vocabulary would cost more than the rest of it. What is left out is never drafted,
and what the target then says instead is a recovered token: no loss but of speed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch


def choose_vocabulary(counts: np.ndarray, size: int, kept: Sequence[int] | torch.Tensor = ()) -> torch.Tensor:
    """`kept`, and the tokens with the highest counts, until they are `size`: int64 [size], ascending; of equal ones the
    lower ids, which in a vocabulary of merged pairs are the more common ones. ValueError if there are not as many."""
    if not 0 < size <= len(counts):
        raise ValueError(f"draft_vocab_size is {size}, and must be between 1 and the target's {len(counts)} tokens")
    ranks = -counts
    ranks[np.asarray(kept, dtype=np.int64)] = np.iinfo(np.int64).min
    ranked = np.argsort(ranks, kind="stable")
    return torch.from_numpy(np.sort(ranked[:size]))


def coverage(counts: np.ndarray, token_ids: torch.Tensor) -> float:
    """The share of what was counted that lies in `token_ids`."""
    return float(counts[token_ids.numpy()].sum() / max(1, counts.sum()))


def draft_ids(token_ids: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """For each of the target's tokens its place among `token_ids`, -1 where it has none: int64 [vocab_size]."""
    places = torch.full((vocab_size,), -1, dtype=torch.int64)
    places[token_ids] = torch.arange(len(token_ids))
    return places
