"""A stand-in for the engine behind the commands, and a way to run them in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from click.testing import CliRunner

from specdec.cli import main
from specdec.config import EngineConfig
from specdec.core.control.explanation import Explanation
from specdec.core.start_up import StartUp
from specdec.types import (
    BONUS,
    RECOVERED,
    CompletionOutput,
    Logprob,
    RequestMetrics,
    RequestOutput,
    SamplingParams,
    SpeculationParams,
)

TEMPLATE = "chat"


class CharStream:
    """Holds "é" back until the next token, as half a character would be."""

    def __init__(self) -> None:
        self._held = ""

    def push(self, token_id: int) -> str:
        text, self._held = self._held + chr(token_id), ""
        if text.endswith("é"):
            text, self._held = text[:-1], "é"
        return text

    def finish(self) -> str:
        held, self._held = self._held, ""
        return held


@dataclass
class CharTokenizer:
    """A token is a character; the template writes `<role>content` for each turn and then `<assistant>`."""

    chat_template: str | None = TEMPLATE

    def encode(self, text: str) -> list[int]:
        return [ord(char) for char in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))

    def apply_chat_template(self, messages: list[dict[str, Any]]) -> list[int]:
        if self.chat_template is None:
            raise ValueError("the model has no chat template")
        return self.encode("".join(f"<{m['role']}>{m['content']}" for m in messages) + "<assistant>")

    def stream(self, skip_special_tokens: bool, prompt_token_ids: Sequence[int]) -> CharStream:
        return CharStream()


class Memory:
    def describe(self) -> str:
        return "the memory plan"


@dataclass
class Running:
    output: RequestOutput
    params: SamplingParams
    reply: str


Answer = Callable[[str], str]


@dataclass
class FakeEngine:
    """Answers each prompt with `answer(prompt)`, two tokens a step, a drafted one and a recovered or bonus one.

    Requests whose prompt contains "fail" end with an error after one step. `before_step` is called with the number of
    the step that begins. Of each draft of four tokens `num_accepted` are accepted; None: nothing is ever drafted.
    """

    answer: Answer = lambda prompt: f"re: {prompt}"
    tokenizer: CharTokenizer | None = field(default_factory=CharTokenizer)
    before_step: Callable[[int], None] = lambda step: None
    num_accepted: int | None = 1
    max_model_len: int = 200
    load_seconds: float = 1.5
    start_up: StartUp = field(default_factory=lambda: StartUp({"imports": 0.5, "weights": 1.0}))
    memory: Memory = field(default_factory=Memory)
    config: EngineConfig | None = None
    explanation: Explanation | None = None
    added: list[dict[str, Any]] = field(default_factory=list)
    num_steps: int = 0
    _running: dict[str, Running] = field(default_factory=dict)

    def add_request(
        self,
        request_id: str,
        prompt: str | Mapping[str, object] | Sequence[int],
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        speculation: SpeculationParams | None = None,
    ) -> None:
        assert params is not None
        assert speculation is not None
        ids = [ord(char) for char in prompt] if isinstance(prompt, str) else list(prompt)
        if len(ids) > self.max_model_len:
            raise ValueError(f"the prompt has {len(ids)} tokens; the model takes {self.max_model_len}")
        text = "".join(map(chr, ids))
        self.added.append({"prompt": prompt, "text": text, "params": params, "speculation": speculation})
        output = RequestOutput(
            request_id=request_id,
            prompt=prompt if isinstance(prompt, str) else None,
            prompt_token_ids=ids,
            outputs=[CompletionOutput(i, "", []) for i in range(params.n)],
            finished=False,
            metrics=RequestMetrics(arrival_time=10.0, first_token_time=10.5),
            proposer=speculation.proposer or "none",
            num_speculative_tokens=speculation.num_speculative_tokens or 0,
        )
        self._running[request_id] = Running(output, params, self.answer(text))

    def explain_speculation(self) -> Explanation | None:
        return self.explanation

    def has_unfinished_requests(self) -> bool:
        return bool(self._running)

    def step(self) -> list[RequestOutput]:
        """Later requests move first, so that an order of output that follows the input's is no accident."""
        self.num_steps += 1
        self.before_step(self.num_steps)
        outputs = [self._advance(running) for running in reversed(self._running.values())]
        for output in outputs:
            if output.finished:
                del self._running[output.request_id]
        return outputs

    def _advance(self, running: Running) -> RequestOutput:
        for sample in running.output.outputs:
            self._extend(sample, running)
        reasons = [sample.finish_reason for sample in running.output.outputs]
        running.output.finished = all(reasons)
        if running.output.finished:
            assert running.output.metrics is not None
            running.output.metrics.finished_time = 12.5
        return running.output

    def _extend(self, sample: CompletionOutput, running: Running) -> None:
        length = len(sample.token_ids)
        limit = min(len(running.reply), running.params.max_tokens or len(running.reply))
        drafts = running.output.proposer != "none"
        new = running.reply[length : min(limit, length + 1 + drafts)]
        sample.token_ids += map(ord, new)
        sources = [running.output.proposer, RECOVERED if length % 4 else BONUS] if drafts else [BONUS]
        sample.provenance += sources[: len(new)]
        if drafts and self.num_accepted is not None:
            sample.speculation.record(4, self.num_accepted)
        if running.params.logprobs is not None:
            entries = [{ord(char): Logprob(-0.5, 1, char), 0: Logprob(float("-inf"), 9)} for char in new]
            sample.logprobs = (sample.logprobs or []) + entries
        if "fail" in self._prompt(running):
            sample.finish_reason, sample.error = "error", "the logits are not finite"
        elif len(sample.token_ids) >= limit:
            sample.finish_reason = "length" if limit < len(running.reply) else "stop"
        text = "".join(map(chr, sample.token_ids))
        sample.text = text if sample.finish_reason else text.removesuffix("é")

    @staticmethod
    def _prompt(running: Running) -> str:
        return "".join(map(chr, running.output.prompt_token_ids))

    def abort(self, request_id: str) -> RequestOutput | None:
        running = self._running.pop(request_id, None)
        if running is None:
            return None
        samples = [replace(s, finish_reason=s.finish_reason or "abort") for s in running.output.outputs]
        return replace(running.output, outputs=samples, finished=True)


@dataclass(frozen=True)
class Result:
    exit_code: int
    stdout: str
    stderr: str
    engine: FakeEngine | None
    """None: the command ended before any model work."""

    @property
    def error(self) -> str:
        """The only line on standard error, which must be an error."""
        lines = self.stderr.splitlines()
        assert len(lines) == 1, self.stderr
        assert lines[0].startswith("specdec: error: "), lines
        return lines[0].removeprefix("specdec: error: ")


def run(args: Sequence[str], build_engine: Any, input: str | bytes | None = None) -> tuple[int, str, str]:
    """Run `specdec ARGS` in this process: exit code, standard output, standard error."""
    with CliRunner().isolation(input=input) as (out, err, _):
        try:
            main(args, build_engine=build_engine)
        except SystemExit as exit:
            code = exit.code
        texts = out.getvalue().decode(), err.getvalue().decode()
    assert isinstance(code, int)
    return code, *texts


def invoke(*args: str, input: str | bytes | None = None, engine: FakeEngine | None = None) -> Result:
    """Run `specdec ARGS` on a fake engine, which takes the configuration that the command built."""
    fake = engine or FakeEngine()
    built = []

    def build(config: EngineConfig, progress: object) -> FakeEngine:
        fake.config = config
        built.append(fake)
        return fake

    return Result(*run(args, build, input), built[0] if built else None)


def generate(*args: str, input: str | bytes | None = None, engine: FakeEngine | None = None) -> Result:
    """`specdec generate ARGS` that must succeed."""
    result = invoke("generate", *args, input=input, engine=engine)
    assert result.exit_code == 0, result.stderr
    return result
