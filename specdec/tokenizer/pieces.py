"""The bytes that tokens stand for, and text from them.

Almost every language model's vocabulary is a table of byte strings, written in one of two notations: GPT-2's, where
each byte is a printable character, and SentencePiece's, where a space is "▁" and a byte outside the vocabulary is
"<0xNN>". For both, the text of a sequence is its bytes read as UTF-8, so that it can be produced token by token.
Every other decoder (WordPiece, word level) is asked itself, one neighbour at a time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Protocol

from tokenizers import Tokenizer as Backend

from specdec.tokenizer.stream import ByteStream, NeighbourStream
from specdec.types import TextStream

SENTENCEPIECE_SPACE = "▁"

_Step = dict[str, Any]
"""One step of a decoder, as tokenizer.json writes it."""


class Detokenizer(Protocol):
    """Text of token ids; ids outside the vocabulary and those in `skipped` stand for nothing."""

    def piece(self, token_id: int) -> bytes:
        """The bytes of one token inside a text; of a special token, its name."""
        ...

    def decode(self, token_ids: Iterable[int], skipped: Collection[int]) -> str:
        """The text of all ids together."""
        ...

    def stream(self, prompt_token_ids: Sequence[int], skipped: Collection[int]) -> TextStream:
        """The text of what follows the prompt, token by token."""
        ...


class ByteDetokenizer:
    """For vocabularies of byte strings; what is no UTF-8 becomes U+FFFD, as Python's "replace" does it.

    `leading_spaces` is how many spaces decoding drops at the very beginning of a text: SentencePiece puts one there.
    """

    def __init__(self, piece: Callable[[int], bytes], leading_spaces: int) -> None:
        self.piece = piece
        self._leading_spaces = leading_spaces

    def decode(self, token_ids: Iterable[int], skipped: Collection[int]) -> str:
        data = b"".join([self.piece(token) for token in token_ids if token not in skipped])
        if self._leading_spaces:
            spaces = len(data) - len(data.lstrip(b" "))
            data = data[min(spaces, self._leading_spaces) :]
        return data.decode("utf-8", "replace")

    def stream(self, prompt_token_ids: Sequence[int], skipped: Collection[int]) -> TextStream:
        stream = ByteStream(self.piece, skipped, self._leading_spaces)
        stream.skip_prompt(prompt_token_ids)
        return stream


class NeighbourDetokenizer:
    """For decoders that see whole tokens: what a token adds may depend on the one before it, and on nothing else."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def piece(self, token_id: int) -> bytes:
        return self._text([token_id, token_id])[len(self._text([token_id])) :].encode()

    def decode(self, token_ids: Iterable[int], skipped: Collection[int]) -> str:
        return self._text([token for token in token_ids if token not in skipped])

    def stream(self, prompt_token_ids: Sequence[int], skipped: Collection[int]) -> TextStream:
        def is_visible(token_id: int) -> bool:
            return token_id not in skipped and self._backend.id_to_token(token_id) is not None

        before = next(filter(is_visible, reversed(prompt_token_ids)), None)
        return NeighbourStream(self._text, is_visible, before)

    def _text(self, token_ids: list[int]) -> str:
        return self._backend.decode(token_ids, skip_special_tokens=False)


def detokenizer(backend: Backend) -> Detokenizer:
    """The detokenizer that `backend`'s decoder describes."""
    steps = _decoder_steps(backend)
    kinds = {step["type"] for step in steps}
    if kinds == {"ByteLevel"}:
        return ByteDetokenizer(_byte_level_pieces(backend), leading_spaces=0)
    if _is_sentencepiece(steps):
        return ByteDetokenizer(_sentencepiece_pieces(backend, "ByteFallback" in kinds), _leading_spaces(steps))
    return NeighbourDetokenizer(backend)


def _decoder_steps(backend: Backend) -> list[_Step]:
    if backend.decoder is None:
        return []
    decoder: _Step = json.loads(backend.decoder.__getstate__())
    return list(decoder["decoders"]) if decoder["type"] == "Sequence" else [decoder]


def _is_sentencepiece(steps: list[_Step]) -> bool:
    return any(map(_writes_spaces, steps)) and all(_writes_spaces(step) or _is_local(step) for step in steps)


def _writes_spaces(step: _Step) -> bool:
    match step:
        case {"type": "Metaspace", "replacement": "▁"}:
            return True
        case {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}:
            return True
    return False


def _is_local(step: _Step) -> bool:
    match step:
        case {"type": "ByteFallback" | "Fuse"} | {"type": "Strip", "content": " ", "stop": 0}:
            return True
    return False


def _leading_spaces(steps: list[_Step]) -> int:
    metaspaces = [step for step in steps if step["type"] == "Metaspace" and step["prepend_scheme"] != "never"]
    return len(metaspaces) + sum(int(step["start"]) for step in steps if step["type"] == "Strip")


def byte_alphabet() -> dict[int, str]:
    """GPT-2's printable character for each byte: itself where it is one, else the next free one from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}


def _byte_level_pieces(backend: Backend) -> Callable[[int], bytes]:
    byte_of = {char: byte for byte, char in byte_alphabet().items()}
    added = {token_id: token.content.encode() for token_id, token in backend.get_added_tokens_decoder().items()}

    def piece(token_id: int) -> bytes:
        if token_id in added:
            return added[token_id]
        text = backend.id_to_token(token_id) or ""
        try:
            return bytes([byte_of[char] for char in text])
        except KeyError:
            return text.encode()

    return piece


def _sentencepiece_pieces(backend: Backend, byte_fallback: bool) -> Callable[[int], bytes]:
    byte_tokens = {f"<0x{byte:02X}>": bytes([byte]) for byte in range(256)} if byte_fallback else {}

    def piece(token_id: int) -> bytes:
        text = backend.id_to_token(token_id) or ""
        return byte_tokens.get(text) or text.replace(SENTENCEPIECE_SPACE, " ").encode()

    return piece
