"""The one tokenizer class: text to ids, ids to text (whole or as they come), chats to ids.

It knows text and ids only; which ids end a request, and what is done with them, is the engine's business.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer as Backend

from specdec.tokenizer.directory import parts_from_directory
from specdec.tokenizer.gguf import parts_from_gguf
from specdec.tokenizer.parts import TokenizerParts
from specdec.tokenizer.pieces import detokenizer
from specdec.types import TextStream

if TYPE_CHECKING:
    from jinja2 import Template


class Tokenizer:
    """Text and token ids of one model.

    `eos_token_ids` are the ids that end a generation, the declared one first; `special_token_ids` those that decoding
    leaves out by default. Models often have more logits than the vocabulary has tokens: an id from `vocab_size` on
    stands for nothing and decodes to "". From `text_vocab_size` on there are only tokens that were added to the
    vocabulary, which a text holds only by their names.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        eos_token_ids: Iterable[int] = (),
        bos_token_id: int | None = None,
        chat_template: str | None = None,
        named_tokens: Mapping[str, str] | None = None,
    ) -> None:
        self.eos_token_ids = tuple(eos_token_ids)
        self.bos_token_id = bos_token_id
        self.chat_template = chat_template
        self._named_tokens = dict(named_tokens or {})
        self.text_vocab_size = max(backend.get_vocab(with_added_tokens=False).values(), default=-1) + 1
        decoder = backend.get_added_tokens_decoder()
        self.vocab_size = max(self.text_vocab_size, max(decoder, default=-1) + 1)
        added = decoder.items()
        special = {token_id for token_id, token in added if token.special} | {*self.eos_token_ids, bos_token_id}
        self.special_token_ids = frozenset(token_id for token_id in special if token_id is not None)
        self._backend = backend
        self._detokenizer = detokenizer(backend)

    @staticmethod
    def from_directory(path: Path | str) -> Tokenizer:
        """From a Hugging Face directory; ValueError, naming it, if it holds no readable tokenizer."""
        return _assemble(parts_from_directory(Path(path)))

    @staticmethod
    def from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
        """From the `tokenizer.*` keys of a GGUF file; ValueError for what is missing, malformed or unknown."""
        return _assemble(parts_from_gguf(metadata))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`, between the BOS and EOS tokens that the model wants (none without `add_special_tokens`).

        As in transformers and vLLM, the name of a special token inside `text` ("<|im_end|>") becomes that token:
        a program that mixes prompts with text it does not trust should build token ids instead.
        """
        try:
            return self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        except TypeError:
            raise ValueError(_why_not_text(text)) from None

    def save(self, directory: Path) -> None:
        """Write what `from_directory` reads the same tokenizer from, into a directory that is there."""
        named = {**self._named_special_tokens(), "chat_template": self.chat_template}
        config = {key: value for key, value in named.items() if value is not None}
        self._backend.save(str(directory / "tokenizer.json"))
        for name, values in (
            ("tokenizer_config.json", config),
            ("generation_config.json", {"eos_token_id": list(self.eos_token_ids)}),
        ):
            (directory / name).write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    def decode(self, token_ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """The text of `token_ids`; bytes that are no UTF-8 become U+FFFD."""
        return self._detokenizer.decode(token_ids, self._skipped(skip_special_tokens))

    def stream(self, skip_special_tokens: bool, prompt_token_ids: Sequence[int]) -> TextStream:
        """Text of what follows a prompt, as it comes: all of it together is `decode` of the output's ids.

        The prompt matters to SentencePiece vocabularies, where decoding drops the space that begins a text: after a
        prompt that has text, the output keeps its own.
        """
        return self._detokenizer.stream(prompt_token_ids, self._skipped(skip_special_tokens))

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for inside a text; none for a special one or an id beyond the vocabulary."""
        return b"" if token_id in self.special_token_ids else self._detokenizer.piece(token_id)

    def token_text(self, token_id: int) -> str:
        """A token for people to read: special ones by name, parts of a character as U+FFFD."""
        return self._detokenizer.piece(token_id).decode("utf-8", "replace")

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True
    ) -> list[int]:
        """Token ids of a conversation, a list of mappings with "role" and "content", as the model's template writes it.

        ValueError, in one line, if the model has no chat template, a message is malformed, or the template rejects
        the conversation.
        """
        from specdec.tokenizer.chat import render_chat

        text = render_chat(
            self._template,
            messages,
            add_generation_prompt=add_generation_prompt,
            special_tokens=self._named_special_tokens(),
        )
        return self.encode(text, add_special_tokens=False)

    @cached_property
    def _template(self) -> Template:
        from specdec.tokenizer.chat import compile_template

        if self.chat_template is None:
            raise ValueError("the model has no chat template; give it a prompt instead of messages")
        return compile_template(self.chat_template)

    def _named_special_tokens(self) -> dict[str, str]:
        named = {"bos_token": self.bos_token_id, "eos_token": next(iter(self.eos_token_ids), None)}
        own = {name: self.token_text(token_id) for name, token_id in named.items() if token_id is not None}
        return self._named_tokens | own

    def _skipped(self, skip_special_tokens: bool) -> frozenset[int]:
        return self.special_token_ids if skip_special_tokens else frozenset()


def _assemble(parts: TokenizerParts) -> Tokenizer:
    return Tokenizer(
        parts.backend,
        eos_token_ids=parts.eos_token_ids,
        bos_token_id=parts.bos_token_id,
        chat_template=parts.chat_template,
        named_tokens=parts.named_tokens,
    )


def _why_not_text(text: object) -> str:
    """What keeps `tokenizers` from reading `text`: it takes strings that can be written as UTF-8."""
    if not isinstance(text, str):
        return f"text must be a string; got {text!r:.100}"
    position = next(i for i, char in enumerate(text) if "\ud800" <= char <= "\udfff")
    return f"text must be valid Unicode; it has half a surrogate pair at position {position}"
