"""What one engine counts of its work, as Prometheus reads it: vLLM's names, labels and buckets, prefixed `specdec:`.

Something is counted in every step and read every few seconds, so counting is plain Python here, and Prometheus' own
objects exist only while somebody reads. There is no default registry: an `EngineMetrics` belongs to its engine. It is
told of steps and of samples' outputs, and refuses to know schedulers, sequences and devices.

As in vLLM, a request with n samples counts as n requests, each with times and tokens of its own. Only `prompt_tokens`
counts the shared prompt once, because it is computed once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from specdec.types import CompletionOutput, RequestMetrics, SpeculationStats

if TYPE_CHECKING:
    from prometheus_client import Metric

Counts = Mapping[tuple[str, ...], int]
"""A counter's values by those of its labels beside the model's name."""

PREFIX = "specdec:"
FINISH_REASONS = ("stop", "length", "abort", "error")

_SECONDS = (1, 2.5, 5, 7.5, 10, 20, 40, 80)
_FIRST_TOKEN_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, *_SECONDS, 160, 640, 2560)
_TOKEN_SECONDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, *_SECONDS)
_REQUEST_SECONDS = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


def length_buckets(longest: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50 and so on, up to `longest` tokens."""
    powers = range(len(str(longest)))
    return tuple(bound for power in powers for digit in (1, 2, 5) if (bound := digit * 10**power) <= longest)


class Histogram:
    """Counts of values by bucket. `bounds` ascend and are inclusive; one more bucket takes what lies above."""

    def __init__(self, help_text: str, bounds: tuple[float, ...]) -> None:
        self.help_text = help_text
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count `value`, `times` times over."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times


@dataclass(frozen=True)
class EngineState:
    """What is not counted here but looked up when somebody reads."""

    num_running: int
    num_waiting: int
    """Samples: together with `num_running`, all that are unfinished."""
    kv_cache_usage: float
    """The share of blocks in use, 0 to 1."""
    num_preemptions: int
    num_prefix_queries: int
    num_prefix_hits: int


@dataclass(frozen=True)
class Reading:
    """A family that is counted elsewhere, as it is at the moment. Values are by the labels beside the model's name."""

    name: str
    help_text: str
    labels: tuple[str, ...]
    values: Mapping[tuple[str, ...], float]
    is_counter: bool = True


@dataclass
class SampleClock:
    """When the tokens of one sample were reported, in seconds on the clock of `request`, which its samples share."""

    request: RequestMetrics
    num_prompt_tokens: int
    first_token_time: float | None = None
    last_token_time: float = 0.0


class EngineMetrics:
    """The counters, gauges and histograms of one engine; a Prometheus collector.

    `max_draft_length` is the number of positions shown from the start. `state` and `readings` are called whenever
    somebody reads.
    """

    def __init__(
        self,
        model_name: str,
        *,
        max_model_len: int,
        max_draft_length: int,
        state: Callable[[], EngineState],
        readings: Callable[[], Iterable[Reading]] = tuple,
    ) -> None:
        self.model_name = model_name
        self._state = state
        self._readings = readings
        self._num_prompt_tokens = 0
        self._num_generation_tokens = 0
        self._num_finished = dict.fromkeys(FINISH_REASONS, 0)
        self._speculation = SpeculationStats(accepted_per_position=[0] * max_draft_length)
        self._histograms = _histograms(length_buckets(max_model_len))

    def record_step(self, num_tokens: int) -> None:
        """Count a step that computed `num_tokens` tokens."""
        self._histograms["iteration_tokens_total"].observe(num_tokens)

    def record_sample(self, before: CompletionOutput, after: CompletionOutput, clock: SampleClock, now: float) -> None:
        """Count what a sample gained from one of its outputs to the next, which is reported at `now`."""
        num_tokens = len(after.token_ids) - len(before.token_ids)
        if num_tokens:
            self._record_tokens(num_tokens, after.index, clock, now)
        if after.speculation.num_drafts > before.speculation.num_drafts:
            self._record_drafts(before.speculation, after.speculation)
        if after.finished and not before.finished:
            self._record_end(after, clock, now)

    def _record_tokens(self, num_tokens: int, sample: int, clock: SampleClock, now: float) -> None:
        """Tokens that were accepted together share the time since the last ones: each took an equal part of it."""
        self._num_generation_tokens += num_tokens
        if clock.first_token_time is None:
            clock.first_token_time = clock.last_token_time = now
            self._histograms["time_to_first_token_seconds"].observe(now - clock.request.arrival_time)
            if sample == 0:
                self._num_prompt_tokens += clock.num_prompt_tokens
            num_tokens -= 1
        if num_tokens:
            gap = (now - clock.last_token_time) / num_tokens
            self._histograms["inter_token_latency_seconds"].observe(gap, num_tokens)
            clock.last_token_time = now

    def _record_drafts(self, before: SpeculationStats, after: SpeculationStats) -> None:
        total = self._speculation
        total.num_drafts += after.num_drafts - before.num_drafts
        total.num_draft_tokens += after.num_draft_tokens - before.num_draft_tokens
        total.num_accepted_tokens += after.num_accepted_tokens - before.num_accepted_tokens
        positions = total.accepted_per_position
        positions.extend([0] * (len(after.accepted_per_position) - len(positions)))
        for position, count in enumerate(after.accepted_per_position):
            positions[position] += count
        for position, count in enumerate(before.accepted_per_position):
            positions[position] -= count

    def _record_end(self, sample: CompletionOutput, clock: SampleClock, now: float) -> None:
        """A phase that the sample never came to is not observed."""
        assert sample.finish_reason is not None
        self._num_finished[sample.finish_reason] += 1
        request, num_tokens, histograms = clock.request, len(sample.token_ids), self._histograms
        histograms["request_prompt_tokens"].observe(clock.num_prompt_tokens)
        histograms["request_generation_tokens"].observe(num_tokens)
        histograms["e2e_request_latency_seconds"].observe(now - request.arrival_time)
        if request.first_scheduled_time is None:
            return
        histograms["request_queue_time_seconds"].observe(request.first_scheduled_time - request.arrival_time)
        if clock.first_token_time is None:
            return
        histograms["request_prefill_time_seconds"].observe(clock.first_token_time - request.first_scheduled_time)
        decoding = clock.last_token_time - clock.first_token_time
        histograms["request_decode_time_seconds"].observe(decoding)
        if num_tokens > 1:
            histograms["request_time_per_output_token_seconds"].observe(decoding / (num_tokens - 1))

    def render(self) -> str:
        """Everything, in Prometheus' text exposition format."""
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry).decode()

    def collect(self) -> Iterator[Metric]:
        """The families of the moment; makes this object a collector that any registry can take."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
        from prometheus_client.utils import floatToGoString

        state = self._state()
        for name, help_text, value in _gauges(state):
            gauge = GaugeMetricFamily(PREFIX + name, help_text, labels=["model_name"])
            gauge.add_metric([self.model_name], value)
            yield gauge
        for name, help_text, labels, counts in self._counters(state):
            counter = CounterMetricFamily(PREFIX + name, help_text, labels=["model_name", *labels])
            for values, count in counts.items():
                counter.add_metric([self.model_name, *values], count)
            yield counter
        for reading in self._readings():
            kind = CounterMetricFamily if reading.is_counter else GaugeMetricFamily
            other = kind(PREFIX + reading.name, reading.help_text, labels=["model_name", *reading.labels])
            for values, value in reading.values.items():
                other.add_metric([self.model_name, *values], value)
            yield other
        for name, histogram in self._histograms.items():
            bounds = [*map(floatToGoString, histogram.bounds), "+Inf"]
            buckets = list(zip(bounds, accumulate(histogram.counts), strict=True))
            family = HistogramMetricFamily(PREFIX + name, histogram.help_text, labels=["model_name"])
            family.add_metric([self.model_name], buckets, histogram.sum)
            yield family

    def _counters(self, state: EngineState) -> Iterator[tuple[str, str, tuple[str, ...], Counts]]:
        """Name, help, labels beside the model's name, and counts."""
        drafts = self._speculation
        for name, help_text, count in (
            ("spec_decode_num_drafts", "Drafts verified.", drafts.num_drafts),
            ("spec_decode_num_draft_tokens", "Draft tokens verified.", drafts.num_draft_tokens),
            ("spec_decode_num_accepted_tokens", "Draft tokens accepted.", drafts.num_accepted_tokens),
            ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", state.num_prefix_queries),
            ("prefix_cache_hits", "Prompt tokens found in the prefix cache.", state.num_prefix_hits),
            ("num_preemptions", "Times a running request was set back to be recomputed.", state.num_preemptions),
            ("prompt_tokens", "Prompt tokens of requests that came to their first token.", self._num_prompt_tokens),
            ("generation_tokens", "Tokens generated.", self._num_generation_tokens),
        ):
            yield name, help_text, (), {(): count}
        accepted: Counts = {(str(position),): count for position, count in enumerate(drafts.accepted_per_position)}
        help_text = "Drafts whose token at this position, counted from 0, was accepted."
        yield "spec_decode_num_accepted_tokens_per_pos", help_text, ("position",), accepted
        finished: Counts = {(reason,): count for reason, count in self._num_finished.items()}
        yield "request_success", "Requests that ended, by reason.", ("finished_reason",), finished


def _gauges(state: EngineState) -> Iterator[tuple[str, str, float]]:
    """Name, help and value."""
    yield "num_requests_running", "Requests that hold a place in the batch.", state.num_running
    yield "num_requests_waiting", "Requests that wait for a place in the batch.", state.num_waiting
    yield "kv_cache_usage_perc", "The share of KV cache blocks in use; 1 is all of them.", state.kv_cache_usage


def _histograms(lengths: tuple[float, ...]) -> dict[str, Histogram]:
    """Empty histograms by name; `lengths` bounds numbers of tokens of one request."""
    token = "Seconds per token after the first, an accepted draft's time shared among its tokens"
    return {
        "time_to_first_token_seconds": Histogram("Seconds from arrival to the first token.", _FIRST_TOKEN_SECONDS),
        "inter_token_latency_seconds": Histogram(f"{token}; one value a token.", _TOKEN_SECONDS),
        "request_time_per_output_token_seconds": Histogram(f"{token}; one mean a request.", _TOKEN_SECONDS),
        "e2e_request_latency_seconds": Histogram("Seconds from arrival to the end.", _REQUEST_SECONDS),
        "request_queue_time_seconds": Histogram("Seconds from arrival to the first step.", _REQUEST_SECONDS),
        "request_prefill_time_seconds": Histogram("Seconds from the first step to the first token.", _REQUEST_SECONDS),
        "request_decode_time_seconds": Histogram("Seconds from the first token to the last.", _REQUEST_SECONDS),
        "request_prompt_tokens": Histogram("Prompt tokens of a request.", lengths),
        "request_generation_tokens": Histogram("Tokens generated for a request.", lengths),
        "iteration_tokens_total": Histogram("Tokens computed in a step, drafts included.", _STEP_TOKENS),
    }
