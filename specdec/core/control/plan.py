"""The drafts of one step that promise the most tokens a second (arXiv 2406.14066, 2607.05147).

A step computes the rows of all its sequences together, so a draft that pays alone may not pay in a batch. Alone, a
sequence takes the best of every member and length. In a batch each first takes the member that is best at the price of
a row there; then the positions of all drafts are admitted, likeliest first, and the best prefix is kept. (Not the first
at which the rate drops: T has steps.)
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import pairwise

from specdec.core.control.beliefs import Beliefs, Ladder
from specdec.core.control.step_cost import StepCost
from specdec.core.control.types import Candidate, Member, Option
from specdec.types import MAX_DRAFT_NODES

MARGIN = 1.01
"""How much faster than plain decoding a plan must promise to be."""
TYPICAL_ROWS = 4
"""Rows of a draft at which a row's price in a batch is taken."""
HOPELESS = 0.9
"""A rate below this share of the best ends the search for a better prefix. What calls take but once is left out of that
rate: the first position bears it, and those after it may be worth it."""
DEAR = 0.01
"""Of a step, what a call may take for its first sequence without a thought."""


@dataclass(frozen=True, slots=True)
class Plan:
    """An option for each candidate, None for plain decoding, and what the step is expected to bring and to take."""

    options: Many[Option | None]
    tokens: float
    seconds: float


def make_plan(candidates: Many[Candidate], members: Many[Member], beliefs: Beliefs, cost: StepCost, rows: int) -> Plan:
    """The best step; `rows` are computed in any case, of which each candidate has one."""
    base, count = cost.seconds(rows), len(candidates)
    plain = Plan([None] * count, float(count), base)
    ladders = [_ladders(each, members, beliefs, count) for each in candidates]
    if not any(ladders):
        return plain
    if count == 1:
        most = max(each.num_rows for each in ladders[0])
        option = _best(ladders[0], increments(cost, rows, most), base)[1]
        plan = plain if option is None else Plan([option], 1 + option.gain, base + option.seconds)
    else:
        plan = _of_batch(ladders, cost, rows)
    if plan.seconds <= 0 or plan.tokens * plain.seconds <= MARGIN * plain.tokens * plan.seconds:
        return plain
    return plan


def _of_batch(ladders: Many[Many[Ladder]], cost: StepCost, rows: int) -> Plan:
    """The best prefix of positions; with all members, or without one whose calls take long for the first sequence
    already. That may be worth it for all sequences, and not for those few for which others have nothing to go by."""
    base, prices = cost.seconds(rows), _prices(cost, rows, len(ladders))

    def without(name: str | None) -> Plan:
        kept = [[ladder for ladder in own if ladder.member.name != name] for own in ladders]
        return _admit([_best(own, prices, base / len(ladders)) for own in kept], cost, rows)

    plans = [without(None)]
    dear = {ladder.member.name for own in ladders for ladder in own if ladder.entry > DEAR * base}
    plans += [without(name) for name in sorted(dear)]
    return max(plans, key=lambda plan: plan.tokens / plan.seconds)


def _ladders(candidate: Candidate, members: Many[Member], beliefs: Beliefs, count: int) -> list[Ladder]:
    """Of the members that have something to go by."""
    return [found for member in members if (found := beliefs.ladder(candidate, member, count)) is not None]


def increments(cost: StepCost, rows: int, most: int) -> list[float]:
    """What the first, second, ... row more adds to a step of so many."""
    times = [cost.seconds(rows + extra) for extra in range(most + 1)]
    return [later - earlier for earlier, later in pairwise(times)]


def _prices(cost: StepCost, rows: int, num_candidates: int) -> list[float]:
    """The share that each row of a sequence has in what all sequences' rows add together."""
    all_rows = TYPICAL_ROWS * num_candidates
    return [(cost.seconds(rows + all_rows) - cost.seconds(rows)) / all_rows] * MAX_DRAFT_NODES


def best_length(ladder: Ladder, added: Many[float], base: float, least: float) -> tuple[float, int, float]:
    """Tokens a second of the best length of a ladder, above `least`; the length, 0 for none; and what its rows add.

    `added`: seconds by row; `base`: of the sequence without a draft.
    """
    if ladder.member.is_tree:
        verifying = ladder.shares[0] * sum(added[: round(ladder.nodes)])
        gain = ladder.gains[min(ladder.limit, len(ladder.gains)) - 1]
        rate = (1 + gain) / (base + verifying + ladder.base + ladder.slope * ladder.limit)
        return (rate, ladder.limit, verifying) if rate > least else (least, 0, 0.0)
    length, at_best, verifying, seconds, rate = 0, 0.0, 0.0, base + ladder.base, 0.0
    shares, gains, slope, above = ladder.shares, ladder.gains, ladder.slope, least
    for position in range(ladder.num_steps):
        more = shares[position] * added[position]
        verifying += more
        seconds += more + slope
        rate = (1 + gains[position]) / seconds
        if rate > least:
            least, length, at_best = rate, position + 1, verifying
    if ladder.member.ends_early and ladder.num_together == 1 and rate > above:
        return rate, ladder.num_steps, verifying
    return least, length, at_best


def _best(ladders: Many[Ladder], added: Many[float], base: float) -> tuple[Ladder | None, Option | None]:
    """The member and length that are best for a sequence alone; none where plain decoding is."""
    rate, found, length, verifying = MARGIN / base if base > 0 else 0.0, None, 0, 0.0
    for ladder in ladders:
        rate, own, seconds = best_length(ladder, added, base, rate)
        if own:
            found, length, verifying = ladder, own, seconds
    return (None, None) if found is None else (found, found.option(length, verifying))


def _admit(best: Many[tuple[Ladder | None, Option | None]], cost: StepCost, rows: int) -> Plan:
    """Positions by what a row of them brings, and the prefix of them that is best."""
    tokens, drafting, extra = float(len(best)), _Drafting(), 0.0
    seconds = cost.seconds(rows)
    top, taken, admitted = (tokens / seconds, tokens, seconds), 0, []
    queue = [
        (-_worth(ladder, 0), index, 0)
        for index, (ladder, option) in enumerate(best)
        if ladder is not None and option is not None
    ]
    heapify(queue)
    while queue:
        _, index, position = heappop(queue)
        ladder, option = best[index]
        assert ladder is not None
        assert option is not None
        gain, more = _step_up(ladder, option, position)
        tokens, extra = tokens + gain, extra + more
        drafting.add(ladder, position)
        admitted.append((index, option.length if ladder.member.is_tree else position + 1))
        apart = cost.seconds(rows + round(extra)) + drafting.apart
        seconds = apart + drafting.together
        if tokens > top[0] * seconds:
            top, taken = (tokens / seconds, tokens, seconds), len(admitted)
        elif tokens < HOPELESS * top[0] * apart:
            break
        if not ladder.member.is_tree and position + 1 < option.length:
            heappush(queue, (-_worth(ladder, position + 1), index, position + 1))
    lengths = dict(admitted[:taken])
    options = [
        None if ladder is None or index not in lengths else ladder.option(lengths[index], 0.0)
        for index, (ladder, _) in enumerate(best)
    ]
    return Plan(options, top[1], top[2])


def _worth(ladder: Ladder, position: int) -> float:
    """Tokens that a row of this position brings."""
    if ladder.member.is_tree:
        return ladder.gains[-1] / max(ladder.shares[0] * ladder.nodes, 1e-9)
    gains = ladder.gains
    return (gains[position] - (gains[position - 1] if position else 0.0)) / max(ladder.shares[position], 1e-9)


def _step_up(ladder: Ladder, option: Option, position: int) -> tuple[float, float]:
    """What one position more, or a whole tree, brings in tokens and in rows."""
    if ladder.member.is_tree:
        return option.gain, option.rows
    return ladder.gains[position] - (ladder.gains[position - 1] if position else 0.0), ladder.shares[position]


@dataclass(slots=True)
class _Drafting:
    """Seconds of drafting what was admitted."""

    apart: float = 0.0
    """For each sequence by itself."""
    together: float = 0.0
    """For all sequences of a member at once: what its first and its longest draft bring about."""
    _longest: dict[str, int] = field(default_factory=dict)

    def add(self, ladder: Ladder, position: int) -> None:
        """One position more, or a whole tree."""
        before, depth = (0, ladder.limit) if ladder.member.is_tree else (position, position + 1)
        name = ladder.member.name
        longest = self._longest.get(name, 0)
        self.apart += (1 - ladder.shared) * _line(ladder, before, depth) + (0.0 if before else ladder.late)
        if depth > longest:
            self.together += ladder.shared * _line(ladder, longest, depth)
            self._longest[name] = depth


def _line(ladder: Ladder, before: int, depth: int) -> float:
    """What going on from a draft of one depth to a deeper one adds to drafting for one sequence."""
    return ladder.each * (depth - before) + (0.0 if before else ladder.first)
