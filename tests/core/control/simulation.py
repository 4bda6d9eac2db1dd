"""A machine of numbers for the controller: its clock advances and its proposers are right as scripted.

No engine and no tokens: what a step takes, what a draft costs and how many positions of it are accepted are functions
of the step's number and of a counter-based uniform, so every run is the same.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from specdec.core.control.controller import Controller
from specdec.core.control.step_cost import StepCost
from specdec.core.control.types import PLAIN, Candidate, DraftTimes, Member, Outcome

STEP = 0.004
"""Seconds of a plain step."""
SIZES = (1, 2, 3, 5, 8, 12, 16, 24, 32)


def cpu(rows: float) -> float:
    """T(M) of a machine whose arithmetic is free up to five rows, about, and then is not."""
    return STEP * (1 + 0.02 * (rows - 1) + 0.05 * max(0.0, rows - 5) + 0.0005 * (rows - 1) ** 1.5)


@dataclass
class Script:
    """A proposer. At step t position j is accepted, given j - 1, with probability `acceptance(t, j)`."""

    acceptance: Callable[[int, int], float]
    fixed: float = 0.00001
    """Seconds of a draft, and of each of its tokens."""
    each: float = 0.0
    hint: Callable[[int], int] | None = None
    hinting: float = 0.000005
    """Seconds of a hint."""
    drafts: Callable[[int], bool] = lambda step: True
    draft_spike: Callable[[int], float] = lambda call: 0.0
    hint_spike: Callable[[int], float] = lambda call: 0.0
    """Seconds more, by how often it was asked before."""
    length: int = 15
    nodes: int = 0
    has_kv: bool = False
    shared: float = 0.0
    """Of what a draft takes, the part that others in the same call do not take again."""
    expected: tuple[float, ...] = ()

    def times(self) -> tuple[tuple[int, float], ...]:
        """What is measured before there is any request."""
        lengths = (1, self.length) if self.has_kv else (self.length,)
        return tuple((length, self.fixed + self.each * length) for length in lengths)

    def seconds(self, count: int, length: int) -> float:
        """Of so many drafts in one call, the longest of them of that length."""
        return (self.shared + (1 - self.shared) * count) * (self.fixed + self.each * length)


@dataclass
class Machine:
    """Runs a controller, or a fixed choice, over scripted proposers."""

    scripts: dict[str, Script]
    step_seconds: Callable[[float], float] = cpu
    noise: Callable[[int], float] = lambda step: 1.0
    """A factor on what a step takes."""
    batch: int = 1
    prompt_rows: int = 0
    """Rows of prompts that every step computes as well."""
    seed: int = 0
    clock: float = 0.0
    tokens: int = 0
    spent: dict[str, float] = field(default_factory=dict)
    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By proposer and what it was asked for, how often."""

    def controller(self, measured: Mapping[int, float] | None = None) -> Controller:
        """One that measured the machine's T(M), or `measured` instead."""
        members = [
            Member(name, each.length, each.nodes or each.length, bool(each.nodes), each.has_kv, expected=each.expected)
            for name, each in self.scripts.items()
        ]
        controller = Controller(members, StepCost(measured or self.curve()))
        for name, each in self.scripts.items():
            hinting = None if each.hint is None else each.hinting
            times = DraftTimes(each.times(), hinting, each.shared)
            controller.calibrated(name, times)
        return controller

    def curve(self, factor: Callable[[int], float] = lambda rows: 1.0) -> dict[int, float]:
        """T(M) at the sizes that are measured, each off by a factor."""
        return {size: self.step_seconds(size) * factor(size) for size in SIZES}

    def run(self, controller: Controller, steps: int, start: int = 0, keys: str = "") -> float:
        """Tokens a second over `steps` steps of the batch."""
        begin, tokens = self.clock, self.tokens
        for step in range(start, start + steps):
            self._step(controller, step, keys)
        return (self.tokens - tokens) / (self.clock - begin)

    def _step(self, controller: Controller, step: int, keys: str) -> None:
        drafting = 0.0
        wanted = [name for name in controller.wanted_hints(self.batch) if self.scripts[name].hint is not None]
        for name in wanted:
            seconds = self.batch * self.scripts[name].hinting + self._spike(name, "hint")
            controller.hinted(name, [((keys, row), 100 + step) for row in range(self.batch)], seconds)
            drafting += seconds
        candidates = []
        for row in range(self.batch):
            hints = {name: hint(step) for name in wanted if (hint := self.scripts[name].hint) is not None}
            candidates.append(Candidate((keys, row), 100 + step, 63, 63, hints=hints))
        choices = controller.choose(candidates, self.batch + self.prompt_rows)
        made: dict[str, list[tuple[object, int, int]]] = {}
        outcomes = []
        for candidate, choice in zip(candidates, choices, strict=True):
            depth = self._depth(choice.proposer, choice.length, step)
            nodes = self.scripts[choice.proposer].nodes or depth if depth else 0
            if choice.proposer != PLAIN:
                made.setdefault(choice.proposer, []).append((candidate.key, depth, nodes))
            outcomes.append(
                Outcome(candidate.key, depth, nodes, self.accepted(choice.proposer, depth, step, candidate.key))
            )
        for name, drafts in made.items():
            longest = max(choice.length for choice in choices if choice.proposer == name)
            seconds = self.scripts[name].seconds(len(drafts), longest) + self._spike(name, "draft")
            controller.drafted(name, drafts, seconds)
            self.spent[name] = self.spent.get(name, 0.0) + seconds
            drafting += seconds
        rows = self.batch + self.prompt_rows + sum(outcome.nodes for outcome in outcomes)
        seconds = self.step_seconds(rows) * self.noise(step)
        controller.verified(outcomes, rows, seconds, drafting, is_pure=not self.prompt_rows)
        self.clock += seconds + drafting
        self.tokens += self.batch + sum(outcome.accepted for outcome in outcomes)

    def _spike(self, name: str, part: str) -> float:
        script, call = self.scripts[name], self.calls[name, part]
        self.calls[name, part] += 1
        return script.hint_spike(call) if part == "hint" else script.draft_spike(call)

    def _depth(self, name: str, length: int, step: int) -> int:
        return length if name != PLAIN and self.scripts[name].drafts(step) else 0

    def accepted(self, name: str, depth: int, step: int, key: object) -> int:
        """How many positions are right; the luck of a step is the same whoever drafts how much."""
        for position in range(depth):
            luck = random.Random(f"{self.seed}/{step}/{key}/{position}").random()
            if luck >= self.scripts[name].acceptance(step, position):
                return position
        return depth

    def plain(self) -> float:
        """Tokens a second without drafts."""
        return self.batch / self.step_seconds(self.batch + self.prompt_rows)

    def oracle(self, steps: range) -> float:
        """Tokens a second of who knows every acceptance rate and cost, and takes the best of all choices each step."""
        tokens = seconds = 0.0
        for step in steps:
            best = (self.batch / self.step_seconds(self.batch), float(self.batch), self.step_seconds(self.batch))
            for script in self.scripts.values():
                if script.drafts(step) and (script.hint is None or script.hint(step)):
                    best = max(best, *self._options(script, step))
            tokens += best[1]
            seconds += best[2]
        return tokens / seconds

    def _options(self, script: Script, step: int) -> list[tuple[float, float, float]]:
        found, alive, gain = [], 1.0, 0.0
        for position in range(script.length):
            alive *= script.acceptance(step, position)
            gain += alive
            if script.nodes and position + 1 < script.length:
                continue
            nodes = script.nodes or position + 1
            took = self.step_seconds(self.batch * (1 + nodes))
            took += script.seconds(self.batch, position + 1)
            tokens = self.batch * (1 + gain)
            found.append((tokens / took, tokens, took))
        return found
