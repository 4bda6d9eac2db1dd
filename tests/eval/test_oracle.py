"""Steps from tables of agreement, against a simulation that verifies the drafts token by token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.eval.oracle import (
    Agreement,
    agreement,
    fewest_steps,
    first_to_draft,
    gains,
    histogram,
    in_a_row,
    longest,
    num_steps,
    perfect_steps,
)
from specdec.types import Draft

TOKENS = st.integers(0, 2)
LONGEST = 4


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    """Chains, and trees whose siblings differ."""
    token_ids = draw(st.lists(TOKENS, max_size=LONGEST).map(tuple))
    if draw(st.booleans()):
        return Draft(token_ids)
    nodes: dict[tuple[int, int], None] = {}
    for i, token_id in enumerate(token_ids):
        parent = draw(st.integers(-1, max(-1, min(i, len(nodes)) - 1)))
        nodes[parent, token_id] = None
    return Draft(tuple(token for _, token in nodes), tuple(parent for parent, _ in nodes))


@st.composite
def drafted(draw: st.DrawFn, num_members: int = 2) -> tuple[list[int], list[list[Draft]]]:
    """An answer, and for each member the draft at each of its places."""
    answer = draw(st.lists(TOKENS, min_size=1, max_size=12))
    places = len(answer) - 1
    return answer, [draw(st.lists(drafts(), min_size=places, max_size=places)) for _ in range(num_members)]


def paths(draft: Draft) -> list[tuple[int, ...]]:
    """The tokens from the root to every node."""
    found: list[tuple[int, ...]] = []
    for node, token_id in enumerate(draft.token_ids):
        parent = node - 1 if draft.parents is None else draft.parents[node]
        found.append((*(found[parent] if parent >= 0 else ()), token_id))
    return found


def accepted(draft: Draft, answer: Sequence[int], at: int) -> int:
    """How many tokens a step that verifies the draft at output token `at` accepts, of those that are kept."""
    rest = tuple(answer[at:])
    return max((len(path) for path in paths(draft) if path == rest[: len(path)]), default=0)


def simulated(answer: Sequence[int], choose: Callable[[int], Draft]) -> int:
    """Decode: the first token comes with the prompt, then every step has a draft."""
    tokens, steps = [answer[0]], 0
    while len(tokens) < len(answer):
        kept = accepted(choose(len(tokens) - 1), answer, len(tokens))
        tokens += answer[len(tokens) : len(tokens) + kept]
        tokens += answer[len(tokens) : len(tokens) + 1]
        steps += 1
    return steps


def tracks(answer: Sequence[int], members: Sequence[Sequence[Draft]]) -> list[list[Agreement]]:
    return [[agreement(draft, answer[place + 1 :]) for place, draft in enumerate(own)] for own in members]


@given(drafted(1))
def test_a_proposer_alone_takes_the_simulations_steps(given: tuple[list[int], list[list[Draft]]]) -> None:
    answer, (own,) = given
    (track,) = tracks(answer, [own])
    assert [each.agreed for each in track] == [accepted(draft, answer, place + 1) for place, draft in enumerate(own)]
    assert num_steps(gains(track)) == simulated(answer, own.__getitem__)
    for each, draft in zip(track, own, strict=True):
        assert each.agreed <= each.depth <= draft.depth


@given(drafted())
def test_choices_are_the_simulations(given: tuple[list[int], list[list[Draft]]]) -> None:
    answer, members = given
    found = tracks(answer, members)

    def best(place: int) -> Draft:
        return max((own[place] for own in members), key=lambda draft: accepted(draft, answer, place + 1))

    def first(place: int) -> Draft:
        return next((own[place] for own in members if len(own[place])), Draft())

    assert num_steps(longest(found)) == simulated(answer, best)
    assert num_steps(first_to_draft(found)) == simulated(answer, first)


@given(drafted(3))
def test_the_oracle_is_the_best_of_all_ways_to_choose(given: tuple[list[int], list[list[Draft]]]) -> None:
    answer, members = given

    @cache
    def fewest(at: int) -> int:
        """From output token `at` on, over every member and every depth to which its draft may be cut."""
        if at >= len(answer):
            return 0
        ways = [own[at - 1].limited(depth) for own in members for depth in range(LONGEST + 1)]
        return 1 + min(fewest(at + accepted(draft, answer, at) + 1) for draft in ways)

    assert fewest_steps(longest(tracks(answer, members))) == fewest(1)


@given(drafted(3))
def test_the_oracle_lies_between_every_other_choice_and_perfect_drafts(
    given: tuple[list[int], list[list[Draft]]],
) -> None:
    answer, members = given
    found = tracks(answer, members)
    oracle = fewest_steps(longest(found))
    for track in found:
        assert oracle <= num_steps(gains(track))
    assert oracle <= num_steps(longest(found))
    assert oracle <= num_steps(first_to_draft(found))
    assert oracle >= perfect_steps(len(answer) - 1, LONGEST)


def test_the_longest_draft_at_each_step_may_be_worse_than_one_proposer_alone() -> None:
    """One is right for 1 token and then for 5; who takes 2 of the other's first is past where the 5 begin."""
    alone, other = [1, 0, 5, 0, 0, 0, 0, 0], [2, 0, 0, 0, 0, 0, 0, 0]
    found = [[Agreement(own, own) for own in each] for each in (alone, other)]
    assert num_steps(alone) == 2
    assert num_steps(longest(found)) == 6
    assert fewest_steps(longest(found)) == 2


@pytest.mark.parametrize(
    ("num_places", "length", "steps"), [(0, 4, 0), (1, 4, 1), (5, 4, 1), (6, 4, 2), (10, 4, 2), (7, 0, 7)]
)
def test_perfect_drafts(num_places: int, length: int, steps: int) -> None:
    assert perfect_steps(num_places, length) == steps
    right = [min(length, num_places - place - 1) for place in range(num_places)]
    assert num_steps(right) == fewest_steps(right) == steps


def test_a_draft_beyond_the_answers_end_counts_up_to_the_end() -> None:
    assert agreement(Draft((1, 2, 3)), [1, 2]) == Agreement(2, 2)
    assert agreement(Draft((1, 3, 3)), [1, 2]) == Agreement(3, 1)
    assert agreement(Draft((1, 2, 4, 3), (-1, -1, 0, 1)), [2, 3, 5]) == Agreement(2, 2)
    assert agreement(Draft(), [1]) == Agreement(0, 0)


def test_places_by_how_much_agrees() -> None:
    assert histogram([[Agreement(4, 2), Agreement(0, 0)], [Agreement(4, 0)]]) == (2, 0, 1)
    assert histogram([[]]) == ()


@given(st.lists(st.booleans(), max_size=12), st.integers(1, LONGEST))
def test_marks_in_a_row(marks: list[bool], length: int) -> None:
    for place, found in enumerate(in_a_row(marks, length)):
        assert all(marks[place : place + found])
        assert found == length or place + found == len(marks) or not marks[place + found]
