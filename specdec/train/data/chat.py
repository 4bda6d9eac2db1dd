"""How a conversation is written for the model, and where it is the user's turn: by the model's own chat template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specdec.tokenizer import Tokenizer
from specdec.train.data.prompts import Message

MARK = "\u00a4\u00a4user\u00a4\u00a4"


@dataclass(frozen=True)
class Chat:
    """Conversations as token ids. Without a template there are raw texts only, and conversations of one turn."""

    tokenizer: Tokenizer
    has_template: bool

    @staticmethod
    def of(tokenizer: Tokenizer | None) -> Chat:
        if tokenizer is None:
            raise ValueError("this model has no tokenizer, and prompts are texts")
        return Chat(tokenizer, tokenizer.chat_template is not None)

    def ids(self, messages: Sequence[Message], *, raw: bool) -> list[int]:
        """What the model is given. ValueError where its template rejects the conversation, or would be needed."""
        if raw or (not self.has_template and len(messages) == 1):
            return self.tokenizer.encode(messages[0].content)
        return self.tokenizer.apply_chat_template([{"role": m.role, "content": m.content} for m in messages])

    def user_header(self) -> list[int]:
        """What stands before the user's first words: the model goes on with a prompt of its own."""
        return self.tokenizer.encode(self._around_user()[0], add_special_tokens=False)

    def end_of_user(self) -> tuple[int, ...]:
        """What ends the user's turn, where it is a token of its own."""
        after = self.tokenizer.encode(self._around_user()[1], add_special_tokens=False)
        return tuple(token for token in after[:1] if token in self.tokenizer.special_token_ids)

    def text(self, token_ids: Sequence[int]) -> str:
        return self.tokenizer.decode(token_ids)

    def _around_user(self) -> tuple[str, str]:
        if not self.has_template:
            raise ValueError("the model has no chat template: it cannot write prompts itself; give prompt files")
        ids = self.tokenizer.apply_chat_template([{"role": "user", "content": MARK}], add_generation_prompt=False)
        before, mark, after = self.tokenizer.decode(ids, skip_special_tokens=False).partition(MARK)
        if not mark:
            raise ValueError("the chat template does not write the user's words as they are; give prompt files")
        return before, after
