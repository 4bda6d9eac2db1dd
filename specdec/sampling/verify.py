"""Verification: from the processed logits of a step, what each sequence commits (ALGORITHMS.md, section 1).

`verify` is a pure function. Greedy rows take the argmax, the others go through one of `VERIFIERS`. All of them draw the
token of absolute position i as argmax(log law + Gumbel noise of i), so without a draft they give the same tokens. The
decisions of rejection sampling are functions of their own, `acceptance_probs` and `emission_logits`, so that their
laws can be enumerated. Every law is a float64 softmax. Nothing here knows how the logits were made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from specdec.config import unknown_name
from specdec.kernels.base import Kernels
from specdec.sampling.process import SamplingRow, Span, lay_out
from specdec.sampling.rng import NoiseKey, Stream, gumbel_argmax, uniform
from specdec.types import Draft, Verdict

CHUNK_ROWS = 32
"""Rows whose float64 law is held at a time."""


def verify(logits: torch.Tensor, rows: Sequence[SamplingRow], verifier: str, kernels: Kernels) -> list[Verdict]:
    """One verdict per sequence from processed logits [L, V]: a row at its last committed token, one per draft node.

    Sequences with temperature 0 are verified by argmax, the others by `verifier`. A sequence that gets to a row with
    no usable law (NaN, infinite, or no possible token) keeps what it accepted before and is answered an error; the
    others do not notice.
    """
    if verifier not in VERIFIERS:
        raise ValueError(unknown_name("verifier", verifier, VERIFIERS))
    spans = lay_out(rows)
    assert not spans or spans[-1].stop == logits.shape[0], "a row of logits per sequence and one per draft node"
    assert all(row.draft.parents is None for row in rows), "these verifiers walk chains"
    greedy = [span for span in spans if span.row.params.is_greedy]
    sampled = [span for span in spans if not span.row.params.is_greedy]
    verdicts = [*_greedy(logits, greedy, kernels), *VERIFIERS[verifier](logits, sampled)]
    by_start = dict(zip((span.start for span in (*greedy, *sampled)), verdicts, strict=True))
    return [by_start[span.start] for span in spans]


def law(logits: torch.Tensor) -> torch.Tensor:
    """The distribution that processed logits [n, V] stand for: their softmax, float64 [n, V]."""
    return torch.softmax(logits, dim=-1, dtype=torch.float64)


def acceptance(target_prob: torch.Tensor, draft_prob: torch.Tensor) -> torch.Tensor:
    """The probability of keeping a drafted token, from its probabilities under both laws, [n] each (2211.17192)."""
    return (target_prob / draft_prob).clamp(max=1.0)


def residual(target_probs: torch.Tensor, draft_probs: torch.Tensor) -> torch.Tensor:
    """Weights of the token that takes a rejected one's place, from both laws [n, V]: the target's excess.

    Where rounding leaves no excess at all, so that the laws are equal, the target's own law.
    """
    excess = (target_probs - draft_probs).clamp(min=0.0)
    return torch.where(excess.sum(dim=-1, keepdim=True) == 0, target_probs, excess)


def acceptance_probs(logits: torch.Tensor, spans: Sequence[Span]) -> list[list[float]]:
    """For each sequence and draft token the probability that rejection sampling keeps it, given those before."""
    at = [span.start + node for span in spans for node in range(len(span.row.draft))]
    token_ids = torch.tensor([t for span in spans for t in span.row.draft.token_ids], device=logits.device)
    target_prob = torch.empty(len(at), dtype=torch.float64, device=logits.device)
    for chunk in (slice(i, i + CHUNK_ROWS) for i in range(0, len(at), CHUNK_ROWS)):
        target_prob[chunk] = law(logits[at[chunk]]).gather(-1, token_ids[chunk, None])[:, 0]
    kept = acceptance(target_prob, _draft_prob(spans, token_ids)).tolist()
    ends = iter(kept)
    return [[next(ends) for _ in span.row.draft.token_ids] for span in spans]


def _draft_prob(spans: Sequence[Span], token_ids: torch.Tensor) -> torch.Tensor:
    """float64 [len(token_ids)]: each draft token's probability under its draft law, 1 where it was not drawn."""
    probs = torch.ones(token_ids.shape[0], dtype=torch.float64, device=token_ids.device)
    start = 0
    for span in spans:
        stop = start + len(span.row.draft)
        if span.row.draft.draft_probs is not None and stop > start:
            drawn = span.row.draft.draft_probs.gather(-1, token_ids[start:stop, None])
            probs[start:stop] = drawn[:, 0].double()
        start = stop
    return probs


def emission_logits(logits: torch.Tensor, spans: Sequence[Span], accepted: Sequence[int]) -> torch.Tensor:
    """Log weights, float64 [len(spans), V], of the token each sequence adds after `accepted[i]` draft tokens.

    After the whole draft it is the bonus: the target's law there. Else it is drawn from the residual; for a
    deterministic draft that is the target's law without the rejected token.
    """
    weights = logits[[span.start + count for span, count in zip(spans, accepted, strict=True)]].double()
    drawn = []
    for i, (span, count) in enumerate(zip(spans, accepted, strict=True)):
        if count == len(span.row.draft):
            continue
        if span.row.draft.draft_probs is None:
            weights[i, span.row.draft.token_ids[count]] = float("-inf")
        else:
            drawn.append(i)
    if drawn:
        draft_probs = torch.stack([spans[i].row.draft.draft_probs[accepted[i]] for i in drawn])
        weights[drawn] = residual(law(weights[drawn]), draft_probs.double()).log()
    return weights


def _rejection(logits: torch.Tensor, spans: Sequence[Span]) -> list[Verdict]:
    """Rejection sampling (2211.17192, 2302.01318)."""
    if not spans:
        return []
    accepted = [
        _num_accepted(span.row, kept) for span, kept in zip(spans, acceptance_probs(logits, spans), strict=True)
    ]
    largest = logits[[span.start + count for span, count in zip(spans, accepted, strict=True)]].amax(dim=-1).tolist()
    keys = [_noise_key(span.row, count) for span, count in zip(spans, accepted, strict=True)]
    tokens, _ = gumbel_argmax(emission_logits(logits, spans, accepted), keys, Stream.RESAMPLE)
    verdicts = []
    for span, count, token, top in zip(spans, accepted, tokens.tolist(), largest, strict=True):
        kept = span.row.draft.token_ids[:count]
        if math.isfinite(top):
            verdicts.append(Verdict((*kept, token), tuple(range(count))))
        else:
            verdicts.append(Verdict(kept, tuple(range(count)), error=_fault(top, span.row.num_tokens + count)))
    return verdicts


def _num_accepted(row: SamplingRow, kept: Sequence[float]) -> int:
    """Draft tokens kept before the first rejection; a NaN probability rejects."""
    for node, prob in enumerate(kept):
        if not uniform(row.seed, row.sample, row.num_tokens + node, Stream.ACCEPT) < prob:
            return node
    return len(kept)


def _coupled(logits: torch.Tensor, spans: Sequence[Span]) -> list[Verdict]:
    """Gumbel-max coupling (2408.07978): commit what plain sampling would choose, go on while it equals the draft.

    Rows are sampled one depth at a time, all sequences together, so that noise is made only for rows that are reached.
    """
    walks = [_Walk(span) for span in spans]
    live = walks
    while live:
        keys = [_noise_key(walk.span.row, walk.depth) for walk in live]
        tokens, scores = gumbel_argmax(logits[[walk.at for walk in live]], keys, Stream.RESAMPLE)
        steps = zip(live, tokens.tolist(), scores.tolist(), strict=True)
        live = [walk for walk, token, score in steps if walk.commit(token, score)]
    return [walk.verdict() for walk in walks]


def _greedy(logits: torch.Tensor, spans: Sequence[Span], kernels: Kernels) -> list[Verdict]:
    """Commit the argmax, go on while it equals the draft."""
    if not spans:
        return []
    choices = kernels.argmax(logits)
    largest = logits.gather(-1, choices[:, None])[:, 0].tolist()
    tokens = choices.tolist()
    walks = [_Walk(span) for span in spans]
    for walk in walks:
        while walk.commit(tokens[walk.at], largest[walk.at]):
            pass
    return [walk.verdict() for walk in walks]


def _greedy_only(logits: torch.Tensor, spans: Sequence[Span]) -> list[Verdict]:
    """The verifier `greedy` for rows that are not: refuses each."""
    message = "verifier 'greedy' needs temperature 0; the request has temperature {:g}"
    return [Verdict(error=message.format(span.row.params.temperature)) for span in spans]


Verifier = Callable[[torch.Tensor, Sequence[Span]], list[Verdict]]

VERIFIERS: Mapping[str, Verifier] = {
    "auto": _rejection,
    "rejection": _rejection,
    "coupled": _coupled,
    "greedy": _greedy_only,
}
"""How sequences with a temperature are verified, by name."""


def _noise_key(row: SamplingRow, depth: int) -> NoiseKey:
    """Whose noise draws the token that follows `depth` draft tokens."""
    return NoiseKey(row.seed, row.sample, row.num_tokens + depth)


@dataclass
class _Walk:
    """How far the verification of one sequence has come: it stands at row `row` of its span and `depth` tokens deep."""

    span: Span
    row: int = 0
    token_ids: list[int] = field(default_factory=list)
    path: list[int] = field(default_factory=list)
    error: str | None = None

    @property
    def at(self) -> int:
        """The row of logits to read next."""
        return self.span.start + self.row

    @property
    def depth(self) -> int:
        return len(self.token_ids)

    def commit(self, token: int, score: float) -> bool:
        """Commit what this row chose with `score`, unless that is not finite; answers whether the draft goes on."""
        if not math.isfinite(score):
            self.error = _fault(score, self.span.row.num_tokens + self.depth)
            return False
        self.token_ids.append(token)
        child = _child(self.span.row.draft, self.row, token)
        if child is None:
            return False
        self.path.append(child)
        self.row = child + 1
        return True

    def verdict(self) -> Verdict:
        return Verdict(tuple(self.token_ids), tuple(self.path), error=self.error)


def _child(draft: Draft, row: int, token: int) -> int | None:
    """The node of a chain that holds `token` and hangs under `row`, if there is one."""
    return row if row < len(draft) and draft.token_ids[row] == token else None


def _fault(score: float, position: int) -> str:
    """Why no token can be chosen where the best score is `score`."""
    if math.isnan(score):
        return f"the model's logits for the token at position {position} are not numbers (NaN)"
    if score > 0:
        return f"the model's logits for the token at position {position} are infinite"
    return f"no token is possible at position {position}: every logit is -inf; allow at least one token"
