"""Verification: from the processed logits of a step, what each sequence commits (ALGORITHMS.md, section 1).

`verify` is a pure function. Greedy rows take the argmax, the others go through one of `VERIFIERS`, each of which has a
rule for chains and one for trees. Nothing here knows how the logits were made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch

from specdec.config import unknown_name
from specdec.kernels import Kernels
from specdec.sampling.block import block
from specdec.sampling.coupled import coupled, greedy
from specdec.sampling.process import SamplingRow, Span, lay_out
from specdec.sampling.rejection import rejection
from specdec.sampling.trees import tree_rejection
from specdec.sampling.typical import typical
from specdec.types import Verdict

Verify = Callable[[torch.Tensor, Sequence[Span], Kernels], list[Verdict]]


class Verifier(NamedTuple):
    """How sequences with a temperature are verified: those whose draft is a chain, and those whose draft is a tree."""

    chains: Verify
    trees: Verify


def _greedy_only(logits: torch.Tensor, spans: Sequence[Span], kernels: Kernels) -> list[Verdict]:
    """The verifier `greedy` for rows that are not: refuses each."""
    message = "verifier 'greedy' needs temperature 0; the request has temperature {:g}"
    return [Verdict(error=message.format(span.row.params.temperature)) for span in spans]


VERIFIERS: Mapping[str, Verifier] = {
    "auto": Verifier(rejection, tree_rejection),
    "rejection": Verifier(rejection, tree_rejection),
    "block": Verifier(block, tree_rejection),  # block verification is a rule for chains
    "coupled": Verifier(coupled, coupled),
    "typical": Verifier(typical, typical),
    "greedy": Verifier(_greedy_only, _greedy_only),
}
"""By name; `specdec.config.EXACTNESS` says what each promises."""


def verify(
    logits: torch.Tensor,
    rows: Sequence[SamplingRow],
    verifier: str,
    kernels: Kernels,
    largest: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> list[Verdict]:
    """One verdict per sequence from processed logits [L, V]: a row at its last committed token, one per draft node.

    Sequences with temperature 0 are verified by argmax, the others by `verifier`. A sequence that gets to a row with
    no usable law (NaN, infinite, or no possible token) keeps what it accepted before and is answered an error; the
    others do not notice. `largest` is `kernels.largest(logits)`, where it is known.
    """
    if verifier not in VERIFIERS:
        raise ValueError(unknown_name("verifier", verifier, VERIFIERS))
    spans = lay_out(rows)
    assert not spans or spans[-1].stop == logits.shape[0], "a row of logits per sequence and one per draft node"
    argmax = [span for span in spans if span.row.params.is_greedy]
    sampled = [span for span in spans if not span.row.params.is_greedy]
    chains = [span for span in sampled if span.row.draft.parents is None]
    trees = [span for span in sampled if span.row.draft.parents is not None]
    rule = VERIFIERS[verifier]
    verdicts = greedy(logits, argmax, kernels, largest)
    if sampled:
        verdicts += [*rule.chains(logits, chains, kernels), *rule.trees(logits, trees, kernels)]
    by_start = dict(zip((span.start for span in (*argmax, *chains, *trees)), verdicts, strict=True))
    return [by_start[span.start] for span in spans]
