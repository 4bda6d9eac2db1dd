"""Log probabilities of chosen tokens and of the likeliest ones, under the model's raw logits."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specdec.types import Logprob


def token_logprobs(
    raw_logits: torch.Tensor, token_ids: Sequence[int] | torch.Tensor, num_logprobs: int
) -> list[dict[int, Logprob]]:
    """What is reported at each of n positions: raw_logits [n, V] before any sampling transform, token_ids [n].

    Every dictionary starts with the chosen token, then has the `num_logprobs` likeliest in order (ties by lower id); a
    token appears once. A rank is 1 plus the number of strictly greater logits.
    """
    chosen = torch.as_tensor(token_ids, dtype=torch.int64, device=raw_logits.device)[:, None]  # [n, 1]
    logprobs = torch.log_softmax(raw_logits, dim=-1, dtype=torch.float32)
    own = raw_logits.gather(-1, chosen)
    entries = [
        {token: Logprob(logprob, rank)}
        for token, logprob, rank in zip(
            chosen[:, 0].tolist(),
            logprobs.gather(-1, chosen)[:, 0].tolist(),
            ((raw_logits > own).sum(dim=-1) + 1).tolist(),
            strict=True,
        )
    ]
    if num_logprobs:
        _add_likeliest(entries, raw_logits, logprobs, min(num_logprobs, raw_logits.shape[-1]))
    return entries


def _add_likeliest(
    entries: list[dict[int, Logprob]], raw_logits: torch.Tensor, logprobs: torch.Tensor, count: int
) -> None:
    values, tokens = raw_logits.topk(count, dim=-1)  # [n, count] each, falling
    greater = torch.searchsorted(-values, -values)  # a greater logit is itself among the likeliest
    columns = (tokens.tolist(), logprobs.gather(-1, tokens).tolist(), (greater + 1).tolist())
    for entry, *row in zip(entries, *columns, strict=True):
        for rank, token, logprob in sorted(zip(row[2], row[0], row[1], strict=True)):
            entry.setdefault(token, Logprob(logprob, rank))
