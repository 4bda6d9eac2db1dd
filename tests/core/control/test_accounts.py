"""What the controller makes of what it is told: who is charged, who follows, what is forgotten, what is explained."""

from __future__ import annotations

import gc
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.core.control.beliefs import Beliefs
from specdec.core.control.budget import DEEPEST, MOST_SAVED, Budget
from specdec.core.control.calls import CATCH_UP_SHARE
from specdec.core.control.controller import FOLLOWS_FOR, Controller
from specdec.core.control.plan import make_plan
from specdec.core.control.step_cost import StepCost
from specdec.core.control.types import PLAIN, Candidate, Choice, DraftTimes, Member, Outcome
from tests.core.control.simulation import STEP, cpu

CURVE = {rows: cpu(rows) for rows in (1, 2, 3, 5, 8, 16)}
COPY = Member("copy", 8, 8)
HEAD = Member("head", 4, 4, has_kv=True)


def step(
    controller: Controller, candidates: list[Candidate], accepted: dict[str, int], draft: float = 0.0
) -> list[Choice]:
    """One whole step: of each member's drafts so many positions are accepted, and each takes `draft` seconds."""
    choices = controller.choose(candidates, len(candidates))
    chosen = list(zip(candidates, choices, strict=True))
    for name in {choice.proposer for choice in choices} - {PLAIN}:
        drafts = [(each.key, choice.length, choice.length) for each, choice in chosen if choice.proposer == name]
        controller.drafted(name, drafts, draft * len(drafts))
    outcomes = [
        Outcome(each.key, choice.length, choice.length, min(choice.length, accepted.get(choice.proposer, 0)))
        for each, choice in chosen
    ]
    rows = sum(1 + outcome.nodes for outcome in outcomes)
    controller.verified(outcomes, rows, cpu(rows), draft * sum(map(bool, (c.length for c in choices))), True)
    return choices


class Key:
    """Of a sequence that ends."""


def test_nothing_of_a_sequence_that_is_done_is_kept() -> None:
    controller, key = Controller([COPY, HEAD], StepCost(CURVE)), Key()
    for number in range(20):
        step(controller, [Candidate(key, 50 + number, 8, 8)], {"copy": 2})
    kept = weakref.ref(key)
    controller.forget(key)
    del key
    gc.collect()
    assert kept() is None


def test_what_holds_for_greedy_requests_need_not_hold_for_sampled_ones() -> None:
    beliefs = Beliefs([COPY])
    for number in range(40):
        beliefs.verified(number, "copy", -1, number % 2 == 0, 4, 4 if number % 2 == 0 else 0)
    greedy, sampled = (beliefs.ladder(Candidate("new", 9, 8, is_greedy=each), COPY) for each in (True, False))
    assert greedy is not None
    assert sampled is not None
    assert greedy.gains[0] > 0.8
    assert sampled.gains[0] < 0.2


def test_each_sequence_has_an_acceptance_of_its_own() -> None:
    """Copies are right in one of two sequences that decode together; that one is drafted for, and the other is not."""
    controller = Controller([COPY], StepCost({1: 1.0, 2: 1.2, 16: 4.0}))
    drafted = {"right": 0, "wrong": 0}
    for number in range(200):
        candidates = [Candidate(key, 50 + number, 8) for key in drafted]
        choices = controller.choose(candidates, 2)
        lengths = dict(zip(drafted, (choice.length for choice in choices), strict=True))
        controller.drafted("copy", [(key, length, length) for key, length in lengths.items() if length], 0.0)
        outcomes = [Outcome(key, n, n, n if key == "right" else 0) for key, n in lengths.items()]
        rows = 2 + sum(lengths.values())
        controller.verified(outcomes, rows, controller.cost.seconds(rows), 0.0, True)
        if number >= 50:
            for key, length in lengths.items():
                drafted[key] += length > 0
    assert drafted["right"] > 140
    assert drafted["wrong"] < 30


def test_a_probe_is_paid_for_once() -> None:
    """What it loses comes out of the credit for probes, and not out of the account as well."""
    controller, probes = Controller([Member("bad", 8, 8)], StepCost(CURVE)), 0
    for number in range(1500):
        account, credit = controller.budget.accounts["bad"], controller.budget.credits["bad"]
        (choice,) = step(controller, [Candidate("s", 50 + number, 8)], {})
        if choice.is_probe:
            probes += 1
            assert controller.budget.accounts["bad"] >= account
            assert controller.budget.credits["bad"] < credit
    assert probes > 10


def test_a_proposer_may_take_its_time_for_what_it_sees_first() -> None:
    """A long prompt that a proposer reads when it is first asked tells nothing of what its drafts cost."""
    controller, tokens = Controller([COPY], StepCost(CURVE)), 5000
    controller.calibrated("copy", DraftTimes(((8, 0.0001),)))
    late = 0.9 * CATCH_UP_SHARE * STEP * tokens
    before = controller.budget.accounts["copy"]
    controller.hinted("copy", [("s", tokens)], late)
    assert controller.budget.accounts["copy"] == pytest.approx(before)
    other = Controller([COPY], StepCost(CURVE))
    other.calibrated("copy", DraftTimes(((8, 0.0001),)))
    step(other, [Candidate("s", tokens, 8)], {"copy": 8}, draft=late)
    believed = other.beliefs.drafting["copy"].seconds(8)
    assert believed <= 0.0002
    assert not other.budget.is_off("copy")
    step(other, [Candidate("s", tokens + 9, 8)], {"copy": 8}, draft=late)
    assert other.beliefs.drafting["copy"].seconds(8) > 1.5 * believed, "the second time it counts"


def test_prompts_of_one_step_do_not_overdraw_the_stake_together() -> None:
    """What reading the first is expected to take is gone for the second, and there again where it was not spent."""
    controller = Controller([HEAD], StepCost(CURVE))
    controller.calibrated("head", DraftTimes(((4, 0.01 * STEP),), reading=(60, 0.3 * STEP)))
    readers = [request for request in range(20) if controller.prompt_followers(request, 600)]
    assert readers == [0, 1], "3 of the 5 plain steps each: the second may take the rest and what it lacks"
    controller.verified([], 600, 20 * STEP, 0.0, is_pure=False)
    assert controller.prompt_followers("next", 600) == ["head"]


def test_what_a_step_may_read_is_not_held_against_its_drafts() -> None:
    """The last text that the stake was open for may take more than there was: that is the stake's to owe."""
    controller = Controller([HEAD], StepCost(CURVE))
    controller.calibrated("head", DraftTimes(((4, 0.01 * STEP),), reading=(60, 0.6 * STEP)))
    assert controller.prompt_followers("long", 900) == ["head"]
    controller.choose([Candidate("s", 50, 4, 4)], 1)
    account = controller.budget.accounts["head"]
    controller.drafted("head", [("s", 4, 4)], 9.01 * STEP, {"long": 900})
    controller.verified([Outcome("s", 4, 4, 0)], 5, STEP, 9.01 * STEP, is_pure=False)
    assert controller.budget.accounts["head"] == pytest.approx(account, abs=0.3 * STEP)
    assert controller.budget.stakes["head"] < 0


def test_what_was_read_beside_drafts_is_not_held_for_their_cost() -> None:
    controller = Controller([HEAD], StepCost(CURVE))
    controller.calibrated("head", DraftTimes(((4, 0.01 * STEP),)))
    (choice,) = controller.choose([Candidate("s", 50, 4, 4)], 1)
    assert choice.proposer == "head"
    stake, account = controller.budget.stakes["head"], controller.budget.accounts["head"]
    controller.drafted("head", [("s", 4, 4)], 2.01 * STEP, {"other": 600})
    assert controller.beliefs.drafting["head"].seconds(4) == pytest.approx(0.01 * STEP)
    assert controller.budget.stakes["head"] == pytest.approx(stake - 2 * STEP)
    assert controller.budget.accounts["head"] == pytest.approx(account)
    assert "head" in controller.beliefs.known("other").met


def test_following_prompts_is_free_and_following_answers_is_not() -> None:
    controller = Controller([HEAD, COPY], StepCost(CURVE))
    before = controller.budget.accounts["head"]
    controller.followed("head", [("s", 5)], 5, 0.1 * STEP, in_prompt=True)
    assert controller.budget.accounts["head"] == before
    assert controller.explain().follow_seconds == 0.0
    controller.followed("head", [("s", 6)], 1, 0.1 * STEP, in_prompt=False)
    assert controller.budget.accounts["head"] == pytest.approx(before - 0.1 * STEP)
    assert controller.explain().follow_seconds == pytest.approx(0.1 * STEP)


def test_who_is_not_asked_stops_following() -> None:
    """Where it has missed much it follows a new sequence, and for a while after each time that it was asked."""
    controller, last = Controller([COPY, HEAD], StepCost(CURVE)), 0
    for number in range(300):
        (choice,) = step(controller, [Candidate("s", 50 + number, 8, 8, lag=40)], {"copy": 8})
        if choice.proposer == "head":
            last = number
        follows = number - last < FOLLOWS_FOR and choice.proposer != "head"
        assert ("head" in choice.followers) == (follows and not controller.budget.is_off("head"))
    assert number - last > 2 * FOLLOWS_FOR


def test_what_was_promised_stands_beside_what_came() -> None:
    controller = Controller([COPY], StepCost(CURVE))
    (choice,) = step(controller, [Candidate("s", 50, 8)], {})
    assert choice.length
    explanation = controller.explain()
    assert explanation.num_tokens == 1
    assert explanation.expected_tokens > 1.5
    assert explanation.plain_seconds == pytest.approx(STEP)
    assert explanation.seconds == pytest.approx(cpu(1 + choice.length))


def test_an_account_holds_and_owes_only_so_much() -> None:
    budget = Budget(["a"], 1.0)
    budget.add("a", 1000.0, 1.0)
    assert budget.accounts["a"] == MOST_SAVED
    budget.add("a", -1000.0, 1.0)
    assert budget.accounts["a"] == DEEPEST
    for _ in range(1000):
        budget.elapsed(0.0, 1.0)
    budget.add("a", -1e6, 1.0)
    assert budget.accounts["a"] == DEEPEST - 1000, "in a long session more"


def test_what_came_to_nothing_is_charged() -> None:
    """A draft whose sequence ended, one that no step verified, and a first look at a text beyond the stake."""
    controller = Controller([COPY], StepCost(CURVE))
    for ends in (True, False):
        (choice,) = controller.choose([Candidate("s", 0, 8)], 1)
        assert choice.length
        controller.drafted("copy", [("s", 0, 0)], 0.01 * STEP)
        before = controller.budget.accounts["copy"]
        if ends:
            controller.forget("s")
        else:
            controller.rest(1, 1)
        assert before - controller.budget.accounts["copy"] == pytest.approx(0.01 * STEP)
    controller.budget.has_read("copy", 100 * STEP)
    before = controller.budget.accounts["copy"]
    controller.followed("copy", [("new", 1000)], 1, 0.02 * STEP, in_prompt=False)
    assert before - controller.budget.accounts["copy"] == pytest.approx(0.02 * STEP)


@given(
    batch=st.integers(2, 8),
    rates=st.lists(st.floats(0.0, 0.95), min_size=8, max_size=8),
    slope=st.floats(0.0, 0.3),
    tile=st.integers(1, 8),
)
def test_a_plan_for_a_batch_is_what_it_says(batch: int, rates: list[float], slope: float, tile: int) -> None:
    """Its tokens and seconds are those of its options."""
    cost = StepCost({rows: 1 + slope * (rows // tile) for rows in range(1, 80)})
    beliefs = Beliefs([COPY])
    for number in range(100):
        for row in range(batch):
            beliefs.verified(row, "copy", -1, True, 8, int(8 * rates[row] * (number % 3) / 2))
    plan = make_plan([Candidate(row, 9, 8) for row in range(batch)], [COPY], beliefs, cost, batch)
    options = [option for option in plan.options if option is not None]
    assert plan.tokens == pytest.approx(batch + sum(option.gain for option in options))
    rows = batch + round(sum(option.rows for option in options))
    assert plan.seconds == pytest.approx(cost.seconds(rows) + sum(option.drafting for option in options))


def test_the_rows_of_a_tree_are_paid_for() -> None:
    """Half a token for twelve rows is too little where each adds a tenth, and enough where they are free."""
    tree = Member("tree", 2, 12, is_tree=True)
    for slope, drafts in ((0.1, False), (0.0, True)):
        cost = StepCost({1: 1.0, 64: 1.0 + 63 * slope})
        (option,) = make_plan([Candidate("s", 9, 8)], [tree], Beliefs([tree]), cost, 1).options
        assert (option is not None) == drafts


def test_of_a_step_with_prompts_only_its_decoding_counts() -> None:
    """However long the prompts in it took."""
    controller = Controller([COPY], StepCost(CURVE))
    controller.choose([Candidate("s", 50, 8)], 500)
    before = controller.budget.credits["copy"]
    controller.verified([Outcome("s", 0, 0, 0)], 500, 100 * STEP, 0.0, False)
    assert before < controller.budget.credits["copy"] <= before + 0.01 * STEP
