"""Noise as a pure function (D6): that of a key and a token is the same in any batch, by any backend.

Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) is applied to a counter, so there is
no generator whose state could depend on order. Its key is a 64-bit seed; the counter's words are (token // 4, position,
kind, sample), and a token's own word of the four that come out is token % 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch

NoiseKeys = Sequence[tuple[int, int, int, int, int]]
"""Low and high word of the seed, position, kind and sample, 32 bits each."""

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
NUM_ROUNDS = 10
WORD_MASK = 0xFFFFFFFF
WORD_RANGE = 2.0**32

CHUNK_ELEMENTS = 1 << 18
"""Noise is made this many values at a time, so that the ten rounds work on what the cache still holds."""

SPARSE_SHARE = 16
"""Below one possible token in this many, noise is made for the possible tokens only."""

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


def gumbel(keys: NoiseKeys, vocab_size: int, device: torch.device) -> torch.Tensor:
    """Standard Gumbel noise of tokens 0..vocab_size-1 under each key: float64 [len(keys), vocab_size]."""
    out = torch.empty(len(keys), vocab_size, dtype=torch.float64, device=device)
    blocks = torch.arange(-(-vocab_size // 4), device=device)
    words = _columns(keys, device)
    step = max(1, CHUNK_ELEMENTS // max(1, vocab_size))
    for at in range(0, len(keys), step):
        low, high, position, kind, sample = (word[at : at + step, None] for word in words)  # [step, 1] each
        drawn = philox4x32((blocks, position, kind, sample), (low, high))
        out[at : at + step] = _to_gumbel(torch.stack(drawn, dim=-1).flatten(1)[:, :vocab_size])
    return out


def gumbel_at(keys: NoiseKeys, key_index: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """The same noise for chosen tokens only, float64 [m]: entry i is `token_ids[i]` under `keys[key_index[i]]`."""
    low, high, position, kind, sample = (word[key_index] for word in _columns(keys, token_ids.device))
    drawn = philox4x32((token_ids >> 2, position, kind, sample), (low, high))
    return _to_gumbel(torch.stack(drawn, dim=-1).gather(-1, (token_ids & 3)[:, None])[:, 0])


def gumbel_argmax(logits: torch.Tensor, keys: NoiseKeys) -> tuple[torch.Tensor, torch.Tensor]:
    """The argmax of each row of logits [n, V] plus its key's noise, int64 [n], and the sum there, float64 [n]."""
    possible = logits != float("-inf")
    if int(possible.sum()) * SPARSE_SHARE < logits.numel():
        return _sparse_argmax(logits, possible, keys)
    scores = gumbel(keys, logits.shape[-1], logits.device).add_(logits)
    best, tokens = scores.max(dim=-1)
    return tokens, best


def _sparse_argmax(logits: torch.Tensor, possible: torch.Tensor, keys: NoiseKeys) -> tuple[torch.Tensor, torch.Tensor]:
    """`gumbel_argmax` over the m possible entries of all rows, listed flat."""
    rows, token_ids = possible.nonzero(as_tuple=True)  # int64 [m] each
    scores = logits[rows, token_ids] + gumbel_at(keys, rows, token_ids)
    best = torch.full((logits.shape[0],), float("-inf"), dtype=torch.float64, device=logits.device)
    best.scatter_reduce_(0, rows, scores, "amax")
    winners = scores == best[rows]
    tokens = torch.full((logits.shape[0],), logits.shape[1] - 1, device=logits.device)
    tokens.scatter_reduce_(0, rows[winners], token_ids[winners], "amin")
    return tokens, best


def _columns(keys: NoiseKeys, device: torch.device) -> torch.Tensor:
    """The words of all keys, int64 [5, n]."""
    return torch.tensor(keys, dtype=torch.int64, device=device).reshape(-1, 5).T


def _to_gumbel(words: torch.Tensor) -> torch.Tensor:
    """32-bit words to -log(-log((word + 0.5) / 2**32)) in float64."""
    return words.double().add_(0.5).div_(WORD_RANGE).log_().neg_().log_().neg_()
