"""Cuts are as long as asked for, and go round the text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.eval.bench.texts import STRIDE, Text, text_of
from specdec.eval.prompts import EvalPrompt
from tests.toys import byte_tokenizer


@given(st.integers(1, 50), st.integers(1, 200), st.integers(0, 30))
def test_a_cut_is_the_text_from_somewhere_on(size: int, length: int, number: int) -> None:
    cut = Text(range(size)).cut(length, number)
    assert cut == tuple((number * STRIDE + i) % size for i in range(length))


def test_the_text_is_all_prompts_one_after_another() -> None:
    prompts = [EvalPrompt("t", "t", str(i), text, raw=True) for i, text in enumerate(("ab", "c"))]
    assert text_of(prompts, byte_tokenizer()).cut(3, 0) == tuple(b"abc")


def test_a_text_of_nothing_and_a_model_without_a_tokenizer_are_refused() -> None:
    with pytest.raises(ValueError, match="no text"):
        Text([])
    with pytest.raises(ValueError, match="no tokenizer"):
        text_of([EvalPrompt("t", "t", "1", "a")], None)
