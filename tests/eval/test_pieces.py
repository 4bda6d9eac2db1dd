"""Texts in pieces: every token once, evenly over the texts, each piece with the model's own beginning."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.eval.pieces import cut, read_text
from specdec.tokenizer import Tokenizer
from tests.toys import byte_tokenizer

BEGIN, END = 300, 301


class Framed:
    """A token is a character; texts stand between a BOS and an EOS token."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        inner = [ord(char) for char in text]
        return [BEGIN, *inner, END] if add_special_tokens else inner


FRAMED = cast(Tokenizer, cast(Any, Framed()))


@given(st.lists(st.text("abcdef", min_size=1, max_size=40), min_size=1, max_size=4), st.integers(2, 9))
def test_every_token_of_every_text_is_in_one_piece(texts: list[str], context: int) -> None:
    pieces = cut(texts, FRAMED, context, 10_000)
    assert all(piece[0] == BEGIN and 2 <= len(piece) <= context for piece in pieces)
    read = sorted(token for piece in pieces for token in piece[1:])
    assert read == sorted(ord(char) for text in texts for char in text)


@given(st.integers(1, 60), st.integers(2, 9))
def test_no_more_positions_than_asked_for(most: int, context: int) -> None:
    pieces = cut(["abcdefghij" * 3, "xyz" * 10], FRAMED, context, most)
    assert sum(len(piece) - 1 for piece in pieces) == min(most, 60)


def test_texts_take_turns() -> None:
    pieces = cut(["aaaaaaaa", "bb", "cccccccc"], byte_tokenizer(), 4, 11)
    assert ["".join(map(chr, piece)) for piece in pieces] == ["aaaa", "bb", "cccc", "aaaa", "cc"]


def test_texts_without_two_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="the texts are too short: none has 2 tokens"):
        cut(["a", "b"], byte_tokenizer(), 4, 10)


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "text"
    for content, said in ((b"ab\xff", "not valid UTF-8 at byte 3"), (b" \n", "there is no text in it")):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=said):
            read_text(path)
    path.write_bytes("\ufeffé".encode())
    assert read_text(path) == "é"
