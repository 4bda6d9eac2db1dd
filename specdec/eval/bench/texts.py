"""Prompts of a given length, cut out of the tasks' texts."""

from __future__ import annotations

from collections.abc import Sequence

from specdec.eval.prompts import EvalPrompt, token_ids
from specdec.tokenizer import Tokenizer

STRIDE = 7_919
"""Tokens from the beginning of one cut to that of the next: a prime, so that cuts fall everywhere."""


class Text:
    """A text that goes round: what is cut beyond its end begins again."""

    def __init__(self, tokens: Sequence[int]) -> None:
        if not tokens:
            raise ValueError("there is no text to cut prompts from: the tasks' prompts have no tokens")
        self._tokens = tuple(tokens)

    def cut(self, length: int, number: int) -> tuple[int, ...]:
        """The cut of that number, `length` tokens long."""
        start = number * STRIDE % len(self._tokens)
        turns = -(-(start + length) // len(self._tokens))
        return (self._tokens * turns)[start : start + length]


def text_of(prompts: Sequence[EvalPrompt], tokenizer: Tokenizer | None) -> Text:
    """All prompts, one after another, as a model is given them. ValueError if it cannot be."""
    return Text([token for prompt in prompts for token in token_ids(prompt, tokenizer)])
