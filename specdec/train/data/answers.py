"""Many jobs and one engine: its batch is kept full, and what it answers goes to where it was asked."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field

from specdec.engine import Engine
from specdec.train.data.conversation import Ask, Outcome, Reply
from specdec.train.data.tap import Tap
from specdec.types import RequestOutput, SamplingParams

Talk = Generator[Ask, Reply, Outcome]


@dataclass
class Counted:
    """What the engine did since this run began."""

    answer_tokens: int = 0
    prompt_tokens: int = 0


@dataclass
class Desk:
    """Where jobs are answered, `room` of them at a time. With a tap, replies bear states while `keeps_states` is so."""

    engine: Engine
    room: int
    tap: Tap | None = None
    keeps_states: Callable[[], bool] = lambda: True
    counted: Counted = field(default_factory=Counted)
    _talks: dict[str, Talk] = field(default_factory=dict)
    _asks: dict[str, Ask] = field(default_factory=dict)
    _number: int = 0

    @property
    def is_busy(self) -> bool:
        return bool(self._talks)

    @property
    def has_room(self) -> bool:
        return len(self._talks) < self.room

    def begin(self, talk: Talk) -> Iterator[Outcome]:
        """Take a job on; it may be over at once."""
        return self._go_on(talk, None)

    def step(self) -> Iterator[Outcome]:
        """One step of the engine, and what it brings to an end."""
        for output in self.engine.step():
            if output.finished:
                talk, ask = self._talks.pop(output.request_id), self._asks.pop(output.request_id)
                yield from self._go_on(talk, self._reply(output, ask))

    def abandon(self) -> None:
        """End whatever is still under way."""
        for request_id in list(self._talks):
            self.engine.abort(request_id)
            if self.tap is not None:
                self.tap.drop(request_id)
        self._talks.clear()
        self._asks.clear()

    def _go_on(self, talk: Talk, reply: Reply | None) -> Iterator[Outcome]:
        """Ask the next question; one that the engine refuses is answered by its refusal."""
        while True:
            try:
                ask = next(talk) if reply is None else talk.send(reply)
            except StopIteration as done:
                outcome: Outcome = done.value
                yield outcome
                return
            try:
                self._ask(talk, ask)
            except ValueError:
                reply = Reply((), "error")
                continue
            return

    def _ask(self, talk: Talk, ask: Ask) -> None:
        params = SamplingParams(
            temperature=ask.temperature,
            max_tokens=ask.max_tokens,
            seed=ask.seed,
            stop_token_ids=list(ask.stop_token_ids),
            detokenize=False,
        )
        request_id = str(self._number)
        self._number += 1
        self.engine.add_request(request_id, ask.token_ids, params)
        if self.tap is not None and ask.keeps and self.keeps_states():
            self.tap.watch(request_id, len(ask.token_ids) + ask.max_tokens)
        self._talks[request_id], self._asks[request_id] = talk, ask
        self.counted.prompt_tokens += len(ask.token_ids)

    def _reply(self, output: RequestOutput, ask: Ask) -> Reply:
        sample = output.outputs[0]
        token_ids = tuple(sample.token_ids)
        self.counted.answer_tokens += len(token_ids)
        states = None
        if self.tap is not None:
            states = self.tap.take(output.request_id, [*ask.token_ids, *token_ids])
        return Reply(token_ids, sample.finish_reason, states)
