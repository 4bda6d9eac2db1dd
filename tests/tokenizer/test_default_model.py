"""The default model's tokenizer: the ids that llama.cpp gives, and text back from them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.models import hub
from specdec.models.gguf import GGUFCheckpoint
from specdec.tokenizer import Tokenizer

pytestmark = pytest.mark.model

ORACLE = json.loads((Path(__file__).parent.parent / "data" / "smollm2_llamacpp_tokens.json").read_text())
WITHOUT_A_TOKEN = {0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, 0xC0, 0xC1, 0xF1, 0xF2, *range(0xF5, 0x100)}
"""The bytes that this vocabulary cannot write; llama.cpp drops them too (the fixture has such strings)."""

TEXTS = [
    "Why is the sky blue?",
    "def f(x):\n\tif x == 1:\n\t\treturn '1234567'\n        # 3.14  =  12\r\n",
    "| a | b |\n|---|--:|\n| 1 | 22 |\n",
    "Привет, мир! 你好，世界！ こんにちは 안녕하세요 שלום مرحبا नमस्ते สวัสดี γειά",
    "👨‍👩‍👧‍👦🏳️‍🌈🇩🇪👍🏽 e\u0301 \u200b\ufeff \u00a0\u3000 ﷽ 𝔘𝟏",
    "\x00\x01\x02\x1b[0m\x7f\u0085\u2028",
    "",
    " " * 50_000,
    "\n \t" * 999,
]


@pytest.fixture(scope="module")
def metadata() -> dict[str, Any]:
    return GGUFCheckpoint(hub.resolve("smollm2-135m", None)).metadata


@pytest.fixture(scope="module")
def tokenizer(metadata: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_gguf(metadata)


def spread(text: str) -> Iterator[str]:
    """`text` and every piece of it that begins at a line."""
    yield text
    yield from text.splitlines(keepends=True)


@pytest.mark.parametrize("case", ORACLE["cases"], ids=lambda case: ascii(case["text"])[:40])
def test_ids_equal_llama_cpps(tokenizer: Tokenizer, case: dict[str, Any]) -> None:
    assert tokenizer.encode(case["text"]) == case["ids"]


def test_digits_are_split_before_spaces_are_joined(tokenizer: Tokenizer) -> None:
    """Where a tokenizer without the digit rule goes wrong."""
    assert [tokenizer.token_text(token) for token in tokenizer.encode("=  12")] == ["=", "  ", "1", "2"]


def test_facts(tokenizer: Tokenizer) -> None:
    assert (tokenizer.vocab_size, tokenizer.bos_token_id) == (49_152, 1)
    assert tokenizer.eos_token_ids == (2, 0)
    assert tokenizer.special_token_ids == set(range(17))
    assert tokenizer.token_bytes(45) == b"="


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: ascii(text)[:30])
def test_round_trip(tokenizer: Tokenizer, text: str) -> None:
    for part in spread(text):
        ids = tokenizer.encode(part)
        assert tokenizer.decode(ids) == part
        stream = tokenizer.stream(True, [])
        assert "".join([*map(stream.push, ids), stream.finish()]) == part


def test_round_trip_of_any_text(tokenizer: Tokenizer) -> None:
    @given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
    def check(text: str) -> None:
        kept = bytes(byte for byte in text.encode() if byte not in WITHOUT_A_TOKEN)
        decoded = tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False)
        assert decoded == kept.decode("utf-8", "replace")

    check()


def test_streamed_text_of_any_ids_is_decoded_text(tokenizer: Tokenizer) -> None:
    @given(st.lists(st.integers(0, tokenizer.vocab_size + 10) | st.integers(17, 300), max_size=40), st.booleans())
    def check(ids: list[int], skip: bool) -> None:
        stream = tokenizer.stream(skip, [])
        assert "".join([*map(stream.push, ids), stream.finish()]) == tokenizer.decode(ids, skip)

    check()


def test_tokens_are_their_bytes(tokenizer: Tokenizer) -> None:
    """Every token of the table but the special ones, put together, is the text of all ids."""
    ids = range(tokenizer.vocab_size)
    table = b"".join(map(tokenizer.token_bytes, ids))
    assert table.decode("utf-8", "replace") == tokenizer.decode(ids)
    assert all(tokenizer.token_bytes(token) for token in ids if token not in tokenizer.special_token_ids)


def test_the_chat_template_writes_the_models_default_system_turn(tokenizer: Tokenizer) -> None:
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    text = f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}])
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert ids == tokenizer.encode(text)
    assert ids.count(1) == 3
    own = tokenizer.apply_chat_template([{"role": "system", "content": "S"}], add_generation_prompt=False)
    assert tokenizer.decode(own, skip_special_tokens=False) == "<|im_start|>system\nS<|im_end|>\n"
