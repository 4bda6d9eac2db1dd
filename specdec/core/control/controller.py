"""Chooses for each sequence who drafts next and how many tokens, to commit the most tokens a second.

One decision a step and sequence, before anything is drafted, from what is known by then: T(M) of this machine, what
drafts cost, how often they were accepted, and what proposers say they have to go by. What was drafted is told later as
numbers, never as tokens, and all of it is submitted: so no token is dropped for what it is, which would change the
distribution (`tests/engine/test_auto.py` shows one that does).

It reads no clock: seconds come from the step's record.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace

from specdec.core.control.beliefs import Beliefs
from specdec.core.control.budget import Budget
from specdec.core.control.calls import Calls, Reading
from specdec.core.control.explanation import Explanation, Tallies
from specdec.core.control.looks import Looks
from specdec.core.control.plan import Plan, make_plan
from specdec.core.control.step_cost import StepCost
from specdec.core.control.types import PLAIN, Candidate, Choice, DraftTimes, Member, Option, Outcome

FOLLOWS_FOR = 16
"""Steps for which a proposer with state goes on following a sequence that it is not chosen for."""
ATTENTIVE = 32
"""Steps without being chosen after which a proposer is asked for hints only now and then."""
NOW_AND_THEN = 4


@dataclass(slots=True)
class _Pending:
    """What was chosen for a sequence and is not verified yet."""

    option: Option
    candidate: Candidate
    is_probe: bool
    forgone: float
    """Seconds that the option it took the place of would have saved."""
    drafting: float = 0.0


class Controller:
    """`members` may draft; `cost` is the machine's T(M)."""

    def __init__(self, members: Iterable[Member], cost: StepCost) -> None:
        self.cost = cost
        self.beliefs = Beliefs(members)
        self.members = tuple(self.beliefs.members.values())
        known = [member.name for member in self.members if member.expected]
        self.budget = Budget(self.beliefs.members, cost.seconds(1), known)
        self._calls = Calls(self.beliefs, cost, self.budget)
        self._looks = Looks(self.members, self.beliefs, cost, self.budget)
        self._tallies = Tallies([member.name for member in self.members])
        self._pending: dict[Hashable, _Pending] = {}
        self._plan: Plan | None = None
        self._forgone: float | None = None
        """Seconds a token that were promised, where a plain step was taken instead."""
        self._step = 0
        self._last_chosen = dict.fromkeys(self.beliefs.members, 0)
        self._stateful = [member for member in self.members if member.has_kv or member.learns]

    def calibrated(self, member: str, times: DraftTimes) -> None:
        """What a member took before there was any request."""
        cost = self.beliefs.drafting[member]
        cost.shared = times.shared
        for length, seconds in times.drafts:
            cost.line(1).observe(length, seconds)
        if times.hint is not None:
            self.beliefs.hinting.add(member)
            self.beliefs.telling[member].observe(1, times.hint)
        if times.reading is not None:
            for num_tokens, seconds in ((0, 0.0), times.reading):
                self.beliefs.following[member].observe(num_tokens, seconds)

    def wanted_hints(self, num_sequences: int) -> list[str]:
        """Who is to be asked for hints before the next choice. Who was of no use for long, only now and then; who is
        switched off, as far as the credit for probes goes."""
        looks = self._step % NOW_AND_THEN == 0
        return [
            name
            for name, last in self._last_chosen.items()
            if (looks or self._step - last < ATTENTIVE) and self._may_hint(name, num_sequences)
        ]

    @property
    def needs_hints(self) -> bool:
        """Whether nobody can be chosen without having been asked for a hint."""
        return len(self.beliefs.hinting) == len(self.members)

    def rest(self, num_sequences: int, rows: int) -> None:
        """A step without a choice: so many sequences are decoded plainly."""
        self._begin()
        self._plan, self._forgone = self._plain_plan(num_sequences, rows), None
        for _ in range(num_sequences):
            self._tallies.chose(PLAIN, 0, False)

    def _begin(self) -> None:
        """A step begins. Drafts that were never verified have cost what they cost."""
        self._step += 1
        self._calls.tick()
        self.beliefs.tick()
        for key in list(self._pending):
            self._drop(key)

    def _drop(self, key: Hashable) -> None:
        pending = self._pending.pop(key, None)
        if pending is not None and pending.drafting:
            self._calls.charge(pending.option.member.name, pending.drafting)

    def _plain_plan(self, num_sequences: int, rows: int) -> Plan:
        return Plan([None] * num_sequences, float(num_sequences), self.cost.seconds(rows))

    def _may_hint(self, member: str, num_sequences: int) -> bool:
        cost = self.beliefs.telling[member]
        seconds = num_sequences * cost.seconds(1)
        return seconds <= self.budget.accounts[member] or self.budget.affords(member, seconds + cost.risk)

    def choose(self, candidates: Many[Candidate], rows: int) -> list[Choice]:
        """The step's decision. `rows` are computed in any case: one for each candidate, and others'."""
        self._begin()
        usable = [member for member in self.members if not self.budget.is_off(member.name)]
        plan = make_plan(candidates, usable, self.beliefs, self.cost, rows)
        is_plain = self._looks.wants_plain_step(plan, rows)
        self._forgone = plan.seconds / plan.tokens if is_plain else None
        if is_plain:
            plan = self._plain_plan(len(candidates), rows)
        self._plan = plan
        choices = [self._take(each, option) for each, option in zip(candidates, plan.options, strict=True)]
        probe = None if is_plain else self._looks.probe(candidates, plan, rows, self._step)
        if probe is not None:
            self._expect(candidates[probe.index], probe.option, is_probe=True, forgone=probe.forgone)
            choices[probe.index] = Choice(probe.option.member.name, probe.option.length, is_probe=True)
        if self._stateful:
            choices = [
                replace(choice, followers=self._followers(each, choice.proposer))
                for each, choice in zip(candidates, choices, strict=True)
            ]
        for choice in choices:
            self._tallies.chose(choice.proposer, choice.length, choice.is_probe)
        return choices

    def prompt_followers(self, key: Hashable, num_tokens: int) -> list[str]:
        """Members with KV that follow a prompt of so many tokens: those that promise something to a sequence of which
        nothing is known, and have earned what earlier prompts took. Who has begun goes on."""
        blank = Candidate(key=None, num_tokens=0, length=64, kv_length=64)
        met = self.beliefs.known(key).met
        return [
            member.name
            for member in self.members
            if member.has_kv
            and not self.budget.is_off(member.name)
            and self._promises(member, blank)
            and (member.name in met or self._takes_up(member.name, num_tokens))
        ]

    def _takes_up(self, member: str, num_tokens: int) -> bool:
        """Whether a member reads another text in this step. If so, what that is expected to take is set aside."""
        if not self.budget.may_read(member):
            return False
        self.budget.set_aside(member, self.beliefs.following[member].seconds(num_tokens))
        return True

    def _promises(self, member: Member, candidate: Candidate) -> bool:
        """Whether a member by itself would be faster than plain decoding."""
        return make_plan([candidate], [member], self.beliefs, self.cost, 1).options[0] is not None

    def _take(self, candidate: Candidate, option: Option | None) -> Choice:
        if option is None:
            return Choice()
        self._expect(candidate, option, is_probe=False, forgone=0.0)
        self._last_chosen[option.member.name] = self._step
        return Choice(option.member.name, option.length)

    def _expect(self, candidate: Candidate, option: Option, is_probe: bool, forgone: float) -> None:
        self._pending[candidate.key] = _Pending(option, candidate, is_probe, forgone)
        self.beliefs.known(candidate.key).asked[option.member.name] = self._step

    def _followers(self, candidate: Candidate, proposer: str) -> tuple[str, ...]:
        """Members with state that were asked for a sequence's draft a short while ago, or are new to it, and are not
        asked now."""
        known = self.beliefs.known(candidate.key)
        if known.since is None:
            known.since = self._step
        return tuple(
            member.name
            for member in self._stateful
            if member.name != proposer
            and self._step - known.asked.get(member.name, known.since) < FOLLOWS_FOR
            and not self.budget.is_off(member.name)
            and (not member.has_kv or self._keeps_up(member, candidate, known.met))
        )

    def _keeps_up(self, member: Member, candidate: Candidate, met: set[str]) -> bool:
        """Whether a member with KV is to follow a sequence. It need not while what it missed is so little that its next
        draft computes it in passing, nor where it promises nothing: many tokens at once are cheaper."""
        if not candidate.lag or not self._promises(member, replace(candidate, lag=0)):
            return False
        return member.name in met or self._takes_up(member.name, candidate.lag)

    def hinted(self, member: str, candidates: Iterable[tuple[Hashable, int]], seconds: float) -> None:
        """A member was asked for hints about these sequences, of so many tokens each, which took so long."""
        self._tallies.hint_seconds += seconds
        self.beliefs.hinting.add(member)
        self._calls.hinted(member, list(candidates), seconds)

    def followed(
        self, member: str, sequences: Iterable[tuple[Hashable, int]], num_missed: int, seconds: float, in_prompt: bool
    ) -> None:
        """A member followed sequences without drafting, which had this many tokens new to it. In a prompt it is its
        stake that pays for that."""
        self._tallies.follow_seconds += 0.0 if in_prompt else seconds
        self._calls.followed(member, list(sequences), num_missed, seconds, in_prompt)

    def drafted(
        self,
        member: str,
        drafts: Many[tuple[Hashable, int, int]],
        seconds: float,
        read: Mapping[Hashable, int] | None = None,
    ) -> None:
        """A member was asked for the drafts that were chosen: for each sequence the depth and rows of what came. In the
        same call it `read` others, which had so many tokens new to it."""
        mine = [(self._pending[key], depth, nodes) for key, depth, nodes in drafts if key in self._pending]
        if not mine:
            return
        lag = sum((read or {}).values()) + sum(each.candidate.lag for each, _, _ in mine if each.option.member.has_kv)
        sequences = [(each.candidate.key, each.candidate.num_tokens) for each, _, _ in mine]
        lengths = [each.option.length for each, _, _ in mine]
        drafting = self._calls.drafted(member, sequences, lengths, seconds, Reading(lag, tuple(read or ())))
        for each, depth, nodes in mine:
            each.drafting = drafting / len(mine)
            option = each.option
            self.beliefs.drafted(member, option.hint, each.candidate.is_greedy, option.length, depth, nodes)
            self._tallies.draft_seconds[member] += seconds / len(mine)
            self._tallies.num_asked[member] += 1

    def verified(self, outcomes: Iterable[Outcome], rows: int, seconds: float, propose: float, is_pure: bool) -> None:
        """A step of so many rows was verified in `seconds`, after drafting for `propose` of them.

        `is_pure`: it computed nothing but candidates' rows and their drafts, so that its time tells of T(M). Of another
        step, what these rows alone would have taken counts as time spent decoding.
        """
        judged = list(outcomes)
        self.budget.end_step()
        if is_pure:
            self.cost.observe(rows, seconds)
        else:
            whole, seconds = seconds, min(seconds, self.cost.seconds(sum(1 + each.nodes for each in judged)))
            self.budget.prompts_took(whole - seconds, self.cost.seconds(1))
        if is_pure or judged:
            self.budget.elapsed(seconds + propose, self.cost.seconds(1))
        if is_pure and self._plan is not None:
            tokens = len(judged) + sum(each.accepted for each in judged)
            plain = self.cost.seconds(rows - sum(each.nodes for each in judged))
            self._tallies.stepped(tokens, seconds + propose, plain, self._plan)
        if self._forgone is not None:
            lost = self.cost.seconds(len(judged)) - self._forgone * len(judged)
            self.budget.took_plain_step(max(0.0, lost))
        for each in judged:
            pending = self._pending.pop(each.key, None)
            if pending is not None:
                self._judge(pending, each, rows, len(judged))
        self._plan = self._forgone = None

    def _judge(self, pending: _Pending, outcome: Outcome, rows: int, num_sequences: int) -> None:
        option, name = pending.option, pending.option.member.name
        if outcome.depth:
            self.beliefs.verified(
                outcome.key, name, option.hint, pending.candidate.is_greedy, outcome.depth, outcome.accepted
            )
            self._tallies.verified(name, outcome.depth, outcome.accepted)
        without = self.cost.seconds(rows - outcome.nodes)
        lost = self.cost.seconds(rows) - without + pending.drafting
        saved = self.cost.plain_seconds(outcome.accepted, num_sequences) - lost
        if pending.is_probe:
            self.budget.probed(name, max(0.0, pending.forgone - saved))
        if not pending.is_probe or saved > 0:
            self.budget.add(name, saved, self.cost.seconds(1))

    def forget(self, key: Hashable) -> None:
        """A sequence is done."""
        self.beliefs.forget(key)
        self._drop(key)

    def explain(self) -> Explanation:
        """What was chosen, and what it was chosen from."""
        costs = {name: cost.seconds(1) for name, cost in self.beliefs.drafting.items()}
        off = tuple(name for name in self.beliefs.members if self.budget.is_off(name))
        return self._tallies.explanation(self.cost.points(), costs, self.budget.spent, off)
