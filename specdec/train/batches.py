"""The order of training: which samples make up each step, a pure function of seed and epoch.

Rows are packed, so that no step computes padding; samples of like length still share a step, which evens out what a
step costs and lets its attention run over few different shapes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

WINDOW_STEPS = 16
"""Samples are sorted by length among those of so many steps."""

Step = tuple[int, ...]
"""Indices of the samples of one step."""


def plan_epoch(lengths: Sequence[int], step_tokens: int, seed: int, epoch: int) -> list[Step]:
    """All samples, each once, in steps of about `step_tokens` tokens; a longer sample is a step by itself."""
    rng = np.random.default_rng([seed, epoch])
    order = rng.permutation(len(lengths))
    mean = max(1.0, float(np.mean(lengths))) if len(lengths) else 1.0
    window = max(1, round(WINDOW_STEPS * step_tokens / mean))
    steps: list[Step] = []
    for start in range(0, len(order), window):
        steps += _filled(
            sorted(order[start : start + window].tolist(), key=lambda i: (lengths[i], i)), lengths, step_tokens
        )
    return [steps[i] for i in rng.permutation(len(steps))]


def _filled(ordered: list[int], lengths: Sequence[int], step_tokens: int) -> list[Step]:
    """`ordered` samples cut into steps that are as full as may be."""
    steps: list[Step] = []
    current: list[int] = []
    size = 0
    for index in ordered:
        if current and size + lengths[index] > step_tokens:
            steps.append(tuple(current))
            current, size = [], 0
        current.append(index)
        size += lengths[index]
    if current:
        steps.append(tuple(current))
    return steps


def is_held_out(prompt: np.ndarray, share: float) -> bool:
    """Whether a sample with this prompt (token ids) is kept from training: the same for every answer to it, in every
    run."""
    digest = hashlib.sha256(np.ascontiguousarray(prompt, dtype=np.int64).tobytes()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64
