"""Rows, scripted logits and fingerprints that the sampling tests share."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import torch

from specdec.kernels import reference
from specdec.sampling.process import SamplingRow, process_logits
from specdec.types import EMPTY_DRAFT, Draft, SamplingParams

CPU = torch.device("cpu")


def sampling_row(
    params: SamplingParams,
    token_ids: Sequence[int] = (0,),
    num_prompt_tokens: int = 1,
    draft: Draft | Sequence[int] = EMPTY_DRAFT,
    *,
    seed: int = 0,
    sample: int = 0,
    min_tokens_ban: Iterable[int] = (),
    bad_word_ids: tuple[tuple[int, ...], ...] = (),
) -> SamplingRow:
    """A sequence with a chain (or a given draft) behind its committed tokens."""
    chosen = draft if isinstance(draft, Draft) else Draft(tuple(draft))
    ban = frozenset(min_tokens_ban)
    return SamplingRow(params, seed, sample, list(token_ids), num_prompt_tokens, chosen, ban, bad_word_ids)


def scripted_logits(prefix: Sequence[int], vocab_size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A model that is a table: logits [vocab_size] that depend on every token of the prefix, and on nothing else."""
    digest = hashlib.sha256(repr(tuple(prefix)).encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))
    return 2.0 * torch.randn(vocab_size, generator=generator, dtype=torch.float64).to(dtype)


def scripted_rows(row: SamplingRow, vocab_size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The scripted model's logits of a sequence: its last committed token and every draft node, [k + 1, vocab_size]."""
    return torch.stack([scripted_logits((*row.token_ids, *path), vocab_size, dtype) for path in row.paths])


def fingerprint(*tensors: torch.Tensor) -> str:
    """Changes with any bit of any tensor."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


def process(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> torch.Tensor:
    """`process_logits` by definition."""
    return process_logits(logits, rows, reference)
