"""The controller on scripted machines: never much slower than plain decoding, and near who knows the script."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest

from specdec.core.control.controller import Controller
from specdec.core.control.step_cost import StepCost
from specdec.core.control.types import PLAIN, Candidate, DraftTimes, Member, Outcome
from tests.core.control.simulation import SIZES, STEP, Machine, Script, cpu

Scripts = Mapping[str, Script]


def always(rate: float) -> Callable[[int, int], float]:
    return lambda step, position: rate


HOPELESS: dict[str, Scripts] = {
    "adversarial": {"bad": Script(always(0.0))},
    "three of them": {name: Script(always(0.0)) for name in ("a", "b", "c")},
    "that boast": {"bad": Script(always(0.0), hint=lambda step: 1 + step % 7)},
    "slow to tell that it has nothing": {"mute": Script(always(0.9), hint=lambda step: 0, hinting=0.5 * STEP)},
    "slow to boast": {"bad": Script(always(0.0), hint=lambda step: 5, hinting=0.5 * STEP)},
    "slow": {"slow": Script(always(0.9), fixed=20 * STEP)},
    "rather slow": {"slow": Script(always(0.7), fixed=3 * STEP)},
    "dear for what they bring": {"dear": Script(always(0.5), each=0.6 * STEP)},
    "right at first alone": {"lure": Script(lambda step, _: 0.9 if step < 20 else 0.0)},
    "a wide tree of nothing": {"tree": Script(always(0.0), length=4, nodes=24)},
    "slow and adversarial": {"slow": Script(always(0.9), fixed=5 * STEP), "bad": Script(always(0.0))},
    "that are expected to be good": {"bad": Script(always(0.0), fixed=0.2 * STEP, expected=(0.9,) * 4)},
    "that draft nothing": {"mute": Script(always(0.9), drafts=lambda step: False)},
}


@pytest.mark.parametrize("name", HOPELESS)
@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("steps", [128, 1000])
def test_hopeless_proposers_cost_less_than_two_percent(name: str, batch: int, steps: int) -> None:
    machine = Machine(dict(HOPELESS[name]), batch=batch)
    assert machine.run(machine.controller(), steps) >= 0.98 * machine.plain()


@pytest.mark.parametrize("name", HOPELESS)
def test_they_do_so_among_prompts_as_well(name: str) -> None:
    machine = Machine(dict(HOPELESS[name]), batch=4, prompt_rows=20)
    assert machine.run(machine.controller(), 1000) >= 0.98 * machine.plain()


def test_what_is_known_to_be_good_is_used_from_the_start() -> None:
    """Also where the first few of its drafts are nothing."""
    good = Script(lambda step, _: 0.0 if step < 3 else 0.55, fixed=0.05 * STEP, each=0.1 * STEP, has_kv=True)
    rates = []
    for expected in ((), (0.55,) * 4):
        machines = [Machine({"good": replace(good, expected=expected)}, seed=seed) for seed in range(12)]
        rates.append(sum(machine.run(machine.controller(), 100) / machine.plain() for machine in machines) / 12)
    assert rates[1] > 1.03 * rates[0]
    assert rates[1] > 1.2


def spikes(seconds: float, every: int, first: int = 0) -> Callable[[int], float]:
    return lambda call: seconds if call >= first and call % every == every - 1 else 0.0


RARELY_SLOW: dict[str, tuple[float, Script]] = {
    "late to be slow": (12 * STEP, Script(always(0.0), draft_spike=spikes(12 * STEP, 1))),
    "late, when it has shown itself good": (12 * STEP, Script(always(0.5), draft_spike=spikes(12 * STEP, 1, 100))),
    "one draft in eight": (50 * STEP, Script(always(0.0), draft_spike=spikes(50 * STEP, 8))),
    "one draft in twenty, and no bad ones": (100 * STEP, Script(always(0.2), draft_spike=spikes(100 * STEP, 20))),
    "one hint in ten": (25 * STEP, Script(always(0.0), hint=lambda step: 0, hint_spike=spikes(25 * STEP, 10))),
    "one hint in ten, which boasts": (
        25 * STEP,
        Script(always(0.0), hint=lambda _: 7, hint_spike=spikes(25 * STEP, 10)),
    ),
    "a hint late to be slow": (12 * STEP, Script(always(0.0), hint=lambda step: 0, hint_spike=spikes(12 * STEP, 1, 4))),
}


@pytest.mark.parametrize("name", RARELY_SLOW)
@pytest.mark.parametrize("steps", [900, 12000])
def test_rare_slow_calls_cost_two_percent_and_two_of_them(name: str, steps: int) -> None:
    """Nobody can stop one that nothing foretold, and the first may be the fault of the machine."""
    spike, script = RARELY_SLOW[name]
    machine = Machine({"rare": script})
    machine.run(machine.controller(), steps)
    assert machine.clock - 2 * spike <= machine.tokens / machine.plain() / 0.98


def test_who_is_good_outlives_a_hiccup() -> None:
    """One call takes as long as forty steps: soon no matter for who is new, and at once for who saved more."""
    for first, steps in ((30, 100), (1000, 100)):
        machine = Machine({"good": Script(always(0.8), draft_spike=lambda call, at=first: 40 * STEP * (call == at))})
        controller = machine.controller()
        machine.run(controller, first + steps)
        start = first + steps
        assert machine.run(controller, 300, start=start) >= 0.9 * machine.oracle(range(start, start + 300))


def test_hiccups_one_after_the_other_are_no_surprise() -> None:
    """Of the second all counts, or a slow proposer would be let go on for ever."""
    machine = Machine({"good": Script(always(0.8), draft_spike=lambda call: 40 * STEP * (call in (200, 210)))})
    controller = machine.controller()
    accounts = [0.0]
    for step in range(300):
        machine.run(controller, 1, start=step)
        accounts.append(controller.budget.accounts["good"])
    losses = sorted((before - after) / STEP for before, after in pairwise(accounts))
    assert losses[-1] > 30
    assert losses[-2] < 10


@pytest.mark.parametrize("period", [1, 3, 10, 50, 200])
@pytest.mark.parametrize("good", [0.3, 0.95])
def test_who_alternates_between_right_and_wrong_never_costs_two_percent(period: int, good: float) -> None:
    machine = Machine({"fickle": Script(lambda step, _: good if step // period % 2 else 0.0)})
    assert machine.run(machine.controller(), 1000) >= 0.98 * machine.plain()


def test_a_noisy_machine_does_not_make_it_slow() -> None:
    """One step in fifty takes ten times as long, and all vary by a third."""

    def noise(step: int) -> float:
        own = random.Random(step)
        return own.uniform(0.9, 1.2) * (10 if own.random() < 0.02 else 1)

    bad = Machine({"bad": Script(always(0.0))}, noise=noise)
    alone = Machine({}, noise=noise)
    assert bad.run(bad.controller(), 1000) >= 0.98 * alone.run(alone.controller(), 1000)
    good = Machine({"good": Script(always(0.8))}, noise=noise)
    assert (
        good.run(good.controller(), 1000) >= 0.9 * good.oracle(range(1000)) / alone.plain() * alone.tokens / alone.clock
    )


GOOD: dict[str, Scripts] = {
    "good": {"good": Script(always(0.8))},
    "excellent": {"good": Script(always(0.95))},
    "so-so": {"good": Script(always(0.3))},
    "good among bad": {
        "bad": Script(always(0.0)),
        "good": Script(always(0.8)),
        "slow": Script(always(0.9), fixed=5 * STEP),
    },
    "copies now and then": {
        "copy": Script(always(0.9), hint=lambda step: 3 * (step % 5 < 2), drafts=lambda step: step % 5 < 2)
    },
    "tells how sure it is": {
        "copy": Script(lambda step, _: 0.9 if step % 5 < 2 else 0.1, hint=lambda step: 3 if step % 5 < 2 else 1)
    },
    "a head, and copies": {
        "head": Script(always(0.75), each=0.1 * STEP, length=6, has_kv=True),
        "copy": Script(always(0.9), hint=lambda step: 3 * (step % 5 < 2), drafts=lambda step: step % 5 < 2),
    },
}


@pytest.mark.parametrize("name", GOOD)
def test_good_proposers_are_used_nearly_as_if_all_were_known(name: str) -> None:
    machine = Machine(dict(GOOD[name]))
    controller = machine.controller()
    machine.run(controller, 200)
    assert machine.run(controller, 1000, start=200) >= 0.94 * machine.oracle(range(200, 1200))


@pytest.mark.parametrize(
    "scripts",
    [
        {"copy": Script(lambda step, _: 0.0 if step < 500 else 0.95)},
        {
            "a": Script(lambda step, _: 0.9 if step < 500 else 0.1),
            "b": Script(lambda step, _: 0.2 if step < 500 else 0.9),
        },
    ],
)
def test_a_change_of_regime_is_noticed(scripts: Scripts) -> None:
    machine = Machine(dict(scripts))
    controller = machine.controller()
    machine.run(controller, 500)
    assert machine.run(controller, 500, start=500) >= 0.9 * machine.oracle(range(500, 1000))


@pytest.mark.parametrize("batch", [1, 2, 4])
@pytest.mark.parametrize("order", ["ab", "ba"])
def test_whoever_rests_is_looked_at_again_wherever_it_is_listed(order: str, batch: int) -> None:
    """Two that always have something to go by and are no good; after a while the second is."""
    scripts = {
        "a": Script(always(0.02), length=8, hint=lambda step: 1),
        "b": Script(lambda step, _: 0.02 if step < 400 else 0.9, length=8, hint=lambda step: 1),
    }
    machine = Machine({name: scripts[name] for name in order}, batch=batch)
    controller = machine.controller()
    machine.run(controller, 800)
    probes = [each.num_probes for each in controller.explain().proposers]
    assert min(probes) >= 5
    assert machine.run(controller, 400, start=800) >= 0.9 * machine.oracle(range(800, 1200))


@pytest.mark.parametrize("batch", [2, 4])
def test_any_sequence_may_be_the_one_that_is_looked_at(batch: int) -> None:
    machine = Machine({"a": Script(always(0.0)), "b": Script(always(0.0))}, batch=batch)
    controller, seen = machine.controller(), set()
    for _ in range(2000):
        names = controller.wanted_hints(batch)
        for name in names:
            controller.hinted(name, [(row, 100) for row in range(batch)], 0.0)
        hints = dict.fromkeys(names, 1)
        choices = controller.choose([Candidate(row, 100, 15, hints=hints) for row in range(batch)], batch)
        seen |= {(row, choice.proposer) for row, choice in enumerate(choices) if choice.is_probe}
        drafted = [(row, choice.proposer, choice.length) for row, choice in enumerate(choices) if choice.length]
        for row, proposer, length in drafted:
            controller.drafted(proposer, [(row, length, length)], 0.0)
        depths = {row: length for row, _, length in drafted}
        outcomes = [Outcome(row, depths.get(row, 0), depths.get(row, 0), 0) for row in range(batch)]
        rows = batch + sum(depths.values())
        controller.verified(outcomes, rows, machine.step_seconds(rows), 0.0, True)
    assert seen == {(row, name) for row in range(batch) for name in "ab"}


def test_it_goes_on_learning_where_every_step_computes_prompts() -> None:
    machine = Machine({"late": Script(lambda step, _: 0.0 if step < 300 else 0.9, length=8)}, prompt_rows=20)
    controller = machine.controller()
    before = controller.cost.points()
    machine.run(controller, 900)
    assert machine.run(controller, 300, start=900) >= 2.5 * machine.plain()
    assert controller.cost.points() == before, "what a prompt's rows take tells nothing of drafts'"


def dear(rows: float) -> float:
    """T(M) of a machine on which every row costs half of the first."""
    return STEP * (1 + 0.5 * (rows - 1))


@pytest.mark.parametrize("rate", [0.3, 0.45])
@pytest.mark.parametrize("measured", ["one row slow", "flat"])
@pytest.mark.parametrize("batch", [1, 4])
def test_a_plain_step_that_was_measured_too_slow_is_found_out(rate: float, measured: str, batch: int) -> None:
    """On the measured curve drafting pays, on the machine's it does not: by that curve it would go on for ever."""
    machine = Machine({"d": Script(always(rate), length=4)}, step_seconds=dear, batch=batch)
    slow = machine.curve(lambda rows: 1.5 if rows <= batch else 1.0)
    controller = machine.controller(slow if measured == "one row slow" else dict.fromkeys(slow, STEP))
    assert machine.run(controller, 500) >= 0.85 * machine.plain()
    assert machine.run(controller, 500, start=500) >= 0.98 * machine.plain()
    assert controller.explain().plain_goodput == pytest.approx(machine.plain(), rel=0.15)


@pytest.mark.parametrize("first", [2, 3, 5])
def test_drafted_steps_that_were_measured_too_slow_are_found_out(first: int) -> None:
    """From some size on steps seem to take three times what they take: short drafts alone would be chosen, or none."""
    machine = Machine({"good": Script(always(0.8), length=8)})
    controller = machine.controller(machine.curve(lambda rows: 3.0 if rows >= first else 1.0))
    machine.run(controller, 700)
    assert machine.run(controller, 500, start=700) >= 0.94 * machine.oracle(range(700, 1200))


def test_plain_steps_are_seldom_where_drafting_is_best() -> None:
    machine = Machine({"good": Script(always(0.8))})
    controller = machine.controller()
    machine.run(controller, 2000)
    plain = controller.explain().chosen[PLAIN, 0]
    assert 5 <= plain <= 0.01 * 2000
    assert controller.explain().probe_loss_seconds <= 0.01 * machine.clock


def test_a_new_sequence_begins_with_what_others_showed() -> None:
    """Of two proposers the good one is chosen from the first draft on, and not for one token only."""
    machine = Machine({"bad": Script(always(0.05)), "good": Script(always(0.9))})
    controller = machine.controller()
    machine.run(controller, 200, keys="first")
    controller.forget(("first", 0))
    choices = [controller.choose([Candidate("second", 10, 15)], 1)[0] for _ in range(4)]
    choice = next(each for each in choices if each.proposer != PLAIN)
    assert (choice.proposer, choice.is_probe) == ("good", False)
    assert choice.length >= 5


def test_in_a_batch_drafts_are_shorter_where_rows_are_dear() -> None:
    """At batch 16 this machine has no row to spare, alone it has some: the same proposer drafts less."""
    means = []
    for batch in (1, 16):
        machine = Machine({"good": Script(always(0.8))}, batch=batch)
        controller = machine.controller()
        machine.run(controller, 100)
        assert machine.run(controller, 100, start=100) >= 0.94 * machine.oracle(range(100, 200))
        chosen = controller.explain().chosen
        means.append(sum(k * n for (_, k), n in chosen.items()) / sum(chosen.values()))
    assert means[1] < 0.5 * means[0]


@pytest.mark.parametrize("rate", [0.6, 0.9])
def test_who_drafts_for_a_batch_in_one_pass_is_priced_by_it(rate: float) -> None:
    """A draft model takes a tenth of a step for each token; for 16 sequences apart that is more than it brings."""
    dear = {"model": Script(always(rate), each=0.1 * STEP, length=4, has_kv=True)}
    machine = Machine(dear, batch=16, step_seconds=lambda rows: STEP * (1 + 0.01 * rows))
    controller = machine.controller()
    machine.run(controller, 200)
    assert controller.explain().chosen[PLAIN, 0] >= 0.98 * 3200, "apart"
    machine = Machine({"model": replace(dear["model"], shared=0.95)}, batch=16, step_seconds=machine.step_seconds)
    controller = machine.controller()
    machine.run(controller, 100)
    assert machine.run(controller, 200, start=100) >= 0.95 * machine.oracle(range(100, 300))
    assert controller.beliefs.drafting["model"].seconds(4) == pytest.approx(0.4 * STEP, rel=0.1)


@pytest.mark.parametrize(("batch", "matches"), [(8, 6), (16, 12)])
def test_a_model_that_few_would_ask_does_not_keep_others_from_their_lookups(batch: int, matches: int) -> None:
    """Its calls would pay if all sequences shared them; where most have found something to copy, it is left out."""
    cost = StepCost({rows: STEP * (1 + 0.01 * rows) for rows in SIZES})
    members = [Member("copy", 8, 8), Member("model", 4, 4, has_kv=True)]
    controller = Controller(members, cost)
    controller.calibrated("copy", DraftTimes(((8, 0.0001 * STEP),), hint=0.00001 * STEP))
    controller.calibrated("model", DraftTimes(((1, 0.6 * STEP), (4, 2.4 * STEP)), shared=0.97))
    for _ in range(60):
        controller.beliefs.verified("other", "copy", 5, True, 8, 8)
        controller.beliefs.verified("other", "model", -1, True, 4, 3)
    candidates = [Candidate(row, 100, 15, 15, hints={"copy": 5 if row < matches else 0}) for row in range(batch)]
    chosen = Counter(choice.proposer for choice in controller.choose(candidates, batch) if not choice.is_probe)
    assert chosen["copy"] >= matches - 1


@pytest.mark.parametrize("ends_early", [False, True])
def test_who_ends_its_drafts_where_it_is_unsure_is_asked_for_all(ends_early: bool) -> None:
    """How far the next draft is worth going it knows best; how far drafts are on average is known here."""
    head = Member("head", 7, 7, ends_early=ends_early, expected=(0.6, 0.3, 0.3))
    controller = Controller([head], StepCost({1: 1.0, 8: 1.4}))
    controller.calibrated("head", DraftTimes(((1, 0.05), (7, 0.1))))
    (choice,) = controller.choose([Candidate("s", 50, 6)], 1)
    assert choice.length == 4 if ends_early else choice.length < 4
    for each in controller.choose([Candidate(key, 50, 6) for key in "ab"], 2):
        assert 0 < each.length < 4


def test_who_ends_early_is_asked_for_less_where_all_would_not_pay() -> None:
    head = Member("head", 7, 7, ends_early=True, expected=(0.8, 0.2, 0.2, 0.2))
    controller = Controller([head], StepCost({1: 1.0, 2: 1.05, 3: 1.9, 8: 7.0}))
    controller.calibrated("head", DraftTimes(((1, 0.05), (7, 0.1))))
    (choice,) = controller.choose([Candidate("s", 50, 6)], 1)
    assert choice.length == 1


def test_short_drafts_of_a_model_are_known_to_be_cheap() -> None:
    """One that is right for the first token alone pays at that length only."""
    scripts = {"model": Script(lambda step, at: 0.9 if at == 0 else 0.1, each=0.2 * STEP, length=8, has_kv=True)}
    machine = Machine(scripts)
    assert machine.run(machine.controller(), 60) >= 0.9 * machine.oracle(range(60))
    assert machine.oracle(range(60)) >= 1.3 * machine.plain()


def test_probes_never_lose_more_than_their_share() -> None:
    machine = Machine({"bad": Script(always(0.0)), "slow": Script(always(0.5), fixed=3 * STEP)})
    controller = machine.controller()
    machine.run(controller, 2000)
    explanation = controller.explain()
    assert sum(each.num_probes for each in explanation.proposers) > 20
    assert 0 < explanation.probe_loss_seconds <= 0.01 * machine.clock + 3 * STEP


def test_it_explains_itself() -> None:
    machine = Machine({"good": Script(always(0.5)), "bad": Script(always(0.0))})
    controller = machine.controller()
    machine.run(controller, 500)
    explanation = controller.explain()
    good, bad = explanation.proposers
    assert explanation.num_choices == explanation.num_steps == 500
    assert explanation.num_tokens == machine.tokens
    assert explanation.seconds == pytest.approx(machine.clock)
    assert explanation.measured_goodput == pytest.approx(machine.tokens / machine.clock)
    assert explanation.expected_goodput == pytest.approx(explanation.measured_goodput, rel=0.05)
    assert explanation.plain_goodput == pytest.approx(machine.plain(), rel=0.01)
    assert good.conditional_acceptance[0] == pytest.approx(0.5, abs=0.08)
    assert bad.conditional_acceptance == (0.0,)
    assert good.num_asked + bad.num_asked + explanation.chosen.get((PLAIN, 0), 0) == 500
    assert good.draft_seconds == pytest.approx(machine.spent["good"])
    assert explanation.step_seconds[1] == pytest.approx(STEP, rel=0.02)


def test_limits_are_kept() -> None:
    """No choice is longer than what could be verified, nor, with KV, than there are slots for."""
    members = [Member("head", 6, 6, has_kv=True), Member("copy", 15, 15), Member("tree", 4, 12, is_tree=True)]
    controller = Controller(members, StepCost({1: 1.0, 16: 1.0001}))
    rng = random.Random(0)
    for _ in range(500):
        key, length = rng.randrange(3), rng.randrange(1, 9)
        candidate = Candidate(key, 50, length, min(length, 2), hints={"copy": rng.randrange(3)})
        (choice,) = controller.choose([candidate], 1)
        limit = {"head": min(length, 2), "copy": length, "tree": min(length, 4), PLAIN: 0}[choice.proposer]
        assert 0 < choice.length <= limit or choice.proposer == PLAIN
        assert choice.proposer != "copy" or candidate.hints["copy"]
        if choice.proposer != PLAIN:
            controller.drafted(choice.proposer, [(key, choice.length, choice.length)], 0.0)
        accepted = rng.randrange(choice.length + 1)
        controller.verified([Outcome(key, choice.length, choice.length, accepted)], 1 + choice.length, 1.0, 0.0, True)


@pytest.mark.parametrize("lag", [0, 40])
def test_who_needs_to_follow_follows_while_it_is_of_use(lag: int) -> None:
    """What it computes in passing with its next draft it need not follow."""
    controller = Controller([Member("head", 4, 4, has_kv=True), Member("copy", 8, 8)], StepCost({1: 1.0, 9: 1.5}))
    followed = 0
    for step in range(200):
        hints = {"copy": 3 if step < 100 else 0}
        (choice,) = controller.choose([Candidate("s", 50 + step, 8, 4, lag=lag, hints=hints)], 1)
        followed += choice.proposer == "copy" and "head" in choice.followers
        if choice.proposer != PLAIN:
            controller.drafted(choice.proposer, [("s", choice.length, choice.length)], 0.001)
        accepted = choice.length if choice.proposer == "copy" else 0
        controller.verified([Outcome("s", choice.length, choice.length, accepted)], 1 + choice.length, 1.0, 0.0, True)
    if lag:
        assert 10 <= followed < 100, "it follows at first, and is let be when it was of no use"
    else:
        assert followed == 0


PROMPT = 400
"""Tokens of a prompt that the scripted head below sees in two parts, each of which takes it two plain steps."""


@dataclass
class Requests:
    """Short answers to long prompts, for a controller that has one head to choose, with KV of its own."""

    acceptance: float
    each: float
    """Plain steps for each token of a draft."""
    followed: Counter[int] = field(default_factory=Counter)
    """By request, how many parts of its prompt the head has seen."""
    halves: int = 0
    """Prompts of which it followed only a part."""
    clock: float = 0.0
    plain: float = 0.0

    def run(self, count: int, answer: int = 24) -> Controller:
        cost = StepCost({size: cpu(size) for size in SIZES})
        controller = Controller([Member("head", 4, 4, has_kv=True)], cost)
        controller.calibrated("head", DraftTimes(((4, 4 * self.each * STEP),)))
        for request in range(count):
            self._read(controller, request)
            tokens = 1
            while tokens < answer:
                tokens += self._decode(controller, request, tokens)
            self.plain += (answer - 1) * STEP
            controller.forget(request)
        return controller

    def _read(self, controller: Controller, request: int) -> None:
        for _ in range(2):
            took = 20 * STEP
            self.plain += took
            if "head" in controller.prompt_followers(request, PROMPT):
                self.followed[request] += 1
                controller.followed("head", [(request, PROMPT)], PROMPT // 2, 2 * STEP, in_prompt=True)
                took += 2 * STEP
            controller.verified([], PROMPT // 2, 20 * STEP, took - 20 * STEP, is_pure=False)
            self.clock += took
        self.halves += self.followed[request] == 1

    def _decode(self, controller: Controller, request: int, tokens: int) -> int:
        lag = 0 if self.followed[request] == 2 else PROMPT
        (choice,) = controller.choose([Candidate(request, PROMPT + tokens, 4, 4, lag=lag)], 1)
        seconds = accepted = 0
        if choice.proposer != PLAIN:
            seconds = choice.length * self.each * STEP + lag / PROMPT * 4 * STEP
            controller.drafted("head", [(request, choice.length, choice.length)], seconds)
            while (
                accepted < choice.length and random.Random(f"{request}/{tokens}/{accepted}").random() < self.acceptance
            ):
                accepted += 1
        elif choice.followers:
            seconds = self.each * STEP + lag / PROMPT * 4 * STEP
            controller.followed("head", [(request, PROMPT + tokens)], 1 + lag, seconds, in_prompt=lag > 0)
        if seconds and lag:
            self.followed[request] = 2
        rows = 1 + choice.length
        controller.verified([Outcome(request, choice.length, choice.length, accepted)], rows, cpu(rows), seconds, True)
        self.clock += cpu(rows) + seconds
        return 1 + accepted


@pytest.mark.parametrize("acceptance", [0.0, 0.1])
@pytest.mark.parametrize("each", [0.05, 0.3, 0.97])
def test_a_hopeless_head_stops_following_and_costs_less_than_two_percent(acceptance: float, each: float) -> None:
    requests = Requests(acceptance, each)
    requests.run(12)
    assert requests.clock <= requests.plain / 0.98
    assert not requests.halves, "what was begun is of use only as a whole"


def test_who_earns_too_little_for_its_prompts_stops_following_them() -> None:
    """It is right often enough to be worth its drafts, and not what it takes to see the prompts first."""
    requests = Requests(0.4, 0.25)
    requests.run(60)
    assert 0 < len(requests.followed) < 20
    assert requests.clock <= requests.plain / 0.98


def test_a_good_head_follows_all_prompts() -> None:
    requests = Requests(0.8, 0.1)
    requests.run(20, answer=60)
    assert len(requests.followed) == 20
    assert requests.clock <= 0.85 * requests.plain
