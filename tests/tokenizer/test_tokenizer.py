"""The class itself: text to ids and back, tokens as bytes and as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from specdec.tokenizer import Tokenizer
from tests.tokenizer import helpers
from tests.tokenizer.helpers import BOS, EOS

BYTES = helpers.byte_tokenizer()
BYTE_LEVEL = helpers.byte_level()
SENTENCEPIECE = helpers.sentencepiece()
METASPACE = helpers.metaspace()
WORD_PIECE = helpers.word_piece()

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<"), max_size=40)
"""Any text without the name of a special token."""


def test_a_byte_tokenizer_can_be_put_together_from_parts() -> None:
    assert BYTES.encode("Aé\0") == [0x41, 0xC3, 0xA9, 0x00]
    assert BYTES.decode([0x41, EOS, 0xC3, 0xA9, BOS]) == "Aé"
    assert BYTES.encode("a<eos>") == [0x61, EOS]
    assert (BYTES.vocab_size, BYTES.eos_token_ids, BYTES.bos_token_id) == (258, (EOS,), BOS)
    assert BYTES.special_token_ids == {EOS, BOS}
    assert [BYTES.token_bytes(token) for token in range(256)] == [bytes([byte]) for byte in range(256)]


@given(TEXT)
def test_round_trip_of_byte_vocabularies(text: str) -> None:
    assert BYTES.encode(text) == list(text.encode())
    assert BYTES.decode(BYTES.encode(text)) == text
    assert BYTE_LEVEL.decode(BYTE_LEVEL.encode(text)) == text
    assert SENTENCEPIECE.decode(SENTENCEPIECE.encode(text)) == text.replace("▁", " ")


@given(st.binary(max_size=24))
def test_bytes_that_are_no_utf8_decode_as_python_decodes_them(data: bytes) -> None:
    expected = data.decode("utf-8", "replace")
    assert BYTES.decode(list(data)) == expected
    fallback = [SENTENCEPIECE.vocab_size, *(3 + byte for byte in data)]
    assert SENTENCEPIECE.decode(fallback) == (expected[1:] if data[:1] == b" " else expected)


def test_special_tokens_are_parsed_and_left_out_of_text() -> None:
    end, user = BYTE_LEVEL.encode("<|end|><|user|>")
    assert BYTE_LEVEL.special_token_ids == {end, user}
    ids = BYTE_LEVEL.encode("<|user|>Every<|end|>[tool é]")
    assert ids[0] == user
    assert end in ids
    assert BYTE_LEVEL.decode(ids) == "Every[tool é]"
    assert BYTE_LEVEL.decode(ids, skip_special_tokens=False) == "<|user|>Every<|end|>[tool é]"


def test_an_end_token_that_the_vocabulary_calls_ordinary_is_special_all_the_same() -> None:
    backend = helpers.byte_level_backend()
    tokenizer = Tokenizer(backend, eos_token_ids=(65,))
    assert 65 in tokenizer.special_token_ids
    assert tokenizer.decode([65]) == ""


@pytest.mark.parametrize("tokenizer", [BYTES, BYTE_LEVEL, SENTENCEPIECE, METASPACE, WORD_PIECE])
def test_token_bytes_are_what_the_token_adds_to_a_text(tokenizer: Tokenizer) -> None:
    ordinary = [i for i in range(tokenizer.vocab_size) if i not in tokenizer.special_token_ids]
    before = tokenizer.encode("the")[-1:]
    for token in ordinary:
        data = tokenizer.token_bytes(token)
        assert data or tokenizer.token_text(token) == ""
        added = tokenizer.decode([*before, token]).removeprefix(tokenizer.decode(before))
        assert added == data.decode("utf-8", "replace") == tokenizer.token_text(token)


def test_token_bytes_keep_the_space_that_begins_a_word() -> None:
    assert SENTENCEPIECE.token_bytes(SENTENCEPIECE.encode("hello")[-1]) == b" hello"
    assert METASPACE.token_bytes(METASPACE.encode("over the")[-1]) == b" the"
    assert WORD_PIECE.token_bytes(WORD_PIECE.encode("the")[0]) == b" the"


def test_special_tokens_have_no_bytes_but_a_name() -> None:
    assert BYTES.token_bytes(EOS) == b""
    assert BYTES.token_text(EOS) == "<eos>"
    assert BYTES.token_text(0xC3) == "�"


@pytest.mark.parametrize("tokenizer", [BYTES, BYTE_LEVEL, SENTENCEPIECE, METASPACE, WORD_PIECE])
def test_ids_beyond_the_vocabulary_stand_for_nothing(tokenizer: Tokenizer) -> None:
    beyond = [tokenizer.vocab_size, tokenizer.vocab_size + 1000, 2**31]
    first = tokenizer.encode("the")[:1]
    assert tokenizer.decode(beyond) == ""
    assert tokenizer.decode([*beyond, *first, *beyond]) == tokenizer.decode(first)
    assert {tokenizer.token_bytes(token) for token in beyond} == {b""}
    assert {tokenizer.token_text(token) for token in beyond} == {""}


def test_a_decoder_that_strips_inside_a_text_is_not_taken_for_sentencepiece() -> None:
    backend = Backend(models.WordLevel({"▁a": 0, "a▁": 1}, "▁a"))
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 0, 1)])
    assert Tokenizer(backend).decode([0, 1]) == " aa"
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    assert Tokenizer(backend).decode([0, 1]) == "aa "


def test_vocab_size_counts_ids_not_tokens() -> None:
    assert Tokenizer(Backend(models.WordLevel({"a": 0, "b": 9}, "a"))).vocab_size == 10


@pytest.mark.parametrize(
    ("text", "says"),
    [("ab\ud83d", "half a surrogate pair at position 2"), (None, "must be a string"), (b"a", "must be a string")],
)
def test_what_is_no_text_is_refused_in_one_line(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as refused:
        BYTES.encode(text)
    assert "\n" not in str(refused.value)
