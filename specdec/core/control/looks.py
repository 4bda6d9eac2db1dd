"""Looks at what the plan leaves out, as far as they are paid for: what nobody tries, nobody corrects.

Three things may be wrong for ever where everything is chosen by estimates. A proposer that was of no use may have
become so: a probe asks it for the least that it drafts. A length whose rows were measured too slow is never chosen: now
and then a draft is longer than planned. And what drafts save is counted in plain steps, of which there are none where
drafting always seems to pay: then one is taken.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Many
from dataclasses import dataclass

from specdec.core.control.beliefs import Beliefs, Ladder
from specdec.core.control.budget import Budget
from specdec.core.control.plan import Plan
from specdec.core.control.step_cost import StepCost
from specdec.core.control.types import Candidate, Member, Option

GOLDEN = (math.sqrt(5) - 1) / 2
"""Turns go by its multiples: of an irrational number no period of steps, texts or batches leaves anybody out."""
PROBE_GAP = 4
"""Steps between two looks at the same proposer for the same sequence, at least; the credit makes them more."""
PLAIN_GAP = 16
"""Steps without a plain one after which one may be taken against the plan; the credit makes them more."""
LONGER_GAP = 256
"""Steps without one of so many rows after which a longer draft than planned may look at what they take."""


@dataclass(frozen=True, slots=True)
class Probe:
    """An option that goes against the plan, for the candidate of that index."""

    index: int
    option: Option
    forgone: float
    """Seconds that the option it takes the place of would have saved."""


class Looks:
    """`members` may be looked at, and `budget` pays."""

    def __init__(self, members: Many[Member], beliefs: Beliefs, cost: StepCost, budget: Budget) -> None:
        self._members, self._beliefs, self._cost, self._budget = members, beliefs, cost, budget

    def wants_plain_step(self, plan: Plan, rows: int) -> bool:
        """Whether to see again what a plain step takes, instead of drafting; in a step that computes nothing else."""
        is_due = rows == len(plan.options) and self._cost.unseen_for(rows) >= PLAIN_GAP
        return is_due and any(plan.options) and self._budget.affords_plain_step

    def probe(self, candidates: Many[Candidate], plan: Plan, rows: int, step: int) -> Probe | None:
        """One sequence and member of this step that go against the plan, if that is due and can be paid for."""
        if not self._members:
            return None
        turn = int(step * GOLDEN % 1 * len(candidates) * len(self._members))
        index, count = turn % len(candidates), len(candidates)
        member, planned = self._members[turn // count], plan.options[index]
        ladder = self._beliefs.ladder(candidates[index], member)
        if ladder is None:
            return None
        is_longer = planned is not None and planned.member is member
        option = (
            self._longer(ladder, plan, index, rows) if is_longer else self._least(ladder, candidates[index], rows, step)
        )
        if option is None:
            return None
        saving = 0.0 if planned is None else self._cost.plain_seconds(planned.gain, count) - planned.seconds
        forgone = max(0.0, saving)
        promised = self._cost.plain_seconds(option.gain, count) if is_longer else 0.0
        risk = 0.0 if is_longer else self._beliefs.drafting[member.name].line(1).risk
        if not self._budget.affords(member.name, max(0.0, option.seconds + risk + forgone - promised)):
            return None
        return Probe(index, option, forgone)

    def _least(self, ladder: Ladder, candidate: Candidate, rows: int, step: int) -> Option | None:
        """The least of a member that the plan leaves out, if it was not asked just now."""
        last = self._beliefs.known(candidate.key).asked.get(ladder.member.name, -PROBE_GAP)
        if step - last < PROBE_GAP:
            return None
        length, added = (ladder.limit, round(ladder.nodes)) if ladder.member.is_tree else (1, 1)
        return ladder.option(length, self._cost.seconds(rows + added) - self._cost.seconds(rows))

    def _longer(self, ladder: Ladder, plan: Plan, index: int, rows: int) -> Option | None:
        """A draft of up to twice the length that the plan has, where no step was of so many rows for long."""
        planned = plan.options[index]
        assert planned is not None
        length = min(2 * planned.length, ladder.num_steps)
        rows += round(sum(each.rows for other, each in enumerate(plan.options) if each is not None and other != index))
        if ladder.member.is_tree or length <= planned.length or self._cost.unseen_for(rows + length) < LONGER_GAP:
            return None
        return ladder.option(length, self._cost.seconds(rows + length) - self._cost.seconds(rows))
