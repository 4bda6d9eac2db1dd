"""What an evaluation asks: prompts with a task and a category, an even choice among them, and their token ids."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specdec.tokenizer import Tokenizer


@dataclass(frozen=True)
class Message:
    role: str
    content: str


@dataclass(frozen=True)
class EvalPrompt:
    """One prompt of a task.

    A text goes through the model's chat template as one user turn, unless it is `raw` or the model has no template.
    `stop` ends the answer before any of these texts. `origin` (a file and line) leads messages about the prompt.
    """

    task: str
    category: str
    prompt_id: str
    content: str | tuple[Message, ...]
    raw: bool = False
    stop: tuple[str, ...] = ()
    origin: str = ""

    @property
    def name(self) -> str:
        """task/id: one prompt of an evaluation."""
        return f"{self.task}/{self.prompt_id}"

    @property
    def text(self) -> str:
        """The text; of a conversation, its last turn's."""
        return self.content if isinstance(self.content, str) else self.content[-1].content

    def seed(self, seed: int) -> int:
        """A seed of its own for sampling: the same whichever other prompts are asked."""
        digest = hashlib.sha256(f"{seed}/{self.name}".encode()).digest()
        return int.from_bytes(digest[:8], "little")


def choose(prompts: Sequence[EvalPrompt], limit: int | None) -> list[EvalPrompt]:
    """At most `limit` prompts of each task, as many of each of its categories as can be, spread over each evenly.

    The order stays. None takes all.
    """
    if limit is None:
        return list(prompts)
    chosen: set[int] = set()
    for task in dict.fromkeys(prompt.task for prompt in prompts):
        own = [index for index, prompt in enumerate(prompts) if prompt.task == task]
        by_category: dict[str, list[int]] = {}
        for index in own:
            by_category.setdefault(prompts[index].category, []).append(index)
        for indices, share in zip(by_category.values(), _shares(by_category, limit), strict=True):
            chosen.update(indices[rank * len(indices) // share] for rank in range(share))
    return [prompt for index, prompt in enumerate(prompts) if index in chosen]


def _shares(by_category: dict[str, list[int]], limit: int) -> list[int]:
    """How many of each category: one more of each in turn, until `limit` are given out or all are."""
    sizes = [len(indices) for indices in by_category.values()]
    shares = [0] * len(sizes)
    rest = min(limit, sum(sizes))
    while rest:
        for category, size in enumerate(sizes):
            if rest and shares[category] < size:
                shares[category] += 1
                rest -= 1
    return shares


def token_ids(prompt: EvalPrompt, tokenizer: Tokenizer | None) -> list[int]:
    """What the engine is given. ValueError, led by the prompt's origin, for what the model cannot be asked."""
    if tokenizer is None:
        raise ValueError("this model has no tokenizer, and prompts are texts")
    content = prompt.content
    try:
        if isinstance(content, str):
            if prompt.raw or tokenizer.chat_template is None:
                return tokenizer.encode(content)
            content = (Message("user", content),)
        return tokenizer.apply_chat_template([{"role": turn.role, "content": turn.content} for turn in content])
    except ValueError as error:
        raise ValueError(f"{prompt.origin}: {error}" if prompt.origin else str(error)) from None
