"""Verifiers that are wrong in ways engines have been wrong; each must fail the enumeration and the chi-square test."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from specdec.kernels import Kernels
from specdec.sampling.emission import law, residual
from specdec.sampling.process import Span
from specdec.sampling.rejection import acceptance_probs, emission_logits
from tests.sampling.enumeration import AcceptanceProbs, EmissionLogits

Weigh = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def accept_always(logits: torch.Tensor, spans: Sequence[Span], kernels: Kernels) -> list[list[float]]:
    """Keeps every draft token."""
    return [[1.0] * len(span.row.draft) for span in spans]


def accept_by_target(logits: torch.Tensor, spans: Sequence[Span], kernels: Kernels) -> list[list[float]]:
    """Treats drawn tokens as deterministic ones: keeps with target[x] where target[x] / draft[x] is right."""
    laws = law(logits).tolist()
    return [[laws[span.start + i][token] for i, token in enumerate(span.row.draft.token_ids)] for span in spans]


def _replace_recovered(
    logits: torch.Tensor, spans: Sequence[Span], accepted: Sequence[int], shift: int, weigh: Weigh
) -> torch.Tensor:
    """Production's log weights; for recovered tokens what `weigh` makes of the target's row, `shift` rows on."""
    weights = emission_logits(logits, spans, accepted).double()
    rejected = [i for i, span in enumerate(spans) if accepted[i] < len(span.row.draft)]
    if rejected:
        target = law(logits[[spans[i].start + accepted[i] + shift for i in rejected]])
        drafts = [spans[i].row.draft for i in rejected]
        counts = [accepted[i] for i in rejected]
        draft = torch.stack([own.draft_probs[count] for own, count in zip(drafts, counts, strict=True)])
        tokens = torch.tensor([own.token_ids[count] for own, count in zip(drafts, counts, strict=True)])
        weights[rejected] = weigh(target, draft, tokens[:, None]).log()
    return weights


def subtract_drafted_token_only(logits: torch.Tensor, spans: Sequence[Span], accepted: Sequence[int]) -> torch.Tensor:
    """The residual loses the drafted token's mass and no other's."""

    def weigh(target: torch.Tensor, draft: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return target.scatter(-1, tokens, (target - draft).clamp(min=0).gather(-1, tokens))

    return _replace_recovered(logits, spans, accepted, 0, weigh)


def recover_from_target(logits: torch.Tensor, spans: Sequence[Span], accepted: Sequence[int]) -> torch.Tensor:
    """A rejected token is replaced by a plain sample."""
    return _replace_recovered(logits, spans, accepted, 0, lambda target, draft, tokens: target)


def recover_from_next_row(logits: torch.Tensor, spans: Sequence[Span], accepted: Sequence[int]) -> torch.Tensor:
    """The correction is read one row too late."""
    return _replace_recovered(logits, spans, accepted, 1, lambda target, draft, tokens: residual(target, draft))


def bonus_from_previous_row(logits: torch.Tensor, spans: Sequence[Span], accepted: Sequence[int]) -> torch.Tensor:
    """The bonus is drawn from the row of the last draft token."""
    weights = emission_logits(logits, spans, accepted).double()
    for i, (span, count) in enumerate(zip(spans, accepted, strict=True)):
        if count == len(span.row.draft):
            weights[i] = logits[span.start + count - 1].double()
    return weights


WRONG: dict[str, tuple[AcceptanceProbs, EmissionLogits]] = {
    "accepts always": (accept_always, emission_logits),
    "forgets the draft law": (accept_by_target, emission_logits),
    "subtracts the drafted token only": (acceptance_probs, subtract_drafted_token_only),
    "recovers from the target": (acceptance_probs, recover_from_target),
    "recovers from the next row": (acceptance_probs, recover_from_next_row),
    "takes the bonus from the previous row": (acceptance_probs, bonus_from_previous_row),
}
