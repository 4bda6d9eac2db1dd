"""The loop itself: schedule, execute, commit, propose. No threads, no globals, several in one process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Many
from dataclasses import replace

from specdec.config import EXACTNESS, EngineConfig
from specdec.core.block_manager import BlockManager
from specdec.core.committed import CommittedTokens
from specdec.core.control.explanation import Explanation
from specdec.core.recovery import Mark, mark, recover
from specdec.core.scheduler import Schedule, Scheduler
from specdec.core.sequence import Sequence
from specdec.core.start_up import StartUp
from specdec.engine.change import Change
from specdec.engine.portfolio import build_controller
from specdec.engine.readings import readings
from specdec.engine.requests import Prompt, RequestBuilder, TargetFacts
from specdec.engine.samples import RequestState
from specdec.engine.speculation import Speculation
from specdec.metrics import EngineMetrics, EngineState, Reading
from specdec.runner import Runner
from specdec.step.memory import MemoryPlan
from specdec.step.record import StepRecord, read_clock
from specdec.tokenizer import Tokenizer
from specdec.types import (
    Logprob,
    Request,
    RequestOutput,
    SamplingParams,
    SpeculationParams,
    TextStream,
    Verdict,
)


class Engine:
    """Requests in (`add_request`), one step at a time (`step`), outputs out; DESIGN.md section 5 is `step`.

    `from_config` loads a model; the constructor takes the parts, for a model of one's own.
    """

    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        facts: TargetFacts,
        memory: MemoryPlan,
        tokenizer: Tokenizer | None = None,
        load_seconds: float = 0.0,
        clock: Callable[[], float] = read_clock,
    ) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self.memory = memory
        self.load_seconds = load_seconds
        self.start_up = StartUp()
        self._clock = clock
        self.last_step = StepRecord(clock=clock)
        self.runner = runner
        self._requests = RequestBuilder(
            config,
            facts,
            tokenizer,
            pool_tokens=memory.num_blocks * config.block_size,
            kv_owners={name: each.wants.num_slots for name, each in runner.proposers.items() if each.kv_caches},
        )
        self.scheduler = Scheduler(
            BlockManager(memory.num_blocks, config.block_size, config.enable_prefix_caching),
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_model_len=self._requests.max_model_len,
        )
        self.speculation = Speculation(runner, self.scheduler, build_controller(config, runner, self.scheduler, clock))
        self._states: dict[str, RequestState] = {}  # of the unfinished requests
        self._touched: dict[Sequence, None] = {}  # samples whose change is still to be reported, in order
        self._outputs: dict[str, RequestOutput] = {}  # of requests, still to be returned
        self._marks: Many[Mark] = ()  # of the step that is being computed
        self._change = Change(self._recover)
        self._num_arrivals = 0
        self._counts = EngineMetrics(
            config.model,
            max_model_len=self._requests.max_model_len,
            max_draft_length=max(self._requests.proposers.values()),
            state=self._state,
            readings=self._readings,
        )

    @staticmethod
    def from_config(config: EngineConfig, progress: Callable[[str], None] | None = None) -> Engine:
        """Load the model that `config` names and size the KV pool. `progress` receives lines for a person.

        ValueError in one line for whatever is wrong with the configuration or the model's files.
        """
        from specdec.engine.build import build_engine

        return build_engine(config, progress)

    @property
    def max_model_len(self) -> int:
        """The longest sequence, prompt and output together, that the model and the KV pool can hold."""
        return self._requests.max_model_len

    def add_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        speculation: SpeculationParams | None = None,
    ) -> None:
        """Queue a request. Lower `priority` is served first; only equal `cache_salt`s share cached prefixes.

        ValueError in one line if the request can never be served as asked; the engine is unchanged then.
        """
        if not isinstance(request_id, str) or not request_id:
            raise ValueError(f"request_id must be a non-empty string; got {request_id!r}")
        if request_id in self._states or request_id in self._outputs:
            raise ValueError(f"request_id {request_id!r} is in use by an unfinished request")
        request = self._requests.build(
            request_id,
            prompt,
            params if params is not None else SamplingParams(),
            arrival=self._num_arrivals,
            priority=priority,
            cache_salt=cache_salt,
            speculation=speculation if speculation is not None else SpeculationParams(),
        )
        with self._change:
            self._num_arrivals += 1
            samples = [self._new_sequence(request, index) for index in range(request.params.n)]
            samples[0].forks = samples[1:]
            self.scheduler.add(samples[0])
            self._states[request_id] = RequestState(request, samples)

    def _new_sequence(self, request: Request, index: int) -> Sequence:
        sequence = Sequence(request, index, CommittedTokens(request.prompt_token_ids))
        sequence.text_stream = self._new_stream(sequence)
        return sequence

    def _new_stream(self, sequence: Sequence) -> TextStream | None:
        request = sequence.request
        if self.tokenizer is None or not request.params.detokenize:
            return None
        return self.tokenizer.stream(request.params.skip_special_tokens, request.prompt_token_ids)

    def has_unfinished_requests(self) -> bool:
        """Whether a step has anything to compute, or to return because the last one was interrupted."""
        return bool(self._states or self._outputs)

    def step(self) -> list[RequestOutput]:
        """Compute one step; outputs of the requests that got tokens or ended, each with all its text so far.

        An exception leaves the engine able to go on, and so does an interrupt, wherever it arrives: a step that was not
        committed to its end is computed again, and what a committed one changed is returned by the next call.
        """
        with self._change:
            record = self.last_step = StepRecord(clock=self._clock)
            with record.time("schedule"):
                schedule = self.scheduler.schedule()
            if schedule.rows:
                self._compute(schedule, record)
                self._counts.record_step(record.num_tokens)
                with record.time("propose"):
                    self.speculation.propose(schedule, record)
            self._report()
        outputs, self._outputs = [*self._outputs.values()], {}
        return outputs

    def _recover(self) -> None:
        """Make the engine whole after something was cut off, at whatever point of it."""
        samples = [sample for state in self._states.values() for sample in state.sequences]
        recover(self.scheduler, samples, self._marks, self._new_stream)
        self._marks = ()
        changed = (state.unreported(self._touched) for state in self._states.values())
        self._touched = {sample: None for samples in changed for sample in samples}

    def _compute(self, schedule: Schedule, record: StepRecord) -> None:
        """Execute and commit."""
        record.num_rows = len(schedule.rows)
        record.num_tokens = sum(row.num_scheduled_tokens for row in schedule.rows)
        self._mark_scheduled(schedule)
        verdicts = self.runner.execute(schedule, record)
        with record.time("commit"):
            self.runner.keep_paths(schedule, verdicts)
            self._marks = [mark(row.sequence) for row in schedule.rows]
            self.scheduler.commit(schedule, [self._decode_logprobs(verdict) for verdict in verdicts])
            self._marks = ()  # from here on the step counts
            for row, verdict in zip(schedule.rows, verdicts, strict=True):
                if verdict.token_ids or verdict.error is not None:
                    self._touched[row.sequence] = None
        self.speculation.verified(schedule, verdicts, record)

    def _report(self) -> None:
        """Outputs of the requests whose samples changed since they were last reported."""
        now = time.monotonic()
        changed: dict[str, list[Sequence]] = {}
        for sequence in self._touched:
            changed.setdefault(sequence.request.request_id, []).append(sequence)
        for request_id, sequences in changed.items():
            state = self._states[request_id]
            # Where a sample failed, those that waited for its prompt ended with it.
            failed = any(sequence.finish_reason == "error" for sequence in sequences)
            self._refresh(state, state.sequences if failed else sequences, now)
            self._outputs[request_id] = self._output(state, now)
            self._drop_finished(state)
        self._touched = {}

    def _refresh(self, state: RequestState, sequences: Iterable[Sequence], now: float) -> None:
        for sequence in sequences:
            state.refresh(sequence, self._counts, now)
            if sequence.is_finished:
                self.speculation.forget(sequence)

    def _drop_finished(self, state: RequestState) -> None:
        if not state.num_unfinished:
            del self._states[state.request.request_id]

    def _mark_scheduled(self, schedule: Schedule) -> None:
        now = time.monotonic()
        for row in schedule.rows:
            metrics = self._states[row.sequence.request.request_id].metrics
            if metrics.first_scheduled_time is None:
                metrics.first_scheduled_time = now

    def abort(self, request_id: str) -> RequestOutput | None:
        """End a request now; its last output, or None if there is no such unfinished request."""
        if not isinstance(request_id, str):
            return None
        with self._change:
            unreturned = self._outputs.pop(request_id, None)
            if request_id not in self._states:
                return unreturned
            state, now = self._states[request_id], time.monotonic()
            self.scheduler.abort(request_id)
            self._refresh(state, state.sequences, now)
            self._touched = {s: None for s in self._touched if s.request is not state.request}
            output = self._output(state, now)
            self._drop_finished(state)
            return output

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False while any request holds blocks."""
        with self._change:
            return self.scheduler.blocks.reset_prefix_cache()

    def metrics(self) -> str:
        """What this engine has counted so far, in Prometheus' text format: vLLM's names with the prefix `specdec:`.

        Tokens, drafts and ends are counted as they are returned: sums over the outputs equal the counters.
        """
        return self._counts.render()

    def explain_speculation(self) -> Explanation | None:
        """What the proposer `auto` chose so far, and from which figures; None if the engine has not got it."""
        controller = self.speculation.controller
        return None if controller is None else controller.explain()

    def _readings(self) -> list[Reading]:
        explanation = self.explain_speculation()
        return [] if explanation is None else readings(explanation)

    def _state(self) -> EngineState:
        scheduler = self.scheduler
        num_unfinished = sum(state.num_unfinished for state in self._states.values())
        return EngineState(
            num_running=len(scheduler.running),
            num_waiting=num_unfinished - len(scheduler.running),
            kv_cache_usage=scheduler.blocks.usage,
            num_preemptions=scheduler.num_preemptions,
            num_prefix_queries=scheduler.num_prefix_queries,
            num_prefix_hits=scheduler.num_prefix_hits,
        )

    def _decode_logprobs(self, verdict: Verdict) -> Verdict:
        """Add the tokens' texts to a verdict's log probabilities."""
        if self.tokenizer is None or (verdict.logprobs is None and verdict.prompt_logprobs is None):
            return verdict
        return replace(
            verdict,
            logprobs=self._decoded(verdict.logprobs),
            prompt_logprobs=self._decoded(verdict.prompt_logprobs),
        )

    def _decoded(self, entries: tuple[dict[int, Logprob], ...] | None) -> tuple[dict[int, Logprob], ...] | None:
        if entries is None:
            return None
        assert self.tokenizer is not None
        text = self.tokenizer.token_text
        return tuple({t: replace(value, decoded_token=text(t)) for t, value in entry.items()} for entry in entries)

    def _output(self, state: RequestState, now: float) -> RequestOutput:
        """The state of a request."""
        request, first, finished = state.request, state.sequences[0], not state.num_unfinished
        if state.metrics.first_token_time is None and any(completion.token_ids for completion in state.completions):
            state.metrics.first_token_time = now
        if finished:
            state.metrics.finished_time = now
        wants_prompt = request.params.prompt_logprobs is not None
        verifier = "rejection" if self.config.verifier == "auto" else self.config.verifier
        is_plain = request.params.is_greedy or not request.num_speculative_tokens
        return RequestOutput(
            request_id=request.request_id,
            prompt=request.prompt,
            prompt_token_ids=state.prompt_token_ids,
            outputs=list(state.completions),
            finished=finished,
            prompt_logprobs=[None, *first.prompt_logprobs] if wants_prompt else None,
            metrics=replace(state.metrics),
            num_cached_tokens=first.num_cached_tokens,
            proposer=request.proposer,
            verifier="greedy" if request.params.is_greedy else verifier,
            exactness="bytes" if is_plain else EXACTNESS[verifier],
            num_speculative_tokens=request.num_speculative_tokens,
        )
