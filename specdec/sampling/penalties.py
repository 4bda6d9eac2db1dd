"""Repetition, presence and frequency penalties of one sequence's rows, as vLLM defines them.

Presence and frequency count output tokens, repetition looks at prompt and output; what was drafted before a row, along
its path, counts as output there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from specdec.types import SamplingParams


def penalised(params: SamplingParams) -> bool:
    """Whether any of the three penalties is switched on."""
    return params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0


def penalise(
    block: torch.Tensor,
    params: SamplingParams,
    token_ids: Sequence[int],
    num_prompt_tokens: int,
    paths: Sequence[tuple[int, ...]],
) -> None:
    """Apply the penalties in place to block [rows, V]; `paths[i]` are the drafted tokens before row i.

    Only the columns of tokens that occur are touched: the cost follows the context, not context times rows.
    """
    columns, in_prompt, counts = _occurrences(token_ids, num_prompt_tokens, paths, block.shape[-1])
    index = torch.from_numpy(columns).to(block.device)
    output_counts = torch.from_numpy(counts).to(block)  # [rows, columns]
    logits = block[:, index]
    if params.repetition_penalty != 1.0:
        seen = (output_counts > 0) | torch.from_numpy(in_prompt).to(block.device)
        factor = params.repetition_penalty
        logits = torch.where(seen, torch.where(logits > 0, logits / factor, logits * factor), logits)
    logits -= params.frequency_penalty * output_counts
    logits -= params.presence_penalty * (output_counts > 0).to(block.dtype)
    block[:, index] = logits


def _occurrences(
    token_ids: Sequence[int], num_prompt_tokens: int, paths: Sequence[tuple[int, ...]], vocab_size: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens that occur (int64 [columns], ascending), which are in the prompt, and output counts [rows, columns]."""
    committed = np.asarray(token_ids, dtype=np.int64)
    in_prompt = np.zeros(vocab_size, dtype=bool)
    in_prompt[committed[:num_prompt_tokens]] = True
    counts = np.bincount(committed[num_prompt_tokens:], minlength=vocab_size)
    occurs = in_prompt | (counts > 0)
    for path in paths:
        occurs[list(path)] = True
    columns = np.flatnonzero(occurs)
    by_row = np.repeat(counts[None, columns], len(paths), axis=0)
    for row, path in zip(by_row, paths, strict=True):
        np.add.at(row, np.searchsorted(columns, np.asarray(path, dtype=np.int64)), 1)
    return columns, in_prompt[columns], by_row
