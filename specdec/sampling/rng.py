"""Randomness as a pure function (D6): the noise of (seed, sample, position, stream, token) is the same in any batch.

Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) is applied to a counter, so there is
no generator whose state could depend on order. The key is the 64-bit seed; the counter's words are (token // 4,
position, stream and depth, sample), and a token's own word of the four that come out is token % 4. This module knows
nothing of rows, drafts or laws.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple, TypeVar

import torch

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
NUM_ROUNDS = 10
WORD_MASK = 0xFFFFFFFF
STREAM_RANGE = 4
"""More than there are streams."""
WORD_RANGE = 2.0**32

CHUNK_ELEMENTS = 1 << 18
"""Noise is made this many values at a time, so that the ten rounds work on what the cache still holds."""

SPARSE_SHARE = 16
"""Below one possible token in this many, noise is made for the possible tokens only."""


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


Word = TypeVar("Word", int, torch.Tensor)


def philox4x32(counter: tuple[Word, Word, Word, Word], key: tuple[Word, Word]) -> tuple[Word, Word, Word, Word]:
    """Four random words of a counter and a key, all of 32 bits: Python integers, or int64 tensors that broadcast.

    A product's high half is its shift, masked where it next matters; signed 64-bit wrap-around keeps the bits.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(NUM_ROUNDS):
        product0, product1 = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0 = ((product1 >> 32) ^ c1 ^ k0) & WORD_MASK
        c2 = ((product0 >> 32) ^ c3 ^ k1) & WORD_MASK
        c1, c3 = product1, product0
        k0, k1 = (k0 + KEY_STEPS[0]) & WORD_MASK, (k1 + KEY_STEPS[1]) & WORD_MASK
    return c0, c1 & WORD_MASK, c2, c3 & WORD_MASK


def uniform(seed: int, sample: int, position: int, stream: Stream, index: int = 0) -> float:
    """One value of the open interval (0, 1): the word of token `index`, as `(word + 0.5) / 2**32`.

    `index` tells apart the decisions that fall at one position.
    """
    key = (seed & WORD_MASK, (seed >> 32) & WORD_MASK)
    word = philox4x32((index >> 2, position, int(stream), sample), key)[index & 3]
    return (word + 0.5) / WORD_RANGE


def gumbel(keys: Sequence[NoiseKey], stream: Stream, vocab_size: int, device: torch.device) -> torch.Tensor:
    """Standard Gumbel noise of tokens 0..vocab_size-1 under each key: float64 [len(keys), vocab_size]."""
    out = torch.empty(len(keys), vocab_size, dtype=torch.float64, device=device)
    blocks = torch.arange(-(-vocab_size // 4), device=device)
    words = _key_words(keys, device)
    step = max(1, CHUNK_ELEMENTS // max(1, vocab_size))
    for at in range(0, len(keys), step):
        seed_low, seed_high, position, sample, depth = (word[at : at + step, None] for word in words)  # [step, 1] each
        drawn = philox4x32((blocks, position, _kind(stream, depth), sample), (seed_low, seed_high))
        out[at : at + step] = _to_gumbel(torch.stack(drawn, dim=-1).flatten(1)[:, :vocab_size])
    return out


def gumbel_at(
    keys: Sequence[NoiseKey], stream: Stream, key_index: torch.Tensor, token_ids: torch.Tensor
) -> torch.Tensor:
    """The same noise for chosen tokens only, float64 [m]: entry i is `token_ids[i]` under `keys[key_index[i]]`."""
    seed_low, seed_high, position, sample, depth = (word[key_index] for word in _key_words(keys, token_ids.device))
    drawn = philox4x32((token_ids >> 2, position, _kind(stream, depth), sample), (seed_low, seed_high))
    return _to_gumbel(torch.stack(drawn, dim=-1).gather(-1, (token_ids & 3)[:, None])[:, 0])


def gumbel_argmax(logits: torch.Tensor, keys: Sequence[NoiseKey], stream: Stream) -> tuple[torch.Tensor, torch.Tensor]:
    """One sample of softmax(logits) a row: the argmax of logits [n, V] plus the row's Gumbel noise.

    Answers int64 [n] tokens and their float64 [n] scores. A score that is not finite tells that the row has a NaN, an
    infinite logit or no possible token; its token then means nothing. Any number may be added to a row's logits.
    """
    possible = logits != float("-inf")
    if int(possible.sum()) * SPARSE_SHARE < logits.numel():
        return _sparse_argmax(logits, possible, keys, stream)
    scores = gumbel(keys, stream, logits.shape[-1], logits.device).add_(logits)
    best, tokens = scores.max(dim=-1)
    return tokens, best


def gumbel_top(
    logits: torch.Tensor, keys: Sequence[NoiseKey], stream: Stream, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The `count` best of logits [n, V] plus each row's Gumbel noise: draws without replacement, in order.

    Answers int64 tokens and float64 scores, [n, min(count, V)] each; the first column is `gumbel_argmax`. A score that
    is not finite belongs to no token.
    """
    if count == 1:
        tokens, best = gumbel_argmax(logits, keys, stream)
        return tokens[:, None], best[:, None]
    scores = gumbel(keys, stream, logits.shape[-1], logits.device).add_(logits)
    best, tokens = scores.topk(min(count, logits.shape[-1]), dim=-1)
    return tokens, best


def _sparse_argmax(
    logits: torch.Tensor, possible: torch.Tensor, keys: Sequence[NoiseKey], stream: Stream
) -> tuple[torch.Tensor, torch.Tensor]:
    """`gumbel_argmax` over the m possible entries of all rows, listed flat."""
    rows, token_ids = possible.nonzero(as_tuple=True)  # int64 [m] each
    scores = logits[rows, token_ids] + gumbel_at(keys, stream, rows, token_ids)
    best = torch.full((logits.shape[0],), float("-inf"), dtype=torch.float64, device=logits.device)
    best.scatter_reduce_(0, rows, scores, "amax")
    winners = scores == best[rows]
    tokens = torch.full((logits.shape[0],), logits.shape[1] - 1, device=logits.device)
    tokens.scatter_reduce_(0, rows[winners], token_ids[winners], "amin")
    return tokens, best


def _key_words(keys: Sequence[NoiseKey], device: torch.device) -> torch.Tensor:
    """int64 [5, n]: the seed's low and high words, position, sample, depth."""
    words = [(key.seed & WORD_MASK, (key.seed >> 32) & WORD_MASK, key.position, key.sample, key.depth) for key in keys]
    return torch.tensor(words, dtype=torch.int64, device=device).reshape(-1, 5).T


def _kind(stream: Stream, depth: torch.Tensor) -> torch.Tensor:
    """The counter's word for stream and depth."""
    return depth * STREAM_RANGE + int(stream)


def _to_gumbel(words: torch.Tensor) -> torch.Tensor:
    """32-bit words to -log(-log((word + 0.5) / 2**32)) in float64."""
    return words.double().add_(0.5).div_(WORD_RANGE).log_().neg_().log_().neg_()
