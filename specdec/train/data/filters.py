"""What is not worth training on: empty answers, loops, what was seen before, and prompts that evaluations ask.

Pure functions of texts and token ids; what is dropped is counted by the names in `REASONS`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence

import numpy as np

REASONS = {
    "empty": "the answer is empty",
    "loop": "the answer runs in a loop",
    "duplicate answer": "the answer was given before",
    "duplicate prompt": "a prompt that the model wrote was written before",
    "evaluation prompt": "a prompt that the model wrote is one of an evaluation",
    "unfinished prompt": "a prompt that the model wrote has no end, or no words",
    "too long": "the prompt leaves no room for an answer",
    "rejected": "the chat template rejects the conversation",
    "failed": "the engine could not answer",
}
"""Why a sample is dropped while data is made."""

LONGEST_PERIOD = 64
LOOP_TOKENS, LOOP_TURNS = 32, 4
"""A loop goes round at least so often, and is at least so many tokens long."""

SHORT_ANSWER = 8
"""Answers of fewer tokens ("Yes.") may be right for many prompts: only the same prompt makes two of them one."""

_WORD = re.compile(r"\w+")


def words(text: str) -> list[str]:
    """The words of a text, without case and punctuation."""
    return _WORD.findall(text.casefold())


def normalised(text: str) -> str:
    """A text as it is compared with others: its words; one that has none, its characters without the spaces."""
    return " ".join(words(text)) or "".join(text.split())


def digest(*parts: object) -> int:
    """A number of 63 bits that stands for the parts, the same in every process."""
    content = "\x1f".join(str(part) for part in parts).encode("utf-8", "replace")
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "little") >> 1


def loops(token_ids: Sequence[int] | np.ndarray) -> bool:
    """Whether a run of the answer repeats one n-gram, n up to 64, without a break: at least four times, and over at
    least 32 tokens. (A run that repeats an n-gram is one in which each token is that of n positions before.)"""
    ids = np.asarray(token_ids)
    for period in range(1, min(LONGEST_PERIOD, len(ids) // LOOP_TURNS) + 1):
        needed = max(LOOP_TOKENS, LOOP_TURNS * period) - period
        if _longest_run(ids[period:] == ids[:-period]) >= needed:
            return True
    return False


def _longest_run(flags: np.ndarray) -> int:
    """How many trues follow each other at most."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], flags, [False]))))
    return int((edges[1::2] - edges[::2]).max(initial=0))


def answer_digest(prompt_digest: int, text: str, num_tokens: int) -> int:
    """What two answers share if one of them is enough."""
    return digest(prompt_digest if num_tokens < SHORT_ANSWER else "", normalised(text))


class Exclusion:
    """Texts of evaluations, by their runs of `size` words; of a text with fewer words, all of them in a row."""

    def __init__(self, texts: Iterable[str], size: int = 13) -> None:
        self.size = size
        self._runs: dict[int, set[tuple[str, ...]]] = {}
        for text in texts:
            own = words(text)
            length = min(size, len(own))
            for run in _runs(own, length) if length else ():
                self._runs.setdefault(length, set()).add(run)

    def __len__(self) -> int:
        return sum(map(len, self._runs.values()))

    def covers(self, text: str) -> bool:
        """Whether the text shares `size` words in a row with one of the evaluations', or holds a shorter one whole."""
        own = words(text)
        return any(run in runs for length, runs in self._runs.items() for run in _runs(own, length))


def _runs(own: Sequence[str], length: int) -> Iterable[tuple[str, ...]]:
    return (tuple(own[i : i + length]) for i in range(len(own) - length + 1))
