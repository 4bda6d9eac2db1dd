"""Tokenizers from GGUF metadata: kinds, pre-tokenizers, special tokens, and what is refused."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.tokenizer import Tokenizer
from specdec.tokenizer.pieces import byte_alphabet
from specdec.tokenizer.pretokenizers import PRE_TOKENIZERS
from tests.tokenizer.helpers import byte_level_metadata, sentencepiece_metadata


def byte_level(**changes: Any) -> Tokenizer:
    return Tokenizer.from_gguf(byte_level_metadata(**changes))


@cache
def small_vocabulary(pre: str) -> Tokenizer:
    return byte_level(pre=pre, add_bos_token=False)


def sentencepiece(**changes: Any) -> Tokenizer:
    return Tokenizer.from_gguf(sentencepiece_metadata(**changes))


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.token_text(token) for token in tokenizer.encode(text, add_special_tokens=False)]


def words_of(pre: str, text: str) -> list[str]:
    """How a pre-tokenizer splits `text` (ASCII), seen through a vocabulary in which everything merges."""
    alphabet = byte_alphabet()
    spelled = "".join(alphabet[byte] for byte in text.encode())
    ends = range(2, len(spelled) + 1)
    parts = sorted({spelled[end - size : end] for size in ends for end in range(size, len(spelled) + 1)})
    merges = [f"{part[:cut]} {part[cut:]}" for part in sorted(parts, key=len) for cut in range(1, len(part))]
    tokens = [*alphabet.values(), *parts]
    facts = {"tokens": tokens, "merges": merges, "token_type": [1] * len(tokens), "add_bos_token": False}
    return pieces(byte_level(pre=pre, **facts), text)


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("smollm", "x =  12", ["x", " =", "  ", "1", "2"]),
        ("smollm", "a 1", ["a", " ", "1"]),
        ("gpt-2", "x =  12", ["x", " =", " ", " 12"]),
        ("gpt-2", "it's 'S\n\nx", ["it", "'s", " '", "S", "\n", "\n", "x"]),
        ("default", "a==b 1234", ["a", "==", "b", " ", "123", "4"]),
        ("llama-bpe", "x 12345", ["x", " ", "123", "45"]),
        ("llama-bpe", "It'S ok!\n\nx", ["It", "'S", " ok", "!\n\n", "x"]),
        ("smaug-bpe", "(ab  cd", ["(ab", " ", " cd"]),
        ("qwen2", "x 123", ["x", " ", "1", "2", "3"]),
        ("qwen2", "a \n b", ["a", " \n", " b"]),
        ("tekken", "camelCase/\n1", ["camel", "Case", "/\n", "1"]),
    ],
)
def test_pre_tokenizers_split_into_words(pre: str, text: str, words: list[str]) -> None:
    assert words_of(pre, text) == words


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_round_trip_with_every_pre_tokenizer(pre: str, text: str) -> None:
    tokenizer = small_vocabulary(pre)
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text


def test_no_pre_tokenizer_means_the_default_one() -> None:
    metadata = byte_level_metadata()
    del metadata["tokenizer.ggml.pre"]
    text = "a==1234 'tis"
    assert Tokenizer.from_gguf(metadata).encode(text) == byte_level(pre="default").encode(text)
    assert byte_level(pre="gpt-2").encode(text) != byte_level(pre="default").encode(text)


def test_whole_words_are_tokens_only_where_merges_may_be_ignored() -> None:
    """With merges "a b" and no way to "abc", llama3's rule still takes the token "abc"."""
    metadata = byte_level_metadata()
    tokens = [*metadata["tokenizer.ggml.tokens"], "abc"]
    facts = {"tokens": tokens, "token_type": [*metadata["tokenizer.ggml.token_type"], 1], "add_bos_token": False}
    assert pieces(byte_level(pre="smaug-bpe", **facts), "abc") == ["ab", "c"]
    assert pieces(byte_level(pre="llama-bpe", **facts), "abc") == ["abc"]


def test_a_byte_without_a_token_is_dropped_and_nothing_merges_across_it() -> None:
    metadata = byte_level_metadata()
    gone = metadata["tokenizer.ggml.tokens"].index(byte_alphabet()[4])
    for key in ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type"):
        del metadata[key][gone]
    tokenizer = Tokenizer.from_gguf(metadata)
    assert pieces(tokenizer, "..") == [".."]
    assert pieces(tokenizer, ".\x04.") == [".", "."]


def test_control_tokens_are_special_and_user_defined_ones_are_text() -> None:
    tokenizer = byte_level()
    ids = tokenizer.encode("ab<|im_end|>[tool]")
    end, tool = tokenizer.vocab_size - 2, tokenizer.vocab_size - 1
    assert ids[-2:] == [end, tool]
    assert tokenizer.special_token_ids == {end - 1, end}
    assert tokenizer.decode(ids) == "ab[tool]"
    assert tokenizer.token_bytes(tool) == b"[tool]"


def test_end_of_generation_is_what_is_declared_then_control_tokens_known_to_end_a_turn() -> None:
    tokenizer = byte_level()
    endoftext, im_end = (tokenizer.encode(text)[0] for text in ("<|endoftext|>", "<|im_end|>"))
    assert tokenizer.eos_token_ids == (im_end, endoftext)
    assert byte_level(eos_token_id=65, eot_token_id=66).eos_token_ids == (65, 66, endoftext, im_end)
    ordinary = [1] * tokenizer.vocab_size
    assert byte_level(token_type=ordinary).eos_token_ids == (im_end,)
    assert byte_level(eos_token_id=10**6).eos_token_ids == (endoftext, im_end)


@pytest.mark.parametrize(("pre", "begins"), [("gpt-2", False), ("llama-bpe", True)])
def test_bos_is_added_as_the_metadata_or_else_the_pre_tokenizer_says(pre: str, begins: bool) -> None:
    tokenizer = byte_level(pre=pre)
    bos = tokenizer.bos_token_id
    plain = tokenizer.encode("ab", add_special_tokens=False)
    assert tokenizer.encode("ab") == ([bos] if begins else []) + plain
    assert byte_level(pre=pre, add_bos_token=True).encode("ab") == [bos, *plain]
    assert byte_level(pre=pre, add_bos_token=False).encode("ab") == plain
    both = byte_level(pre=pre, add_bos_token=True, add_eos_token=True)
    assert both.encode("ab") == [bos, *plain, both.eos_token_ids[0]]


def test_sentencepiece_merges_the_best_score_first() -> None:
    assert pieces(sentencepiece(), "hello world") == [" hello", " world"]
    assert pieces(sentencepiece(), "aba") == [" ", "ab", "a"]
    scores = sentencepiece_metadata()["tokenizer.ggml.scores"]
    tokens = sentencepiece_metadata()["tokenizer.ggml.tokens"]
    scores[tokens.index("ba")] = 1.0
    assert pieces(sentencepiece(scores=scores), "aba") == [" ", "a", "ba"]


def test_sentencepiece_spells_what_it_has_no_token_for_in_bytes() -> None:
    assert sentencepiece().encode("é", add_special_tokens=False)[1:] == [3 + byte for byte in "é".encode()]
    assert pieces(sentencepiece(), "a\n") == [" ", "a", "\n"]


def test_sentencepiece_begins_each_text_with_a_space_unless_told_not_to() -> None:
    assert pieces(sentencepiece(), "a</s>a") == [" ", "a", "</s>", " ", "a"]
    without = sentencepiece(add_space_prefix=False)
    assert pieces(without, "a</s>a") == ["a", "</s>", "a"]
    assert without.decode(without.encode(" hello")) == " hello"
    assert sentencepiece().encode("") == [1]
    assert without.encode("", add_special_tokens=False) == []


def test_sentencepiece_special_tokens() -> None:
    tokenizer = sentencepiece()
    end, tool = tokenizer.vocab_size - 2, tokenizer.vocab_size - 1
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (1, (2, end))
    assert tokenizer.special_token_ids == {0, 1, 2, end}
    ids = tokenizer.encode("<end_of_turn>[tool]")
    assert ids == [1, end, tool]
    assert tokenizer.decode(ids) == "[tool]"
    metadata = sentencepiece_metadata()
    for key in ("bos_token_id", "eos_token_id", "unknown_token_id"):
        del metadata[f"tokenizer.ggml.{key}"]
    assert Tokenizer.from_gguf(metadata).encode("<s></s><unk>") == [1, 1, 2, 0]


def reference_sentencepiece(metadata: dict[str, Any], text: str) -> list[str]:
    """The definition: among all neighbours whose union is a token, join those of the best score, leftmost first."""
    kinds = zip(metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"], strict=True)
    scores = {
        token: score for (token, kind), score in zip(kinds, metadata["tokenizer.ggml.scores"], strict=True) if kind == 1
    }
    parts = list("▁" + text.replace(" ", "▁"))
    while candidates := [(-scores[a + b], i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in scores]:
        _, i = min(candidates)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return [part.replace("▁", " ") for part in parts]


@given(st.text("helo wrdab ", min_size=1, max_size=30))
def test_sentencepiece_equals_its_definition(text: str) -> None:
    assert pieces(sentencepiece(), text) == reference_sentencepiece(sentencepiece_metadata(), text)


def test_arrays_may_be_numpy() -> None:
    metadata = sentencepiece_metadata()
    metadata["tokenizer.ggml.scores"] = np.array(metadata["tokenizer.ggml.scores"], np.float32)
    metadata["tokenizer.ggml.token_type"] = np.array(metadata["tokenizer.ggml.token_type"], np.int32)
    metadata["tokenizer.ggml.eos_token_id"] = np.uint32(2)
    tokenizer = Tokenizer.from_gguf(metadata)
    assert tokenizer.encode("hello world ba") == sentencepiece().encode("hello world ba")
    assert tokenizer.eos_token_ids == sentencepiece().eos_token_ids


def test_empty_tokens_get_a_name() -> None:
    metadata = byte_level_metadata()
    tokens = [*metadata["tokenizer.ggml.tokens"], ""]
    tokenizer = byte_level(tokens=tokens, token_type=[*metadata["tokenizer.ggml.token_type"], 5])
    assert tokenizer.vocab_size == len(tokens)
    assert tokenizer.token_text(len(tokens) - 1) == f"[EMPTY_{len(tokens) - 1}]"


def test_a_token_outside_the_byte_notation_is_its_text() -> None:
    """Some vocabularies mark placeholders as ordinary tokens, in plain text."""
    metadata = byte_level_metadata()
    tokens = [*metadata["tokenizer.ggml.tokens"], "<a b>", "<漢>"]
    tokenizer = byte_level(tokens=tokens, token_type=[*metadata["tokenizer.ggml.token_type"], 1, 1])
    assert tokenizer.decode([len(tokens) - 2, len(tokens) - 1]) == "<a b><漢>"


def test_chat_template_comes_along() -> None:
    metadata = byte_level_metadata() | {"tokenizer.chat_template": "{{ messages[0].content }}"}
    tokenizer = Tokenizer.from_gguf(metadata)
    assert tokenizer.decode(tokenizer.apply_chat_template([{"role": "user", "content": "ab"}])) == "ab"


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        ({}, "no tokenizer.ggml.tokens"),
        (byte_level_metadata(model="bert"), "unknown tokenizer.ggml.model 'bert'.*valid: gpt2, llama"),
        (byte_level_metadata(pre="smolm"), "unknown tokenizer.ggml.pre 'smolm'; did you mean 'smollm'"),
        (byte_level_metadata(token_type=[1, 1]), "token_type must have one entry a token, 267; got 2"),
        (byte_level_metadata(tokens=["a", "b", "a"]), "every token once"),
        (byte_level_metadata(merges=["ab"]), "merges must hold pairs such as 'a b'; got 'ab'"),
        (byte_level_metadata(merges=["x y"]), "merges does not fit tokenizer.ggml.tokens"),
        (sentencepiece_metadata(scores=[0.0]), "scores must have one entry a token, 285; got 1"),
    ],
)
def test_what_is_missing_or_unknown_is_refused_in_one_line(metadata: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says) as refused:
        Tokenizer.from_gguf(metadata)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("key", ["tokens", "token_type", "merges", "scores", "pre", "bos_token_id", "unknown_token_id"])
@pytest.mark.parametrize("value", [5.5, "text", ["a", 1], [[1]], {"a": 1}], ids=repr)
def test_values_of_the_wrong_kind_are_one_line_that_names_the_key(key: str, value: object) -> None:
    for metadata in (byte_level_metadata, sentencepiece_metadata):
        whole = metadata() | {f"tokenizer.ggml.{key}": value}
        reads = {"merges", "pre"} if metadata is byte_level_metadata else {"scores", "unknown_token_id"}
        if key in {"merges", "pre", "scores", "unknown_token_id"} - reads:
            continue
        with pytest.raises(ValueError, match=f"tokenizer.ggml.{key}") as error:
            Tokenizer.from_gguf(whole)
        assert "\n" not in str(error.value)


def test_a_chat_template_that_is_no_text_is_refused() -> None:
    with pytest.raises(ValueError, match=r"tokenizer.chat_template must be text; got \[1\]"):
        Tokenizer.from_gguf(byte_level_metadata() | {"tokenizer.chat_template": [1]})
