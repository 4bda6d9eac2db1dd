"""Running requests to their end while somebody watches: a line now and then, and a way to stop between two steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from specdec.engine import Engine
from specdec.types import CompletionOutput, RequestOutput, SamplingParams, SpeculationParams


class Stopped(Exception):
    """Somebody asked to stop; what was finished before still counts."""


class BrokenOff(BaseException):
    """A step was broken off on purpose, as Ctrl-C may do; the engine takes it up again. No `Exception`, which a step
    would take for a request's own failure."""


@dataclass(frozen=True)
class Watch:
    """`tell` takes lines for a person, `stopped` says whether to stop at the next step."""

    tell: Callable[[str], None] = lambda line: None
    stopped: Callable[[], bool] = lambda: False

    def check(self, line: str) -> None:
        """Say how far it is, and raise `Stopped` if that was asked for."""
        if self.stopped():
            raise Stopped
        self.tell(line)


@dataclass(frozen=True)
class Job:
    """One request. `salt` keeps it from sharing cached prefixes with others."""

    token_ids: tuple[int, ...]
    params: SamplingParams
    speculation: SpeculationParams | None = None
    salt: str | None = None


def drive(
    engine: Engine, jobs: Iterable[Job], watch: Watch, label: str, after_step: Callable[[], None] = lambda: None
) -> list[RequestOutput]:
    """Run all jobs in one batch; their last outputs, in order. ValueError if one can never be served."""
    count = 0
    for count, job in enumerate(jobs, 1):
        engine.add_request(
            str(count - 1), list(job.token_ids), job.params, cache_salt=job.salt, speculation=job.speculation
        )
    finished: dict[str, RequestOutput] = {}
    while engine.has_unfinished_requests():
        watch.check(f"{label}: {len(finished)} of {count} finished")
        for output in _step(engine):
            if output.finished:
                finished[output.request_id] = output
        after_step()
    return [finished[str(index)] for index in range(count)]


def _step(engine: Engine) -> list[RequestOutput]:
    try:
        return engine.step()
    except BrokenOff:
        return []


def samples(outputs: Iterable[RequestOutput]) -> list[CompletionOutput]:
    """All samples of all outputs, in order."""
    return [sample for output in outputs for sample in output.outputs]


def errors(outputs: Iterable[RequestOutput]) -> list[str]:
    """What went wrong with requests, a line each."""
    return [f"a request failed: {sample.error}" for sample in samples(outputs) if sample.error is not None]


def plural(count: int, noun: str) -> str:
    """`3 prompts`, `1 prompt`, `1,024 draws`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
