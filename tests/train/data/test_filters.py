"""What is dropped: loops, what was seen, and what an evaluation asks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.train.data.filters import Exclusion, answer_digest, digest, loops, normalised


def naive_loops(ids: list[int]) -> bool:
    for period in range(1, 65):
        for start in range(len(ids)):
            end = start + period
            while end < len(ids) and ids[end] == ids[end - period]:
                end += 1
            if end - start >= max(32, 4 * period) and end > start + period:
                return True
    return False


@given(st.lists(st.integers(0, 3), max_size=12), st.integers(1, 20), st.lists(st.integers(0, 3), max_size=60))
def test_a_loop_is_what_its_definition_says(block: list[int], times: int, rest: list[int]) -> None:
    for ids in (block * times + rest, rest + block * times, rest + block * times + rest):
        assert loops(ids) == naive_loops(ids)


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([7] * 31, False),
        ([7] * 32, True),
        (list(range(64)) * 3 + list(range(63)), False),
        (list(range(64)) * 4, True),
        (list(range(65)) * 9, False),
        ([1, 2, 3] * 10 + [1], False),
        ([9, 9, 1] + [1, 2, 3] * 11, True),
        ([], False),
    ],
)
def test_borders_of_a_loop(ids: list[int], expected: bool) -> None:
    assert loops(np.array(ids)) is expected


def test_texts_that_differ_in_case_spaces_and_punctuation_are_the_same() -> None:
    assert normalised("What is 2, \n please?") == normalised("what IS 2 please")
    assert normalised("x + y") != normalised("x + z")
    assert normalised(" + - ") == normalised("+-")
    assert normalised("+") != normalised("-")


def test_short_answers_are_the_same_only_to_the_same_prompt() -> None:
    assert answer_digest(1, "Yes.", 3) != answer_digest(2, "Yes.", 3)
    assert answer_digest(1, "Yes.", 3) == answer_digest(1, "yes", 2)
    assert answer_digest(1, "A long one.", 8) == answer_digest(2, "a long one", 9)


def test_a_digest_is_the_same_in_every_process_and_fits_int64() -> None:
    assert digest("a", 1) == 6861350103018950465
    assert 0 <= digest("ab") < 2**63
    assert digest("ab", "c") != digest("a", "bc")


EVALUATION = "one two three four five six seven"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("zero ONE, two three: four! eight", True),
        ("zero one two three 4", False),
        ("one two three", False),
        ("say hello there now", True),
        ("say hello", False),
    ],
)
def test_shared_words_are_found(text: str, expected: bool) -> None:
    assert Exclusion([EVALUATION, "Hello there!", "..."], size=4).covers(text) is expected


def test_nothing_is_excluded_by_no_evaluation() -> None:
    exclusion = Exclusion([])
    assert not len(exclusion)
    assert not exclusion.covers("anything at all")
