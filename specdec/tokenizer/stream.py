"""Text of a sequence as its tokens come, at a cost per token that does not grow with the sequence.

What is emitted is never taken back: a character appears once its last byte is there, and the concatenation of all
that `push` and `finish` return is what decoding all tokens at once gives.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Collection, Iterable

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class ByteStream:
    """For tokens that are byte strings: an incremental UTF-8 decoder holds back an unfinished character.

    A character that the prompt left unfinished stays with the prompt: the stream starts on a character's border.
    """

    def __init__(self, piece: Callable[[int], bytes], skipped: Collection[int], leading_spaces: int) -> None:
        self._piece = piece
        self._skipped = skipped
        self._leading_spaces = leading_spaces
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def skip_prompt(self, token_ids: Iterable[int]) -> None:
        """Drop the leading spaces that belong to the prompt; only the beginning of a text loses any."""
        for token_id in token_ids:
            if not self._leading_spaces:
                return
            self._bytes(token_id)

    def push(self, token_id: int) -> str:
        """The text that `token_id` completes; may be empty."""
        return self._decoder.decode(self._bytes(token_id))

    def finish(self) -> str:
        """A replacement character if the last one is unfinished."""
        return self._decoder.decode(b"", final=True)

    def _bytes(self, token_id: int) -> bytes:
        if token_id in self._skipped:
            return b""
        data = self._piece(token_id)
        if self._leading_spaces and data:
            spaces = len(data) - len(data.lstrip(b" "))
            only_spaces = spaces == len(data)
            data = data[min(spaces, self._leading_spaces) :]
            self._leading_spaces = max(0, self._leading_spaces - spaces) if only_spaces else 0
        return data


class NeighbourStream:
    """For other decoders: decodes each visible token beside the one before it and emits what it added."""

    def __init__(
        self, decode: Callable[[list[int]], str], is_visible: Callable[[int], bool], before: int | None
    ) -> None:
        self._decode = decode
        self._is_visible = is_visible
        self._before = [] if before is None else [before]
        self._held: list[int] = []

    def push(self, token_id: int) -> str:
        """The text that `token_id` adds; empty while a replacement character may still become another."""
        if not self._is_visible(token_id):
            return ""
        self._held.append(token_id)
        added = self._added()
        if added.endswith(_REPLACEMENT):
            return ""
        self._before, self._held = self._held[-1:], []
        return added

    def finish(self) -> str:
        """What is still held back."""
        return self._added()

    def _added(self) -> str:
        return self._decode(self._before + self._held)[len(self._decode(self._before)) :]
