"""The loop of `specdec generate`: every prompt in one batch, answers in input order, Ctrl-C between two steps."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING

from specdec.cli.errors import bad_input
from specdec.cli.output import Writer
from specdec.cli.prompts import Prompt, engine_prompt
from specdec.types import RequestOutput, SpeculationParams

if TYPE_CHECKING:
    from specdec.engine import Engine


@dataclass(frozen=True)
class Outcome:
    """What a run left: outputs by the prompt's index. `aborted` is empty unless the run was interrupted."""

    finished: dict[int, RequestOutput]
    aborted: dict[int, RequestOutput]
    interrupted: bool

    @property
    def outputs(self) -> list[RequestOutput]:
        """Every output, in input order."""
        both = self.finished | self.aborted
        return [both[index] for index in sorted(both)]


def submit(
    engine: Engine, prompts: Sequence[Prompt], speculation: Sequence[SpeculationParams], system: str | None
) -> None:
    """Add every prompt to the engine, its index being the request's id. `BadInput` names the prompt."""
    for index, (prompt, params) in enumerate(zip(prompts, speculation, strict=True)):
        with bad_input(prompt.origin):
            content = engine_prompt(prompt, engine.tokenizer, system)
            engine.add_request(str(index), content, prompt.params, speculation=params)


def run(engine: Engine, count: int, writer: Writer) -> Outcome:
    """Step until the `count` requests are finished or Ctrl-C is pressed, and write each answer in its turn."""
    finished: dict[int, RequestOutput] = {}
    written = 0
    with interruptible() as interrupted:
        while engine.has_unfinished_requests() and not interrupted():
            for output in engine.step():
                index = int(output.request_id)
                if output.finished:
                    finished[index] = output
                else:
                    writer.progress(index, output)
            while written in finished:
                writer.answer(written, finished[written])
                written += 1
        stopped = interrupted() and engine.has_unfinished_requests()
        aborted = _abort_rest(engine, count, finished)
        for index in range(written, count):
            if index in finished:
                writer.answer(index, finished[index])
            elif index in aborted:
                writer.unfinished(index, aborted[index])
    return Outcome(finished, aborted, stopped)


def _abort_rest(engine: Engine, count: int, finished: dict[int, RequestOutput]) -> dict[int, RequestOutput]:
    outputs = {index: engine.abort(str(index)) for index in range(count) if index not in finished}
    return {index: output for index, output in outputs.items() if output is not None}


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Let the first Ctrl-C only be noted, so that no step is cut in half; a second one interrupts as usual.

    Where a program has its own way with the signal, or runs this off the main thread, its way is left alone.
    """
    noted = threading.Event()

    def note(_signal: int, _frame: FrameType | None) -> None:
        noted.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield noted.is_set
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield noted.is_set
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
