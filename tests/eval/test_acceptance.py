"""Acceptance by group, position and output token, against counts by hand and against the samples' own."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from specdec.eval.acceptance import exactness, groups, output_ranges, positions, steps_of, total
from specdec.eval.results import Divergence, OutputRange, Position
from specdec.eval.session import Step
from specdec.eval.stats import Bootstrap
from tests.eval.helpers import PROMPTS, answer, drafted, undrafted

BOOTSTRAP = Bootstrap(0, resamples=50)


def test_positions_by_hand() -> None:
    steps = [drafted(1, 3, 3), drafted(5, 3, 1), drafted(7, 1, 1), drafted(9, 2, 0), undrafted(10)]
    first, second, third = positions(steps)
    assert first == Position(1, num_drafts=4, num_reached=4, num_accepted=3)
    assert second == Position(2, num_drafts=3, num_reached=2, num_accepted=1)
    assert third == Position(3, num_drafts=2, num_reached=1, num_accepted=1)
    assert (second.unconditional, second.conditional) == (1 / 3, 1 / 2)


@st.composite
def step_lists(draw: st.DrawFn) -> list[Step]:
    steps, index = [], 1
    for length in draw(st.lists(st.integers(0, 5), max_size=12)):
        accepted = draw(st.integers(0, length))
        steps.append(drafted(index, length, accepted) if length else undrafted(index))
        index += accepted + 1
    return steps


@given(step_lists())
def test_positions_agree_with_the_samples_own_counts(steps: list[Step]) -> None:
    found, stats = positions(steps), answer(steps).stats
    counts = stats.accepted_per_position
    assert [position.num_accepted for position in found][: len(counts)] == counts
    assert sum(position.num_accepted for position in found) == stats.num_accepted_tokens
    assert sum(position.num_drafts for position in found) == stats.num_draft_tokens
    for before, position in pairwise(found):
        assert position.num_accepted <= position.num_reached <= min(position.num_drafts, before.num_accepted)


@given(step_lists(), st.integers(1, 3000))
def test_ranges_share_out_every_draft(steps: list[Step], max_tokens: int) -> None:
    found, stats = output_ranges(steps, max_tokens), answer(steps).stats
    assert sum(each.num_drafts for each in found) == stats.num_drafts
    assert sum(each.num_draft_tokens for each in found) == stats.num_draft_tokens
    assert sum(each.num_accepted_tokens for each in found) == stats.num_accepted_tokens
    assert all(each.start < each.end and each.num_drafts for each in found)


def test_a_draft_belongs_to_the_range_in_which_it_begins() -> None:
    steps = [drafted(31, 4, 4), drafted(36, 2, 1), undrafted(38), drafted(100, 1, 0)]
    assert output_ranges(steps, 128) == (
        OutputRange(0, 32, 1, 4, 4),
        OutputRange(32, 64, 1, 2, 1),
        OutputRange(96, 128, 1, 1, 0),
    )
    assert [(each.start, each.end) for each in output_ranges(steps, 1000)] == [(0, 64), (64, 128)]


def test_groups_are_all_then_tasks_then_categories() -> None:
    answers = {index: answer([drafted(1, 4, index), undrafted(2 + index)]) for index in range(5)}
    found = groups(PROMPTS, answers, BOOTSTRAP)
    assert [(group.task, group.category) for group in found] == [
        (None, None),
        ("chat", None),
        ("code", None),
        ("chat", "chat"),
        ("code", "python"),
        ("code", "rust"),
    ]
    assert [group.num_prompts for group in found] == [5, 2, 3, 2, 2, 1]
    everything = found[0]
    assert (everything.num_drafts, everything.num_draft_tokens, everything.num_accepted_tokens) == (5, 20, 10)
    assert everything.acceptance_rate.value == 10 / 20
    assert everything.mean_acceptance_length.value == 1 + 10 / 5
    assert (everything.num_tokens, everything.num_steps) == (5 + 10 + 5 + 5, 10)
    assert everything.tokens_per_step == 2.0
    assert found[5].acceptance_rate.low is None
    assert len(steps_of(answers.values())) == 10
    assert total(answers.values()).num_drafts == 5


def test_outputs_are_compared_token_by_token_where_they_must_be_equal() -> None:
    plain = {index: answer([], tokens=[1, 2, 3]) for index in range(5)}
    own = {
        0: answer([], tokens=[1, 2, 3]),
        1: answer([], tokens=[1, 9, 3]),
        2: answer([], tokens=[1, 2]),
        3: answer([], tokens=[1, 2, 3, 4]),
    }
    found = exactness(PROMPTS, own, plain, "greedy", "bytes")
    assert (found.checked, found.num_prompts, found.num_equal) == (True, 4, 1)
    assert found.divergences == (
        Divergence("chat", "chat-1", 1, 2, 9),
        Divergence("code", "python-0", 2, 3, None),
        Divergence("code", "python-1", 3, None, 4),
    )
    lossy = exactness(PROMPTS, own, plain, "rejection", "distribution")
    assert (lossy.checked, lossy.num_prompts, lossy.divergences) == (False, 0, ())
