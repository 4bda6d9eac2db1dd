"""Accepted, recovered and bonus tokens each by themselves: what verification promises of every kind, however it drafts.

- A drafted token is drawn from the law that the proposer reports for it.
- Rejection sampling keeps the first of siblings with probability min(1, target / draft), and of siblings without a
  draft law one with the target's probability of them all, at every position that it reaches.
- Block verification keeps so much of a chain as `specdec.eval.block_acceptance` says; trees it leaves to rejection.
- A token recovered from a draft without a law has the target's law without what was tried; one recovered from a draft
  with a law comes from an excess of the target over the draft, so it is never one that the draft likes better.
- A bonus token has the target's law.

These find a fault with fewer samples than the law of all tokens together, and say where it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Many
from dataclasses import dataclass, field

from specdec.eval.block_acceptance import BlockAcceptance
from specdec.eval.checks import Check
from specdec.eval.chi_square import uniform_p_value
from specdec.eval.draws import Draw, Laws, Look
from specdec.eval.driving import plural
from specdec.eval.verify_settings import LEAST_EXPECTED
from specdec.eval.witness import Trial, Verification

CELLS = 8
ENOUGH = LEAST_EXPECTED * CELLS
LEAST_VARIANCE = 25.0
"""Of a number of acceptances, for the normal approximation."""
BLURRED = 1e-2
"""Above this p-value recovered tokens are said to fit a law; they are known not to fit the right one."""


@dataclass(frozen=True)
class Recovered:
    """A recovered token in the target's law, and its probability under the draft's, if that was reported."""

    look: Look
    draft_prob: float | None


@dataclass(frozen=True)
class Tried:
    """A trial and its tokens in the target's law."""

    looks: tuple[Look, ...]
    trial: Trial

    @property
    def chance(self) -> float:
        """The probability of keeping one: without a law, the target's of all of them."""
        target, draft_prob = sum(look.prob for look in self.looks), self.trial.draft_prob
        if draft_prob is None:
            return min(1.0, target)
        return min(1.0, target / draft_prob) if draft_prob > 0 else 1.0


@dataclass
class Kinds:
    """Tokens by kind. `lenience` is the factor that rounding may put between two computations of a probability."""

    lenience: float
    num_drafts: int = 0
    num_accepted: int = 0
    recovered: list[Recovered] = field(default_factory=list)
    bonus: list[Look] = field(default_factory=list)
    tried: list[Tried] = field(default_factory=list)
    draft_places: list[float] = field(default_factory=list)
    chains: BlockAcceptance = field(default_factory=BlockAcceptance)
    """Where block verification judged chains with a law."""

    def ask(self, laws: Laws, sample: Draw) -> None:
        """Count a sample's drafts, and ask for the laws that tell about their tokens."""
        for verified in sample.verified:
            self.num_drafts += 1
            self.num_accepted += verified.num_accepted
            self.draft_places += verified.draft_places
            if verified.chain is not None and not verified.is_cut:
                self.chains.ask(laws, sample.before(verified.index), verified.chain, verified.num_accepted)
            self._ask_trials(laws, sample, verified)
            index = verified.index + verified.num_accepted
            if verified.is_recovered:
                look = laws.ask(sample.before(index), sample.token_ids[index], verified.tried)
                self.recovered.append(Recovered(look, verified.draft_prob))
            elif verified.is_bonus:
                self.bonus.append(laws.ask(sample.before(index), sample.token_ids[index]))

    def _ask_trials(self, laws: Laws, sample: Draw, verified: Verification) -> None:
        for index, trial in enumerate(verified.trials, verified.index):
            text = sample.before(index)
            self.tried.append(Tried(tuple(laws.ask(text, token) for token in trial.tokens), trial))

    def checks(self, verifier: str, level: float) -> list[Check]:
        """Those that apply, each at this error level."""
        checks = [self._recovered_check(level), self._bonus_check(level)]
        whole = verifier == "block" and bool(self.chains.judged)
        checks.insert(0, self.chains.check(level) if whole else self._acceptance_check(level))
        if self.draft_places:
            checks.insert(0, self._draft_check(level))
        return checks

    def _draft_check(self, level: float) -> Check:
        fault = (
            "drafted tokens are not drawn from the law that the proposer reports for them; the temperature or a filter "
            "may be left out of one of the two, or drafts dropped after they were looked at"
        )
        return _uniformity("draft law", self.draft_places, level, "drafted token", fault)

    def _bonus_check(self, level: float) -> Check:
        fault = "bonus tokens do not have the target's law after the draft: another row of logits, or another law"
        return _uniformity("bonus", [look.place for look in self.bonus], level, "bonus token", fault)

    def _acceptance_check(self, level: float) -> Check:
        """Two-sided, by the normal approximation."""
        expected = sum(each.chance for each in self.tried)
        variance = sum(each.chance * (1 - each.chance) for each in self.tried)
        accepted = sum(each.trial.is_kept for each in self.tried)
        enough = variance >= LEAST_VARIANCE
        p = math.erfc(abs(accepted - expected) / math.sqrt(2 * variance)) if enough else 1.0
        what = f"kept at {accepted:,} of {plural(len(self.tried), 'drafted position')}, {expected:,.1f} expected"
        faults = [f"{what} by the target's law and the draft's (p = {p:.1g})"] if p < level else []
        figures = {"p_value": p, "level": level, "num_accepted": accepted, "expected": expected}
        summary = f"{what}, p = {p:.2g}" if enough else f"{what}: too few chances to test"
        return Check.of("acceptance", faults, int(enough), summary, figures)

    def _recovered_check(self, level: float) -> Check:
        """Of both kinds of drafts, which may come in turns: an excess is certain, and a law is tested."""
        judged = [each for each in self.recovered if each.draft_prob is not None]
        places = [each.look.place_without_tried for each in self.recovered if each.draft_prob is None]
        fault = f"recovered tokens do not have the target's law without what was rejected: {ANOTHER_ROW}"
        tested = _uniformity("recovered", places, level, "recovered token", fault)
        if not judged:
            return tested
        wrong = [each for each in judged if (each.draft_prob or 0.0) > each.look.prob * self.lenience]
        summary = f"{plural(len(judged), 'token')}, {len(wrong):,} of them likelier under the draft than the target"
        figures: dict[str, object] = {"num_recovered": len(judged), "num_excessive": len(wrong)}
        if places:
            summary += f"; of drafts without a law {tested.summary}"
            figures["without_law"] = tested.figures
        return Check.of("recovered", [*_excess(wrong, judged), *tested.faults], len(judged), summary, figures)


ANOTHER_ROW = "they come from another row of logits, or another law"


def _excess(wrong: Many[Recovered], judged: Many[Recovered]) -> list[str]:
    """The fault, if there is one, and what it looks like."""
    if not wrong:
        return []
    worst = max(wrong, key=lambda each: (each.draft_prob or 0.0) - each.look.prob)
    return [
        f"{len(wrong):,} of {plural(len(judged), 'recovered token')} are likelier under the draft than the target "
        f"(token {worst.look.token}: {worst.draft_prob:.3g} against {worst.look.prob:.3g}), which the residual "
        f"max(target - draft, 0) never gives: {_explanation(judged)}"
    ]


def _explanation(judged: Many[Recovered]) -> str:
    """Which wrong law the recovered tokens fit."""
    if len(judged) < ENOUGH:
        return "the residual is wrong, or the row of logits that it is taken from"
    if uniform_p_value([each.look.place_without_tried for each in judged], CELLS) > BLURRED:
        return "they fit the target's law less the rejected token alone, as if the residual kept the draft's other mass"
    if uniform_p_value([each.look.place for each in judged], CELLS) > BLURRED:
        return "they fit the target's own law, as if nothing were subtracted from it"
    return ANOTHER_ROW


def _uniformity(name: str, places: Many[float], level: float, noun: str, fault: str) -> Check:
    """A chi-square test of places; empty with too few."""
    enough = len(places) >= ENOUGH
    p = uniform_p_value(places, CELLS) if enough else 1.0
    summary = f"{plural(len(places), noun)}" + (f", p = {p:.2g}" if enough else ": too few to test")
    faults = [f"{fault} (chi-square over {plural(len(places), noun)}, p = {p:.1g})"] if p < level else []
    figures = {"p_value": p, "level": level, "num_tokens": len(places)}
    return Check.of(name, faults, int(enough), summary, figures)
