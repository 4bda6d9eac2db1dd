"""The sampling pipeline: raw logits of all rows of a step to the logits whose softmax is the law that is served.

One function for plain decoding and for drafts (DESIGN.md, section 6): row i of a sequence is treated as plain decoding
would treat it had the drafted tokens before it been committed, so no parameter can work without speculation and fail
with it. It refuses to know how tokens are chosen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch

from specdec.core.sequence import Sequence as Sample
from specdec.kernels import Kernels
from specdec.sampling.penalties import penalise, penalised
from specdec.step.batch import Batch
from specdec.types import EMPTY_DRAFT, Draft, SamplingParams


class SamplingRow(NamedTuple):
    """One sequence whose logits are taken in a step: 1 + len(draft) rows of logits, the draft's root first."""

    params: SamplingParams
    seed: int
    sample: int
    token_ids: Sequence[int]
    """Committed tokens: the prompt, then what was generated."""
    num_prompt_tokens: int
    draft: Draft = EMPTY_DRAFT
    min_tokens_ban: frozenset[int] = frozenset()
    bad_word_ids: tuple[tuple[int, ...], ...] = ()

    @property
    def num_tokens(self) -> int:
        """Committed tokens, and so the absolute position of the first new one."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_logits(self) -> int:
        return 1 + len(self.draft)

    @property
    def paths(self) -> list[tuple[int, ...]]:
        """For each row of logits the drafted tokens before it: none at the root, then a node's ancestors and itself."""
        paths: list[tuple[int, ...]] = [()]
        for node, token in enumerate(self.draft.token_ids):
            parent = node - 1 if self.draft.parents is None else self.draft.parents[node]
            paths.append((*paths[parent + 1], token))
        return paths


class Span(NamedTuple):
    """A sequence and where its rows of logits start."""

    row: SamplingRow
    start: int

    @property
    def stop(self) -> int:
        return self.start + self.row.num_logits


def sampling_rows(batch: Batch) -> list[SamplingRow]:
    """The rows of a batch that take logits, in order."""
    return [sampling_row(row.sequence, row.draft) for row in batch.rows if row.num_logits]


def sampling_row(sequence: Sample, draft: Draft = EMPTY_DRAFT) -> SamplingRow:
    """A sequence as it stands, with a draft to verify."""
    request = sequence.request
    return SamplingRow(
        params=request.params,
        seed=request.seed,
        sample=sequence.index,
        token_ids=sequence.token_ids,
        num_prompt_tokens=len(request.prompt_token_ids),
        draft=draft,
        min_tokens_ban=request.min_tokens_ban,
        bad_word_ids=request.bad_word_ids,
    )


def lay_out(rows: Sequence[SamplingRow]) -> list[Span]:
    """Where each sequence's rows lie among the step's logits."""
    spans, start = [], 0
    for row in rows:
        spans.append(Span(row, start))
        start += row.num_logits
    return spans


def process_logits(logits: torch.Tensor, rows: Sequence[SamplingRow], kernels: Kernels) -> torch.Tensor:
    """Apply every sampling parameter to logits [L, V]; the input is never changed, and is answered itself if none asks.

    In order: logit bias, allowed ids, bad words, min tokens, penalties, temperature, then top-k, top-p and min-p.
    Greedy rows skip what cannot move an argmax: temperature and the filters. Token ids beyond V are ignored.
    """
    if all(asks_nothing(row) for row in rows):
        return logits
    spans = lay_out(rows)
    assert not spans or spans[-1].stop == logits.shape[0], "one row of logits per committed end and draft token"
    adjusted = [span for span in spans if _is_adjusted(span.row)]
    out = logits.clone() if adjusted else logits
    for span in adjusted:
        _adjust(out[span.start : span.stop], span.row)
    if any(_is_filtered(row.params) for row in rows):
        return _filter(out, spans, kernels)
    return out


def reads_tokens(row: SamplingRow) -> bool:
    """Whether the row's law depends on the tokens before it beyond what the model says."""
    early = bool(row.min_tokens_ban) and row.num_output_tokens < row.params.min_tokens
    return early or bool(row.bad_word_ids) or penalised(row.params)


def asks_nothing(row: SamplingRow) -> bool:
    """Whether `process_logits` leaves the row's logits as they are."""
    return row.params.is_greedy and not _is_adjusted(row)


def _is_adjusted(row: SamplingRow) -> bool:
    params = row.params
    return bool(params.logit_bias) or params.allowed_token_ids is not None or reads_tokens(row)


def _is_filtered(params: SamplingParams) -> bool:
    """Whether temperature or filters change the law."""
    as_it_is = params.temperature == 1.0 and params.top_k <= 0 and params.top_p >= 1.0 and params.min_p <= 0.0
    return not (params.is_greedy or as_it_is)


def _adjust(block: torch.Tensor, row: SamplingRow) -> None:
    """What greedy rows get too, in place on one sequence's block [rows, V]."""
    params, paths = row.params, row.paths
    if params.logit_bias:
        _add_bias(block, params.logit_bias)
    if params.allowed_token_ids is not None:
        banned = torch.ones(block.shape[-1], dtype=torch.bool, device=block.device)
        banned[_ids(params.allowed_token_ids, block)] = False
        block.masked_fill_(banned, float("-inf"))
    if row.bad_word_ids:
        _ban_bad_words(block, row, paths)
    for i, path in enumerate(paths):
        if row.num_output_tokens + len(path) < params.min_tokens:
            block[i, _ids(row.min_tokens_ban, block)] = float("-inf")
    if penalised(params):
        penalise(block, params, row.token_ids, row.num_prompt_tokens, paths)


def _ids(token_ids: Iterable[int], block: torch.Tensor) -> torch.Tensor:
    """Those token ids that exist in block [rows, V], int64 on its device."""
    return torch.tensor([t for t in token_ids if t < block.shape[-1]], dtype=torch.int64, device=block.device)


def _add_bias(block: torch.Tensor, bias: Mapping[int, float]) -> None:
    addends = [addend for token, addend in bias.items() if token < block.shape[-1]]
    block[:, _ids(bias, block)] += torch.tensor(addends, dtype=block.dtype, device=block.device)


def _ban_bad_words(block: torch.Tensor, row: SamplingRow, paths: Sequence[tuple[int, ...]]) -> None:
    """Ban the last token of a bad word where the output before it, drafted tokens included, is the rest of the word.

    As in vLLM, a word that begins in the prompt does not count.
    """
    words = [word for word in row.bad_word_ids if word]
    reach = max((len(word) for word in words), default=1) - 1
    tail = tuple(row.token_ids[max(row.num_prompt_tokens, row.num_tokens - reach) :])
    for i, path in enumerate(paths):
        before = tail + path
        banned = [word[-1] for word in words if _ends_with(before, word[:-1])]
        block[i, _ids(banned, block)] = float("-inf")


def _ends_with(token_ids: tuple[int, ...], ending: tuple[int, ...]) -> bool:
    return len(token_ids) >= len(ending) and token_ids[len(token_ids) - len(ending) :] == ending


def _filter(logits: torch.Tensor, spans: Sequence[Span], kernels: Kernels) -> torch.Tensor:
    """Temperature, top-k, top-p and min-p; switched off for greedy rows."""
    largest = torch.finfo(logits.dtype).max  # a divisor is kept finite, so that -inf stays -inf
    divisors: list[float] = []
    top_k: list[int] = []
    top_p: list[float] = []
    min_p: list[float] = []
    for row, _ in spans:
        params, count = row.params, row.num_logits
        divisors += [1.0 if params.is_greedy else min(params.temperature, largest)] * count
        top_k += [0 if params.is_greedy else min(params.top_k, logits.shape[-1])] * count
        top_p += [1.0 if params.is_greedy else params.top_p] * count
        min_p += [0.0 if params.is_greedy else params.min_p] * count
    return kernels.filter_logits(logits, divisors, top_k, top_p, min_p)
