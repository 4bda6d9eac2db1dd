"""The drafts of one step that promise the most tokens a second (arXiv 2406.14066, 2607.05147).

A step computes the rows of all its sequences together, so a draft that pays alone may not pay in a batch. Alone, a
sequence takes the best of every member and length. In a batch each first takes the member that is best at the price of
a row there; then the positions of all drafts are admitted, likeliest first, and the best prefix is kept. (Not the first
at which the rate drops: T has steps.)
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from specdec.core.control.beliefs import Beliefs, More
from specdec.core.control.step_cost import StepCost
from specdec.core.control.types import Candidate, Member, Option

MARGIN = 1.01
"""How much faster than plain decoding a plan must promise to be."""
TYPICAL_ROWS = 4
"""Rows of a draft at which a row's price in a batch is taken."""


@dataclass(frozen=True, slots=True)
class Plan:
    """An option for each candidate, None for plain decoding, and what the step is expected to bring and to take."""

    options: Many[Option | None]
    tokens: float
    seconds: float


def make_plan(candidates: Many[Candidate], members: Many[Member], beliefs: Beliefs, cost: StepCost, rows: int) -> Plan:
    """The best step; `rows` are computed in any case, of which each candidate has one."""
    base = cost.seconds(rows)
    plain = Plan([None] * len(candidates), float(len(candidates)), base)
    if not members:
        return plain
    more = _more(cost, rows, len(candidates))
    chosen = [_best_alone(each, members, beliefs, more, base / len(candidates)) for each in candidates]
    plan = _alone(chosen, base) if len(candidates) == 1 else _admit(chosen, cost, rows)
    if plan.seconds <= 0 or plan.tokens * plain.seconds <= MARGIN * plain.tokens * plan.seconds:
        return plain
    return plan


def _more(cost: StepCost, rows: int, num_candidates: int) -> More:
    """What rows of one sequence add: as the curve says where it is alone, else their share of what all would add."""
    base = cost.seconds(rows)
    if num_candidates == 1:
        return lambda extra: cost.seconds(rows + extra) - base
    price = (cost.seconds(rows + TYPICAL_ROWS * num_candidates) - base) / (TYPICAL_ROWS * num_candidates)
    return lambda extra: price * extra


def _best_alone(candidate: Candidate, members: Many[Member], beliefs: Beliefs, more: More, base: float) -> list[Option]:
    """The options of the member that is best for a sequence, up to the best length; none where plain is better."""
    best, rate = [], MARGIN / base if base > 0 else 0.0
    for member in members:
        options = beliefs.options(candidate, member, more)
        for index, option in enumerate(options):
            own = (1 + option.gain) / (base + option.seconds)
            if own > rate:
                rate, best = own, options[: index + 1]
    return best


def _alone(chosen: Many[list[Option]], base: float) -> Plan:
    option = chosen[0][-1] if chosen[0] else None
    if option is None:
        return Plan([None], 1.0, base)
    return Plan([option], 1 + option.gain, base + option.seconds)


def _admit(chosen: Many[list[Option]], cost: StepCost, rows: int) -> Plan:
    """Positions by what a row of them brings, and the prefix of them that is best."""
    tokens, seconds = float(len(chosen)), cost.seconds(rows)
    best, taken, admitted = (tokens / seconds, tokens, seconds), 0, []
    extra = drafting = 0.0
    queue = [(-_worth(options, 0), index, 0) for index, options in enumerate(chosen) if options]
    heapify(queue)
    while queue:
        _, index, place = heappop(queue)
        option, before = chosen[index][place], chosen[index][place - 1] if place else None
        tokens += option.gain - (before.gain if before else 0.0)
        extra += option.rows - (before.rows if before else 0.0)
        drafting += option.drafting - (before.drafting if before else 0.0)
        seconds = cost.seconds(rows + round(extra)) + drafting
        admitted.append((index, option))
        if tokens / seconds > best[0]:
            best, taken = (tokens / seconds, tokens, seconds), len(admitted)
        if place + 1 < len(chosen[index]):
            heappush(queue, (-_worth(chosen[index], place + 1), index, place + 1))
    options: list[Option | None] = [None] * len(chosen)
    for index, option in admitted[:taken]:
        options[index] = option
    return Plan(options, best[1], best[2])


def _worth(options: Many[Option], place: int) -> float:
    """Tokens that a row of this step up brings."""
    gain, rows = options[place].gain, options[place].rows
    if place:
        gain, rows = gain - options[place - 1].gain, rows - options[place - 1].rows
    return gain / max(rows, 1e-9)
