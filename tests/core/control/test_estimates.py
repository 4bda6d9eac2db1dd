"""T(M), draft costs, acceptance and budgets: what the controller's parts believe after what they were told."""

from __future__ import annotations

import math
import random
from itertools import pairwise
from operator import mul

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.core.control.acceptance import OWN_FADE, PRIOR, Tally, conditional
from specdec.core.control.beliefs import Beliefs
from specdec.core.control.budget import Budget
from specdec.core.control.draft_cost import CallCost, DraftCost
from specdec.core.control.plan import make_plan
from specdec.core.control.step_cost import StepCost, isotonic
from specdec.core.control.types import UNKNOWN, Candidate, Member

SECONDS = st.floats(1e-6, 10.0)


@given(st.lists(SECONDS, min_size=1, max_size=12))
def test_isotonic_rises_and_keeps_the_mean(values: list[float]) -> None:
    weights = [1.0 + i % 3 for i in range(len(values))]
    fitted = isotonic(values, weights)
    assert all(a <= b * (1 + 1e-12) for a, b in pairwise(fitted))
    assert sum(map(mul, fitted, weights)) == pytest.approx(sum(map(mul, values, weights)))
    if values == sorted(values):
        assert fitted == pytest.approx(values)


@given(
    st.dictionaries(st.integers(1, 64), SECONDS, min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(1, 200), SECONDS), max_size=60),
)
def test_more_rows_never_take_less_whatever_was_observed(
    points: dict[int, float], observed: list[tuple[int, float]]
) -> None:
    cost = StepCost(points)
    for rows, seconds in observed:
        cost.observe(rows, seconds)
    times = [cost.seconds(rows) for rows in range(1, 150)]
    assert all(0 < a <= b * (1 + 1e-9) for a, b in pairwise(times))


def test_a_curve_passes_through_its_points_and_goes_on() -> None:
    cost = StepCost({1: 4.0, 5: 5.0, 8: 8.0})
    assert [cost.seconds(rows) for rows in (0, 1, 3, 5, 8, 11)] == [0.0, 4.0, 4.5, 5.0, 8.0, 11.0]
    assert cost.points() == {1: 4.0, 5: 5.0, 8: 8.0}


def test_a_longer_context_is_followed_and_outliers_are_not() -> None:
    """Steps of 1 and 5 rows, which grow by 30 and 60 %; one in thirty takes a hundred times as long."""
    cost, rng = StepCost({1: 4.0, 5: 5.0, 8: 8.0}), random.Random(1)
    for step in range(900):
        grown = min(1.0, step / 600)
        rows, truth = (1, 4.0 * (1 + 0.3 * grown)) if step % 2 else (5, 5.0 * (1 + 0.6 * grown))
        cost.observe(rows, truth * (100.0 if rng.random() < 1 / 30 else 1.0))
    assert cost.seconds(1) == pytest.approx(5.2, rel=0.08)
    assert cost.seconds(5) == pytest.approx(8.0, rel=0.08)
    assert cost.seconds(5) / cost.seconds(1) == pytest.approx(8.0 / 5.2, rel=0.08)


@given(st.floats(0, 1.0), st.floats(0, 1.0))
def test_a_line_of_draft_costs_is_found(base: float, slope: float) -> None:
    cost = DraftCost()
    assert cost.seconds(3) == 0.0
    for step in range(60):
        cost.observe(1 + step % 6, base + slope * (1 + step % 6))
    for length in (1, 4, 8):
        assert cost.seconds(length) == pytest.approx(base + slope * length, abs=0.05 * (base + slope))


@given(st.floats(0, 1), st.lists(st.integers(1, 8), min_size=1, max_size=6))
def test_a_call_for_several_drafts_is_worth_its_shared_part_once(shared: float, lengths: list[int]) -> None:
    """The definition: the part that is shared, for the longest draft; and the rest for each."""
    cost, base, slope = CallCost(), 3.0, 0.5
    cost.shared = shared
    for _ in range(3):
        for length in (1, 4, 8):
            cost.line(1).observe(length, base + slope * length)
    count, length = cost.worth(lengths)
    took = shared * (base + slope * max(lengths)) + (1 - shared) * sum(base + slope * each for each in lengths)
    assert count * cost.line(len(lengths)).seconds(length) == pytest.approx(took)


@pytest.mark.parametrize("longest", [7, 15, 32])
def test_two_lengths_are_a_line_whichever_comes_first(longest: int) -> None:
    for lengths in ((1, longest), (longest, 1)):
        cost = DraftCost()
        for length in lengths:
            cost.observe(length, 0.05 + 0.1 * length)
        assert (cost.base, cost.slope) == (pytest.approx(0.05), pytest.approx(0.1))


def test_calls_of_each_size_have_a_line_of_their_own() -> None:
    """What is shared among four need not be shared among forty."""
    cost = CallCost()
    cost.shared = 1.0
    cost.line(1).observe(4, 1.0)
    assert cost.line(40).seconds(4) == pytest.approx(1.0)
    for _ in range(60):
        cost.line(40).observe(4, 12.0)
    assert cost.line(48).seconds(4) == pytest.approx(12.0, rel=0.1)
    assert cost.line(2).seconds(4) == cost.seconds(4) == pytest.approx(1.0)


def test_a_draft_cost_follows_a_change() -> None:
    cost = DraftCost()
    for _ in range(30):
        cost.observe(4, 1.0)
    for _ in range(60):
        cost.observe(4, 10.0)
    assert cost.seconds(4) == pytest.approx(10.0, rel=0.1)


def test_an_outlier_counts_for_its_share_as_a_risk_and_is_forgotten() -> None:
    cost = DraftCost()
    for _ in range(30):
        cost.observe(4, 1.0)
    assert cost.observe(4, 1000.0) == pytest.approx(4.0), "the line believes little of it"
    assert 1000 / 30 < cost.seconds(4) < 1000 / 15
    assert cost.seconds(4) + cost.risk == pytest.approx(1000.0, rel=0.01)
    for _ in range(10000):
        cost.rest()
    assert cost.seconds(4) + cost.risk == pytest.approx(1.0, abs=0.5)


@pytest.mark.parametrize("every", [4, 10, 25])
def test_rare_large_costs_count_by_their_mean(every: int) -> None:
    cost, seen = DraftCost(), []
    for call in range(1000):
        cost.observe(1, 100.0 if call % every == 0 else 1.0)
        seen.append(cost.seconds(1))
    assert sum(seen[500:]) / 500 >= 0.9 * (100 + every - 1) / every


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.9])
def test_acceptance_comes_to_what_is_seen(rate: float) -> None:
    shared, by_hint, own, rng = Tally(0.98), Tally(0.97), Tally(OWN_FADE), random.Random(2)
    assert conditional(shared, by_hint, None, 0, PRIOR) == PRIOR
    seen = []
    for _ in range(400):
        accepted = 0
        while accepted < 4 and rng.random() < rate:
            accepted += 1
        for tally in (shared, by_hint, own):
            tally.verified(4, accepted)
        seen.append(conditional(shared, by_hint, own, 0, PRIOR))
    assert sum(seen[200:]) / 200 == pytest.approx(rate, abs=0.06)


def test_what_was_not_reached_is_not_judged_and_what_was_not_given_counts() -> None:
    tally = Tally(1.0)
    tally.verified(depth=5, accepted=1)
    assert (tally.tried, tally.kept) == ([1.0, 1.0], [1.0, 0.0])
    assert tally.share_given(0) == 1.0
    for _ in range(20):
        tally.drafted(length=4, depth=2, nodes=2)
    assert tally.share_given(0) == pytest.approx(1.0)
    assert tally.share_given(1) == pytest.approx(1.0)
    assert tally.share_given(2) < 0.1


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 100.0)), max_size=200))
def test_what_is_lost_is_bounded_by_the_grants_and_shares(events: list[tuple[bool, float]]) -> None:
    """An adversary who picks the losses gets at most one call beyond what the account holds."""
    budget, lost, elapsed, largest = Budget(["a", "b"], 1.0), 0.0, 0.0, 0.0
    for is_use, seconds in events:
        if is_use and not budget.is_off("a"):
            budget.add("a", -seconds, 1.0)
            lost, largest = lost + seconds, max(largest, seconds)
        elif budget.affords("b", seconds):
            budget.probed("b", seconds)
            lost += seconds
        budget.elapsed(1.0, 1.0)
        elapsed += 1.0
    assert lost <= 0.01 * elapsed + 0.4 + largest + 0.1 + 1e-9


@given(st.lists(st.tuples(st.sampled_from(["looks", "drafts", "reads"]), st.floats(0, 50.0)), max_size=200))
def test_what_looks_lose_is_bounded_too(events: list[tuple[str, float]]) -> None:
    """One call beyond the stake, whether it was a look or a draft; and what drafts lose closes looks as well."""
    budget, lost, elapsed, read, largest = Budget(["a"], 1.0), 0.0, 0.0, 0.0, 0.0
    for what, seconds in events:
        if what == "reads":
            budget.prompts_took(seconds, 1.0)
            read += seconds
        elif budget.may_read("a") if what == "looks" else not budget.is_off("a"):
            if what == "looks":
                budget.has_read("a", seconds)
            else:
                budget.add("a", -seconds, 1.0)
            lost, largest = lost + seconds, max(largest, seconds)
        budget.elapsed(1.0, 1.0)
        elapsed += 1.0
    assert lost <= 0.004 * elapsed + 0.01 * read + 5.0 + 2 * largest + 1e-9


def plan_rate(members: list[Member], beliefs: Beliefs, cost: StepCost, batch: int) -> float:
    plan = make_plan([Candidate(i, 9, 15, 15) for i in range(batch)], members, beliefs, cost, batch)
    assert len(plan.options) == batch
    return plan.tokens / plan.seconds


@given(st.floats(0.0, 0.98), st.floats(0.0, 0.3), st.integers(1, 6), st.integers(2, 8))
def test_a_plan_never_promises_less_than_plain_decoding(rate: float, slope: float, batch: int, tile: int) -> None:
    """And alone, not less than any fixed length; on a machine whose T has steps."""
    cost = StepCost({m: 1 + slope * (m // tile) for m in range(1, 65)})
    member = Member("a", 15, 15)
    beliefs, rng = Beliefs([member]), random.Random(3)
    for i in range(300):
        accepted = next((j for j in range(15) if rng.random() >= rate), 15)
        beliefs.verified(i % batch, "a", -1, True, 15, accepted)
    assert plan_rate([member], beliefs, cost, batch) >= batch / cost.seconds(batch) * (1 - 1e-9)
    if batch == 1:
        ladder = beliefs.ladder(Candidate(0, 9, 15, 15), member)
        assert ladder is not None
        rates = [(1 + gain) / cost.seconds(2 + j) for j, gain in enumerate(ladder.gains)]
        assert plan_rate([member], beliefs, cost, 1) * 1.0101 >= max(rates)


def test_expectations_are_products_of_conditional_rates() -> None:
    member = Member("a", 4, 4)
    beliefs = Beliefs([member])
    ladder = beliefs.ladder(Candidate("new", 9, 3, 3), member)
    assert ladder is not None
    assert ladder.num_steps == 3
    assert ladder.gains[:3] == pytest.approx([PRIOR, PRIOR + PRIOR**2, PRIOR + PRIOR**2 + PRIOR**3])
    assert math.isclose(ladder.shares[2], 1.0)


def test_what_is_expected_holds_until_more_is_seen() -> None:
    member = Member("a", 4, 4, expected=(0.8, 0.5))
    beliefs = Beliefs([member])

    def gains() -> list[float]:
        ladder = beliefs.ladder(Candidate("new", 9, 3, 3), member)
        assert ladder is not None
        return ladder.gains[:3]

    # Beyond what is known each position is as good as the one before.
    assert gains() == pytest.approx([0.8, 1.2, 1.4], abs=0.05)
    for _ in range(100):
        beliefs.verified("old", "a", UNKNOWN, True, 4, 0)
    assert gains()[0] < 0.05


def test_a_few_failures_of_a_sequence_are_forgotten_where_nothing_more_is_tried() -> None:
    """Else who had bad luck once would never be asked again."""
    member = Member("a", 4, 4)
    beliefs = Beliefs([member])
    for number in range(40):
        beliefs.verified(f"other {number}", "a", UNKNOWN, True, 1, number % 2)
    for _ in range(4):
        beliefs.verified("mine", "a", UNKNOWN, True, 1, 0)

    def first_gain(key: str) -> float:
        ladder = beliefs.ladder(Candidate(key, 9, 3, 3), member)
        assert ladder is not None
        return ladder.gains[0]

    at_once, of_a_new_one = first_gain("mine"), first_gain("new")
    assert at_once < 0.6 * of_a_new_one
    for _ in range(150):
        beliefs.tick()
    assert at_once < 0.7 * first_gain("mine") < first_gain("mine") < of_a_new_one


def test_what_is_known_of_a_member_outweighs_bad_luck_in_one_sequence() -> None:
    gains = []
    for expected in ((), (0.5,)):
        member = Member("a", 4, 4, expected=expected)
        beliefs = Beliefs([member])
        for _ in range(3):
            beliefs.verified("mine", "a", UNKNOWN, True, 1, 0)
        ladder = beliefs.ladder(Candidate("mine", 9, 3, 3), member)
        assert ladder is not None
        gains.append(ladder.gains[0])
    assert gains[0] < 0.1
    assert gains[1] > 0.3


def test_one_step_that_took_far_too_long_hardly_moves_a_size() -> None:
    cost = StepCost({1: 4.0, 5: 5.0, 8: 8.0})
    for _ in range(50):
        cost.observe(1, 4.0)
        cost.observe(5, 5.0)
    cost.observe(5, 5000.0)
    assert cost.seconds(5) == pytest.approx(5.0, rel=0.05)
    assert cost.seconds(1) == pytest.approx(4.0, rel=0.05)


@pytest.mark.parametrize("factor", [0.3, 2.0])
def test_a_size_that_is_seldom_seen_believes_what_it_sees(factor: float) -> None:
    """One step in fifty is of one row, which was measured wrongly; all others are as they were measured."""
    cost = StepCost({1: 4.0 / factor, 5: 5.0, 8: 8.0} if factor < 1 else {1: 2.0, 5: 5.0, 8: 8.0})
    for step in range(600):
        cost.observe(*((1, 4.0) if step % 50 == 20 else (5, 5.0) if step % 2 else (8, 8.0)))
    assert cost.seconds(1) == pytest.approx(4.0, rel=0.1)
    assert cost.seconds(5) == pytest.approx(5.0, rel=0.1)
    assert cost.seconds(8) == pytest.approx(8.0, rel=0.1)


def test_a_size_that_was_never_seen_is_as_wrong_as_its_neighbours() -> None:
    cost = StepCost({1: 4.0, 2: 12.0, 8: 24.0})
    for step in range(200):
        cost.observe(*((1, 4.0) if step % 2 else (2, 4.0)))
    assert cost.seconds(8) == pytest.approx(8.0, rel=0.1)


def test_steps_between_two_sizes_tell_of_both() -> None:
    """Rows that were never measured alone: four, between three and five, and five."""
    cost = StepCost({3: 4.0, 5: 4.0})
    for step in range(400):
        cost.observe(*((4, 5.0) if step % 2 else (5, 6.0)))
    assert cost.seconds(4) == pytest.approx(5.0, rel=0.03)
    assert cost.seconds(5) == pytest.approx(6.0, rel=0.03)


@given(st.lists(st.tuples(st.integers(1, 9), st.floats(-5.0, 5.0)), max_size=40))
def test_no_clock_makes_a_draft_cost_negative(observed: list[tuple[int, float]]) -> None:
    cost = DraftCost()
    for length, seconds in observed:
        assert cost.observe(length, seconds) >= 0
        assert cost.base >= -1e-12
        assert cost.slope >= 0
