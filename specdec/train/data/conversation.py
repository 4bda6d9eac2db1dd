"""One job from its prompt to its samples: what to ask the engine next, given what it answered.

A generator of questions, so that many jobs can wait for one engine. The outcome depends on the job alone.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from specdec.train.data.chat import Chat
from specdec.train.data.filters import Exclusion, answer_digest, digest, loops, normalised, words
from specdec.train.data.plan import Job
from specdec.train.data.prompts import Message

WRITING_TEMPERATURE = 1.0
FEWEST_WORDS = 3
"""A prompt that the model writes has more; with fewer it is hardly a question."""


@dataclass(frozen=True)
class Ask:
    """A question to the engine. `keeps` says whether its tokens may become a sample, whose states are wanted."""

    token_ids: list[int]
    temperature: float
    max_tokens: int
    seed: int
    stop_token_ids: tuple[int, ...] = ()
    keeps: bool = True


@dataclass(frozen=True)
class Reply:
    """What the engine answered, the end-of-sequence token included; `states` [n, width] of prompt and answer."""

    token_ids: tuple[int, ...]
    finish_reason: str | None
    states: torch.Tensor | None = None


@dataclass(frozen=True)
class Answer:
    """One sample: a prompt, everything before the answer, and the target's answer to it."""

    job: int
    turn: int
    token_ids: np.ndarray  # int64 [n]
    num_prompt_tokens: int
    source: str
    temperature: float
    key: int
    prompt_digest: int
    answer_digest: int
    finished: bool
    """Whether the answer ended by itself."""
    states: torch.Tensor | None = None  # bfloat16 [n, width]

    @property
    def num_answer_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens


@dataclass(frozen=True)
class Outcome:
    """What became of a job: its samples, and why there are no more of them (see `filters.REASONS`)."""

    job: int
    answers: tuple[Answer, ...] = ()
    dropped: tuple[str, ...] = ()


@dataclass(frozen=True)
class Limits:
    """How long answers, prompts that the model writes, and whole sequences may be, in tokens."""

    max_tokens: int
    max_written: int
    max_model_len: int


@dataclass
class Conversation:
    """A job, and how it is to be answered."""

    job: Job
    chat: Chat
    limits: Limits
    exclusion: Exclusion
    _answers: list[Answer] = field(default_factory=list)

    def run(self) -> Generator[Ask, Reply, Outcome]:
        """Questions one after the other; each is sent its reply."""
        messages = list(self.job.prompt.opening)
        if self.job.prompt.number is not None:
            written = yield from self._write_prompt()
            if not isinstance(written, Message):
                return self._end(written)
            messages = [written]
        for turn in range(1 + len(self.job.prompt.follow_ups)):
            if turn:
                messages.append(Message("user", self.job.prompt.follow_ups[turn - 1]))
            said = yield from self._answer(turn, messages)
            if not isinstance(said, Message):
                return self._end(said)
            messages.append(said)
        return self._end()

    def _end(self, *dropped: str) -> Outcome:
        return Outcome(self.job.number, tuple(self._answers), dropped)

    def _write_prompt(self) -> Generator[Ask, Reply, Message | str]:
        """The model's own first turn of a user, or why there is none."""
        header, ends = self.chat.user_header(), self.chat.end_of_user()
        seed = self.job.seed(-1)
        reply = yield Ask(header, WRITING_TEMPERATURE, self.limits.max_written, seed, ends, keeps=False)
        if reply.finish_reason == "error":
            return "failed"
        text = self.chat.text(reply.token_ids).strip()
        if reply.finish_reason != "stop" or len(words(text)) <= FEWEST_WORDS or loops(reply.token_ids):
            return "unfinished prompt"
        return "evaluation prompt" if self.exclusion.covers(text) else Message("user", text)

    def _answer(self, turn: int, messages: Sequence[Message]) -> Generator[Ask, Reply, Message | str]:
        """The model's answer, kept as a sample, or why there is none."""
        try:
            prompt = self.chat.ids(messages, raw=self.job.prompt.raw)
        except ValueError:
            return "rejected"
        if len(prompt) >= self.limits.max_model_len:
            return "too long"
        reply = yield Ask(prompt, self.job.temperature, self.limits.max_tokens, self.job.seed(turn))
        if reply.finish_reason == "error":
            return "failed"
        text = self.chat.text(reply.token_ids)
        if not text.strip():
            return "empty"
        if loops(reply.token_ids):
            return "loop"
        asked = digest(*(normalised(message.content) for message in messages))
        self._answers.append(
            Answer(
                job=self.job.number,
                turn=turn,
                token_ids=np.array([*prompt, *reply.token_ids], dtype=np.int64),
                num_prompt_tokens=len(prompt),
                source=self.job.prompt.source,
                temperature=self.job.temperature,
                key=self.job.seed(turn),
                prompt_digest=asked,
                answer_digest=answer_digest(asked, text, len(reply.token_ids)),
                finished=reply.finish_reason == "stop",
                states=reply.states,
            )
        )
        return Message("assistant", text)
