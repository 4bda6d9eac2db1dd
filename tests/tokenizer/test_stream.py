"""Text as it comes: never taken back, never half a character, and all of it together is what decoding gives."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.tokenizer import Tokenizer
from tests.tokenizer import helpers

KINDS = {
    "bytes": helpers.byte_tokenizer,
    "byte-level": helpers.byte_level,
    "sentencepiece": helpers.sentencepiece,
    "metaspace": helpers.metaspace,
    "word-piece": helpers.word_piece,
    "suffix-bpe": helpers.suffix_bpe,
    "words": helpers.words_only,
}


@cache
def tokenizer(kind: str) -> Tokenizer:
    return KINDS[kind]()


def ids(kind: str) -> st.SearchStrategy[list[int]]:
    """Any ids, a few beyond the vocabulary, with enough pieces of real characters among them."""
    size = tokenizer(kind).vocab_size
    some = st.lists(st.integers(0, size + 2), max_size=12)
    spelled = st.text("a e🙂漢é�\u200d\u0301", max_size=6).map(tokenizer(kind).encode)
    return st.lists(some | spelled, max_size=5).map(lambda parts: [token for part in parts for token in part])


def streamed(subject: Tokenizer, output: list[int], prompt: list[int], skip: bool) -> str:
    stream = subject.stream(skip, prompt)
    return "".join([*map(stream.push, output), stream.finish()])


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data(), skip=st.booleans())
def test_streamed_text_is_decoded_text(kind: str, data: st.DataObject, skip: bool) -> None:
    output = data.draw(ids(kind))
    assert streamed(tokenizer(kind), output, [], skip) == tokenizer(kind).decode(output, skip)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data(), skip=st.booleans())
def test_after_a_prompt_the_text_is_what_the_output_adds(kind: str, data: st.DataObject, skip: bool) -> None:
    subject = tokenizer(kind)
    prompt, output = data.draw(ids(kind)), data.draw(ids(kind))
    before, whole = subject.decode(prompt, skip), subject.decode(prompt + output, skip)
    if before.endswith("�") and kind not in ("word-piece", "suffix-bpe", "words"):
        return  # The prompt may end inside a character; see the test of that.
    assert streamed(subject, output, prompt, skip) == whole[len(before) :]


@pytest.mark.parametrize("kind", ["bytes", "byte-level", "sentencepiece"])
@given(data=st.data())
def test_every_pushed_text_is_final(kind: str, data: st.DataObject) -> None:
    subject, output = tokenizer(kind), data.draw(ids(kind))
    stream = subject.stream(True, [])
    text = ""
    for i, token in enumerate(output):
        text += stream.push(token)
        so_far = subject.decode(output[: i + 1])
        assert so_far.startswith(text)
        assert so_far[len(text) :] in ("", "�", "��")


def test_a_character_appears_with_its_last_byte() -> None:
    stream = helpers.byte_tokenizer().stream(True, [])
    assert [stream.push(byte) for byte in "é🙂".encode()] == ["", "é", "", "", "", "🙂"]
    assert stream.finish() == ""


def test_an_unfinished_character_becomes_a_replacement_at_the_end() -> None:
    stream = helpers.byte_tokenizer().stream(True, [])
    assert [stream.push(byte) for byte in "a🙂".encode()[:-1]] == ["a", "", "", ""]
    assert stream.finish() == "�"


def test_a_character_that_the_prompt_left_unfinished_is_not_the_outputs() -> None:
    first, *rest = "é".encode()
    assert streamed(helpers.byte_tokenizer(), rest, [first], True) == "�"


def test_a_special_token_does_not_cut_a_character() -> None:
    first, second = "é".encode()
    with_eos = [first, helpers.EOS, second]
    assert streamed(helpers.byte_tokenizer(), with_eos, [], True) == "é"
    assert streamed(helpers.byte_tokenizer(), with_eos, [], False) == "�<eos>�"


def test_sentencepiece_keeps_the_space_after_a_prompt_only() -> None:
    subject = helpers.sentencepiece()
    bos, hello, world = subject.encode("hello world")
    assert streamed(subject, [hello, world], [], True) == "hello world"
    assert streamed(subject, [hello, world], [bos], True) == "hello world"
    assert streamed(subject, [hello, world], [bos], False) == " hello world"
    assert streamed(subject, [world], [bos, hello], True) == " world"


def test_sentencepiece_drops_one_space_however_it_is_spelled() -> None:
    subject = helpers.sentencepiece()
    space, two, hello = (subject.encode(text, add_special_tokens=False)[0] for text in ("a", " a", "hello"))
    assert [subject.token_text(token) for token in (space, two, hello)] == [" ", "  ", " hello"]
    assert streamed(subject, [two, hello], [], True) == "  hello"
    assert streamed(subject, [hello], [space], True) == " hello"


def test_word_piece_joins_the_output_to_the_prompt() -> None:
    subject = helpers.word_piece()
    the, dog = subject.encode("the dog")[:2]
    assert streamed(subject, [dog], [], True) == subject.decode([dog])
    assert streamed(subject, [dog], [the], True) == " " + subject.decode([dog])
    assert streamed(subject, [dog], [the, *subject.eos_token_ids], True) == " " + subject.decode([dog])
