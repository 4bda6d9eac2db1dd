"""An interrupt at any line of a step, of an abort or of a new request: the engine goes on as if there had been none."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import specdec
from specdec.engine import Engine
from specdec.engine.change import Change
from specdec.types import RequestOutput, SamplingParams
from tests.toys import (
    EOS,
    OracleProposer,
    ScriptedModel,
    byte_tokenizer,
    looping_script,
    make_engine,
)

PACKAGE = str(Path(specdec.__file__).parent)


class Interrupts:
    """Raises KeyboardInterrupt before some of the lines that the package runs in a `with` block: `gaps` are the lines
    up to the first one, and from each to the next."""

    def __init__(self, *gaps: int) -> None:
        self.gaps = list(gaps)
        self.lines = 0
        self.places: list[str] = []

    def _calls(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        return self._trace if frame.f_code.co_filename.startswith(PACKAGE) else None

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        if event == "line":
            self.lines += 1
            if self.gaps and self.lines >= self.gaps[0] and not is_return(frame):
                self.lines -= self.gaps.pop(0)
                self.places.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
                raise KeyboardInterrupt
        return self._trace

    @contextmanager
    def armed(self) -> Iterator[None]:
        before = sys.gettrace()
        sys.settrace(self._calls)
        try:
            yield
        finally:
            sys.settrace(before)


def is_return(frame: FrameType) -> bool:
    """Whether `step` has nothing left to do but to return."""
    return frame.f_code is Engine.step.__code__ and "outputs" in frame.f_locals


def build() -> Engine:
    """Copies on write, preemption, drafts of a kind that is often wrong, stop strings and chunks of prompts."""
    target = ScriptedModel(looping_script(258, 5), 258)
    return make_engine(
        target,
        proposer="oracle",
        proposers={"oracle": OracleProposer(target, 2)},
        tokenizer=byte_tokenizer(),
        eos=[EOS],
        kv_cache_tokens=36,
        max_num_seqs=5,
        max_num_batched_tokens=13,
        verifier="coupled",
    )


PARAMS = {
    "samples": SamplingParams(temperature=1.0, seed=3, n=3, max_tokens=9, logprobs=1),
    "prompt": SamplingParams(temperature=0, max_tokens=6, prompt_logprobs=1),
    "long": SamplingParams(temperature=1.0, seed=1, max_tokens=7),
}
PROMPTS = {"samples": [65, 66, 67, 68, 69, 70], "prompt": [1, 2, 3, 4, 5], "long": [*range(70, 90)]}


def play(engine: Engine, interrupts: Interrupts) -> dict[str, RequestOutput]:
    """All requests to their ends, one more aborted; whatever is interrupted is asked again."""

    def insist(call: Callable[[], Any]) -> Any:
        for _ in range(4):
            try:
                with interrupts.armed():
                    return call()
            except KeyboardInterrupt:
                if engine._change._is_whole:
                    engine.scheduler.check_integrity()
        raise AssertionError("more interrupts than were asked for")

    def add(name: str) -> None:
        if name not in engine._states:
            engine.add_request(name, PROMPTS[name], PARAMS[name])

    for name in PROMPTS:
        insist(lambda name=name: add(name))
    finished: dict[str, RequestOutput] = {}
    engine.add_request("aborted", [9] * 5, SamplingParams(n=2, max_tokens=50))
    for step in range(500):
        if not engine.has_unfinished_requests():
            return finished
        for output in insist(engine.step):
            assert output.request_id not in finished, "a request ends twice"
            if output.finished:
                finished[output.request_id] = output
        if step == 3:
            insist(lambda: engine.abort("aborted"))
            assert "aborted" not in engine._states
            finished.setdefault("aborted", None)  # type: ignore[arg-type]
        engine.scheduler.check_integrity()
    raise AssertionError("the engine does not come to an end")


def said(outputs: dict[str, RequestOutput]) -> list[object]:
    kept = []
    for name in PROMPTS:
        for sample in outputs[name].outputs:
            assert len(sample.provenance) == len(sample.token_ids)
            assert sum(sample.speculation.accepted_per_position) == sum(p == "oracle" for p in sample.provenance)
            kept.append([sample.token_ids, sample.text, sample.finish_reason, sample.error, sample.logprobs])
        kept.append(outputs[name].prompt_logprobs)
    return kept


@pytest.mark.parametrize("part", range(8))
def test_an_interrupt_at_any_line_loses_nothing(part: int) -> None:
    """Another may cut off what the first has set going."""
    whole = Interrupts()
    expected = said(play(build(), whole))
    chosen = random.Random(part)
    for _ in range(12):
        further = [chosen.randrange(1, 200) for _ in range(chosen.randrange(3))]
        interrupts, engine = Interrupts(chosen.randrange(1, whole.lines), *further), build()
        found = said(play(engine, interrupts))
        assert found == expected, f"interrupted at {interrupts.places}"
        blocks = engine.scheduler.blocks
        assert blocks.num_free_blocks == blocks.num_blocks, f"interrupted at {interrupts.places}"


def test_the_interrupted_requests_copy_blocks_and_are_preempted(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, copied = build(), []
    copy = engine.runner.kv.copy_blocks
    monkeypatch.setattr(engine.runner.kv, "copy_blocks", lambda copies: (copied.extend(copies), copy(copies)))
    play(engine, Interrupts())
    assert copied
    assert engine.scheduler.num_preemptions


def test_a_recovery_that_is_cut_off_is_made_up_for_by_the_next_change() -> None:
    cut_off, recovered = iter([True]), []

    def recover() -> None:
        if next(cut_off, False):
            raise KeyboardInterrupt
        recovered.append(True)

    change = Change(recover)
    with pytest.raises(KeyboardInterrupt), change:
        raise ValueError
    assert recovered == []
    with change:
        assert recovered == [True]
    with change:
        assert recovered == [True]
