"""Block verification of chains (2403.10444): the draft is judged as a whole and the longest acceptable prefix kept.

The length that is kept depends on the whole draft, on tokens thrown away too. So nothing that was looked at may be met
again when the position comes round once more: coins are named by depth beside position, and a drafter must do the same
with its noise (`NoiseKey.depth`).

It accepts at least as much as rejection sampling, in expectation, and the same where a draft is deterministic; those
are left to rejection sampling. Its decisions, `prefix_chances` and `prefix_excess`, are functions of their own, so that
their laws can be enumerated.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specdec.kernels import Kernels
from specdec.sampling.emission import emit, law
from specdec.sampling.process import SamplingRow, Span
from specdec.sampling.rejection import rejection
from specdec.sampling.rng import Stream, uniform
from specdec.types import Verdict


def block(logits: torch.Tensor, spans: Sequence[Span], kernels: Kernels) -> list[Verdict]:
    """Keep the longest prefix of each draft that its coin accepts, whatever the coins of shorter ones say."""
    drawn = [span for span in spans if span.row.draft.draft_probs is not None and len(span.row.draft)]
    others = [span for span in spans if span.row.draft.draft_probs is None or not len(span.row.draft)]
    verdicts = {span.start: verdict for span, verdict in zip(others, rejection(logits, others, kernels), strict=True)}
    if drawn:
        judged = [_judge(logits[span.start : span.stop], span.row) for span in drawn]
        paths, weights = [range(count) for count, _ in judged], torch.stack([weight for _, weight in judged])
        emitted = emit(logits, drawn, paths, weights, kernels)
        verdicts |= {span.start: verdict for span, verdict in zip(drawn, emitted, strict=True)}
    return [verdicts[span.start] for span in spans]


def _judge(rows: torch.Tensor, row: SamplingRow) -> tuple[int, torch.Tensor]:
    """The number of accepted tokens of one draft, from its rows [k + 1, V], and log weights [V] of the next token.

    The draft is read up to the first row without a usable law: whoever gets there is answered its error.
    """
    usable = rows.amax(dim=-1).isfinite().tolist()
    k = next((i for i, fine in enumerate(usable[:-1]) if not fine), len(row.draft))
    target, draft = law(rows[: k + 1]), row.draft.draft_probs[:k].double()
    carried, kept = prefix_chances(target, draft, row.draft.token_ids[:k])
    count = _longest_kept(row, kept)
    return count, prefix_excess(target, draft, carried, count).log()


def _longest_kept(row: SamplingRow, kept: Sequence[float]) -> int:
    """The longest prefix whose coin says yes. A coin of a longer prefix that said no has been looked at, so that the
    next step must not meet it again: each is named by its length beside its position."""
    for length in range(len(kept) - 1, 0, -1):
        if uniform(row.seed, row.sample, row.num_tokens + length - 1, Stream.ACCEPT, length - 1) < kept[length]:
            return length
    return 0


def prefix_chances(
    target: torch.Tensor, draft: torch.Tensor, token_ids: Sequence[int]
) -> tuple[list[float], list[float]]:
    """For each prefix of a draft, the empty one first: the mass c it carries, and the chance h that it is kept given
    that no longer one is. `target` is float64 [k + 1, V], `draft` [k, V]."""
    carried, kept = [1.0], [1.0]
    for i, token in enumerate(token_ids):
        carried.append(min(carried[i] * (target[i, token] / draft[i, token]).item(), 1.0))
    for i in range(1, len(token_ids)):
        rest = 1.0 - carried[i]
        excess = (carried[i] * target[i] - draft[i]).clamp(min=0.0).sum().item()
        kept.append(excess / (excess + rest) if excess + rest > 0 else 1.0)
    return carried, [*kept, carried[-1]] if token_ids else kept


def prefix_excess(target: torch.Tensor, draft: torch.Tensor, carried: Sequence[float], count: int) -> torch.Tensor:
    """Weights [V] of the token that follows `count` kept draft tokens: what the target has left there, or the bonus.

    Where rounding leaves nothing, the target's own law.
    """
    if count == draft.shape[0]:
        return target[count]
    excess = (carried[count] * target[count] - draft[count]).clamp(min=0.0)
    return excess if excess.sum() > 0 else target[count]
