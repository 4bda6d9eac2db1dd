"""When the counts of a proposer say that something is wrong with it.

Verification keeps the output right whatever a proposer does, so a broken one shows only here: it never drafts, or what
it drafts is never right. Few counts prove nothing, so each rule waits for enough of them.
"""

from __future__ import annotations

from collections.abc import Iterable

from specdec.config import AUTO
from specdec.types import RequestOutput, SpeculationStats

MIN_TOKENS = 64
"""Generated tokens before a proposer that has not drafted once is suspicious."""

MIN_DRAFTS = 50
"""Drafted first positions before their acceptance is judged. A proposer that is right one time in ten is wrong 50 times
in a row with a probability of 0.5 %."""

MIN_ACCEPTANCE = 0.02
"""The least share of accepted first positions."""

UNDRAFTED_TOKENS = 2
"""The first token of an answer has no draft before it, and the last one may be no more than a draft's bonus."""

COPYING = ("ngram", "suffix")
"""Proposers that copy what was written before, and have nothing to say about a text that repeats nothing."""


def alarm(proposer: str, stats: SpeculationStats, num_tokens: int) -> str | None:
    """One line for a person, with numbers and the likely cause, or None. `num_tokens` were generated in all.

    The counts are those of the requests that named this proposer and allowed it at least one token, summed. Plain
    decoding ("none") never alarms, nor does "auto", which stops asking whoever does not help.
    """
    if proposer in ("none", AUTO):
        return None
    if not stats.num_drafts:
        return _never_drafted(proposer, num_tokens) if num_tokens >= MIN_TOKENS else None
    accepted = stats.accepted_per_position[0] if stats.accepted_per_position else 0
    if stats.num_drafts < MIN_DRAFTS or accepted >= MIN_ACCEPTANCE * stats.num_drafts:
        return None
    return (
        f"proposer {proposer}: the first drafted token was accepted in {accepted} of {stats.num_drafts} drafts "
        f"({100 * accepted / stats.num_drafts:.1f} %, expected at least {100 * MIN_ACCEPTANCE:.0f} %); likely "
        f"{_useless(proposer)}"
    )


def _never_drafted(proposer: str, num_tokens: int) -> str:
    cause = (
        "the text repeats nothing to copy, or its settings ask for matches that are too long"
        if proposer in COPYING
        else "it failed (see warnings), or its context is too short for these prompts"
    )
    return f"proposer {proposer} drafted nothing in {num_tokens} generated tokens; likely {cause}"


def _useless(proposer: str) -> str:
    if proposer in COPYING:
        return "the text repeats only by accident, so that copying never helps"
    return "what drafts knows too little of this model: other weights, another tokenizer, few layers, or broken state"


class ProposerWatch:
    """Sums what proposers did for the requests that named them, and says of each at most once that it does not help."""

    def __init__(self) -> None:
        self._stats: dict[str, SpeculationStats] = {}
        self._num_tokens: dict[str, int] = {}
        self._told: set[str] = set()

    def judge(self, outputs: Iterable[RequestOutput]) -> list[str]:
        """Add requests that ended; the alarms that are new, in the order in which proposers were first asked.

        Requests without drafts by their own wish do not count, nor do tokens of answers too short for a draft.
        """
        for output in outputs:
            if output.num_speculative_tokens:
                self._add(output)
        found = {name: alarm(name, stats, self._num_tokens[name]) for name, stats in self._stats.items()}
        new = {name: line for name, line in found.items() if line is not None and name not in self._told}
        self._told.update(new)
        return list(new.values())

    def _add(self, output: RequestOutput) -> None:
        stats = self._stats.setdefault(output.proposer, SpeculationStats())
        self._num_tokens.setdefault(output.proposer, 0)
        for sample in output.outputs:
            stats.add(sample.speculation)
            if len(sample.token_ids) > UNDRAFTED_TOKENS:
                self._num_tokens[output.proposer] += len(sample.token_ids)
