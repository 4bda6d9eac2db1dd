"""Whose noise decides what (D6): a pure function of seed, sample, position, stream and token (`specdec.kernels.noise`).

This module knows nothing of rows, drafts or laws.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import torch

from specdec.kernels import Kernels, noise
from specdec.kernels.noise import WORD_MASK, WORD_RANGE, philox4x32

STREAM_RANGE = 4
"""More than there are streams."""


class Stream(IntEnum):
    """What the noise is for; different streams are independent."""

    DRAFT = 0
    ACCEPT = 1
    RESAMPLE = 2


class NoiseKey(NamedTuple):
    """Whose noise: `seed` any integer (taken mod 2**64), `sample` the index within the request, `position` absolute.

    `depth` tells apart draws for one position in different steps. A drafter for block verification needs it, because
    there the accepted length depends on the tokens that are thrown away.
    """

    seed: int
    sample: int
    position: int
    depth: int = 0

    def words(self, stream: Stream) -> tuple[int, int, int, int, int]:
        """As kernels take it: the seed's low and high word, position, stream and depth in one, sample."""
        kind = self.depth * STREAM_RANGE + int(stream)
        return self.seed & WORD_MASK, (self.seed >> 32) & WORD_MASK, self.position, kind, self.sample


def uniform(seed: int, sample: int, position: int, stream: Stream, index: int = 0) -> float:
    """One value of the open interval (0, 1): the word of token `index`, as `(word + 0.5) / 2**32`.

    `index` tells apart the decisions that fall at one position.
    """
    key = (seed & WORD_MASK, (seed >> 32) & WORD_MASK)
    word = philox4x32((index >> 2, position, int(stream), sample), key)[index & 3]
    return (word + 0.5) / WORD_RANGE


def gumbel(keys: Sequence[NoiseKey], stream: Stream, vocab_size: int, device: torch.device) -> torch.Tensor:
    """Standard Gumbel noise of tokens 0..vocab_size-1 under each key: float64 [len(keys), vocab_size]."""
    return noise.gumbel([key.words(stream) for key in keys], vocab_size, device)


def gumbel_argmax(
    logits: torch.Tensor, keys: Sequence[NoiseKey], stream: Stream, kernels: Kernels, rows: Sequence[int] | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """One sample of softmax(logits) a key: the argmax of its row of logits [L, V] (`rows`; None: row by row) plus the
    key's Gumbel noise.

    Answers int64 [n] tokens and their float64 [n] scores. A score that is not finite tells that the row has a NaN, an
    infinite logit or no possible token; its token then means nothing. Any number may be added to a row's logits.
    """
    words = [key.words(stream) for key in keys]
    return kernels.gumbel_argmax(logits, range(len(keys)) if rows is None else rows, words)


def gumbel_top(
    logits: torch.Tensor, keys: Sequence[NoiseKey], stream: Stream, count: int, kernels: Kernels
) -> tuple[torch.Tensor, torch.Tensor]:
    """The `count` best of logits [n, V] plus each row's Gumbel noise: draws without replacement, in order.

    Answers int64 tokens and float64 scores, [n, min(count, V)] each; the first column is `gumbel_argmax`. A score that
    is not finite belongs to no token.
    """
    if count == 1:
        tokens, best = gumbel_argmax(logits, keys, stream, kernels)
        return tokens[:, None], best[:, None]
    scores = gumbel(keys, stream, logits.shape[-1], logits.device).add_(logits)
    best, tokens = scores.topk(min(count, logits.shape[-1]), dim=-1)
    return tokens, best
