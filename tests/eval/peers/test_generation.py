"""What is told of a generation."""

from __future__ import annotations

from specdec.eval.peers.generation import Generation, Stopwatch, left_padded, right_padded


def test_the_first_tokens_time_is_when_every_answer_has_one() -> None:
    now = iter([10.0, 13.0, 19.0])
    watch = Stopwatch(2, lambda: next(now))
    watch.tokens(1, 1)
    watch.tokens(4, 2)
    watch.tokens(6, 2)
    assert watch.stop([[1], [2]]) == Generation([[1], [2]], 3.0, 4, 9.0)


def test_without_tokens_there_is_no_first() -> None:
    now = iter([10.0, 12.0])
    assert Stopwatch(1, lambda: next(now)).stop([[]]) == Generation([[]], None, 0, 2.0)


def test_prompts_are_padded_to_the_left() -> None:
    assert left_padded([[1, 2, 3], [4]], 9) == ([[1, 2, 3], [9, 9, 4]], [[1, 1, 1], [0, 0, 1]])


def test_prompts_are_padded_to_the_right() -> None:
    assert right_padded([[1, 2, 3], [4]], 9) == [[1, 2, 3], [4, 9, 9]]
