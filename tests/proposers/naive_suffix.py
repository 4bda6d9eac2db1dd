"""What the suffix proposer answers, by definition: plain lists of tokens, searched anew for every count."""

from __future__ import annotations

import math
from collections import Counter

from specdec.proposers.suffix import SuffixSettings

Texts = list[list[int]]


def followers(texts: Texts, context: list[int]) -> Counter[int]:
    """How often each token came right after the context."""
    size = len(context)
    return Counter(text[i + size] for text in texts for i in range(len(text) - size) if text[i : i + size] == context)


def continuation(texts: Texts, suffix: list[int], length: int, min_token_prob: float) -> tuple[tuple[int, ...], float]:
    """The most frequent followers one after the other, the smaller token first, and their summed probability."""
    drafted: list[int] = []
    score, prob = 0.0, 1.0
    while len(drafted) < length:
        counts = followers(texts, suffix + drafted)
        if not counts:
            break
        token = min(counts, key=lambda t: (-counts[t], t))
        prob *= counts[token] / counts.total()
        if prob < min_token_prob:
            break
        drafted.append(token)
        score += prob
    return tuple(drafted), score


def guess(texts: Texts, context: list[int], length: int, settings: SuffixSettings) -> tuple[tuple[int, ...], float]:
    """The continuation of the suffix whose score is the highest, the longer suffix where two are equal."""
    depth = settings.suffix_decoding_max_tree_depth
    best: tuple[tuple[int, ...], float] = (), 0.0
    for size in range(min(depth - 1, len(context)), 0, -1):
        budget = settings.suffix_decoding_max_spec_factor * size + settings.suffix_decoding_max_spec_offset
        room = min(length, math.floor(budget + 1e-9), depth - size)
        tried = continuation(texts, context[-size:], room, settings.suffix_decoding_min_token_prob)
        if tried[1] > best[1]:
            best = tried
    return best


def draft(own: list[int], past: Texts, length: int, settings: SuffixSettings) -> tuple[int, ...]:
    """The better of the request's own text and past outputs, the own where they are equal."""
    first = guess([own], own, length, settings)
    second = guess(past, own, length, settings)
    return second[0] if second[1] > first[1] else first[0]
