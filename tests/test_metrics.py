"""What the metrics are called and hold: names as users' dashboards know them, values as Prometheus would count them."""

import time
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client import Histogram as Reference
from prometheus_client.parser import text_string_to_metric_families

from specdec.metrics import EngineMetrics, EngineState, Histogram, SampleClock, length_buckets
from specdec.types import CompletionOutput, RequestMetrics, SpeculationStats

LENGTHS = [1, 2, 5, 10, 20, 50, 100]
REQUEST_SECONDS = [0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680]
TOKEN_SECONDS = [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80]
FIRST_TOKEN_SECONDS = [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40]
FIRST_TOKEN_SECONDS += [80, 160, 640, 2560]

MODEL = {"model_name"}
FROZEN: dict[str, tuple[str, set[str], list[float]]] = {
    "specdec:num_requests_running": ("gauge", MODEL, []),
    "specdec:num_requests_waiting": ("gauge", MODEL, []),
    "specdec:kv_cache_usage_perc": ("gauge", MODEL, []),
    "specdec:spec_decode_num_drafts": ("counter", MODEL, []),
    "specdec:spec_decode_num_draft_tokens": ("counter", MODEL, []),
    "specdec:spec_decode_num_accepted_tokens": ("counter", MODEL, []),
    "specdec:spec_decode_num_accepted_tokens_per_pos": ("counter", MODEL | {"position"}, []),
    "specdec:prefix_cache_queries": ("counter", MODEL, []),
    "specdec:prefix_cache_hits": ("counter", MODEL, []),
    "specdec:num_preemptions": ("counter", MODEL, []),
    "specdec:prompt_tokens": ("counter", MODEL, []),
    "specdec:generation_tokens": ("counter", MODEL, []),
    "specdec:request_success": ("counter", MODEL | {"finished_reason"}, []),
    "specdec:time_to_first_token_seconds": ("histogram", MODEL, FIRST_TOKEN_SECONDS),
    "specdec:inter_token_latency_seconds": ("histogram", MODEL, TOKEN_SECONDS),
    "specdec:request_time_per_output_token_seconds": ("histogram", MODEL, TOKEN_SECONDS),
    "specdec:e2e_request_latency_seconds": ("histogram", MODEL, REQUEST_SECONDS),
    "specdec:request_queue_time_seconds": ("histogram", MODEL, REQUEST_SECONDS),
    "specdec:request_prefill_time_seconds": ("histogram", MODEL, REQUEST_SECONDS),
    "specdec:request_decode_time_seconds": ("histogram", MODEL, REQUEST_SECONDS),
    "specdec:request_prompt_tokens": ("histogram", MODEL, LENGTHS),
    "specdec:request_generation_tokens": ("histogram", MODEL, LENGTHS),
    "specdec:iteration_tokens_total": (
        "histogram",
        MODEL,
        [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384],
    ),
}


def make_metrics(model_name: str = "m", max_draft_length: int = 2) -> EngineMetrics:
    state = EngineState(3, 4, 0.5, num_preemptions=5, num_prefix_queries=60, num_prefix_hits=7)
    return EngineMetrics(model_name, max_model_len=128, max_draft_length=max_draft_length, state=lambda: state)


def read(text: str) -> dict[str, float]:
    """Every sample of an exposition by its name and, after a slash, its label beside the model's."""
    values = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            others = [value for label, value in sample.labels.items() if label != "model_name"]
            values["/".join([sample.name.removeprefix("specdec:"), *others])] = sample.value
    return values


def output(num_tokens: int, reason: str | None = None, index: int = 0, **drafts) -> CompletionOutput:
    return CompletionOutput(index, "", [7] * num_tokens, finish_reason=reason, speculation=SpeculationStats(**drafts))


def test_names_types_labels_and_buckets_are_these() -> None:
    families = {family.name: family for family in text_string_to_metric_families(make_metrics().render())}
    assert set(families) == set(FROZEN)
    for name, (kind, labels, buckets) in FROZEN.items():
        samples = families[name].samples
        assert families[name].type == kind, name
        assert families[name].documentation.endswith("."), name
        assert {label for sample in samples for label in sample.labels} - {"le"} == labels, name
        bounds = [sample.labels["le"] for sample in samples if "le" in sample.labels]
        assert bounds == [*(str(float(bound)) for bound in buckets), "+Inf"][: len(bounds)], name
        assert len(bounds) == (len(buckets) + 1 if kind == "histogram" else 0), name


def test_every_position_and_reason_is_there_before_anything_happens() -> None:
    values = read(make_metrics(max_draft_length=3).render())
    assert {key for key in values if "_per_pos" in key} == {
        f"spec_decode_num_accepted_tokens_per_pos_total/{position}" for position in range(3)
    }
    assert {key for key in values if "success" in key} == {
        f"request_success_total/{reason}" for reason in ("stop", "length", "abort", "error")
    }


def test_the_state_is_read_when_somebody_asks() -> None:
    values = read(make_metrics().render())
    assert (values["num_requests_running"], values["num_requests_waiting"], values["kv_cache_usage_perc"]) == (
        3,
        4,
        0.5,
    )
    assert values["num_preemptions_total"] == 5
    assert (values["prefix_cache_queries_total"], values["prefix_cache_hits_total"]) == (60, 7)


@pytest.mark.parametrize("name", ['a "quoted" name', "back\\slash", "two\nlines", "mod\u00e8le"])
def test_any_model_name_comes_through(name: str) -> None:
    families = text_string_to_metric_families(make_metrics(name).render())
    assert {sample.labels["model_name"] for family in families for sample in family.samples} == {name}


@pytest.mark.parametrize(
    ("longest", "buckets"), [(1, [1]), (4, [1, 2]), (5, [1, 2, 5]), (99, [1, 2, 5, 10, 20, 50]), (100, LENGTHS)]
)
def test_length_buckets(longest: int, buckets: list[int]) -> None:
    assert list(length_buckets(longest)) == buckets


@given(
    values=st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0, 9.0]) | st.floats(0, 20), st.integers(1, 4)))
)
def test_a_histogram_counts_as_prometheus_does(values: list[tuple[float, int]]) -> None:
    bounds = (0.5, 1.0, 2.0)
    reference = Reference("h", "", buckets=bounds, registry=CollectorRegistry())
    histogram = Histogram("", bounds)
    for value, times in values:
        histogram.observe(value, times)
        for _ in range(times):
            reference.observe(value)
    (family,) = reference.collect()
    expected = {(s.name, s.labels.get("le")): s.value for s in family.samples}
    for bound, count in zip(("0.5", "1.0", "2.0", "+Inf"), accumulate(histogram.counts), strict=True):
        assert expected["h_bucket", bound] == count
    assert expected["h_sum", None] == pytest.approx(histogram.sum)


def test_tokens_that_come_together_share_their_time() -> None:
    """Tokens reported at seconds 2, 5, 5, 5 and 6: four after the first in four seconds, whatever the chunks."""
    metrics, clock = make_metrics(), SampleClock(RequestMetrics(arrival_time=0.5, first_scheduled_time=1.0), 6)
    states = [output(0), output(1), output(4), output(5, "stop")]
    for (before, after), now in zip(pairwise(states), [2.0, 5.0, 6.0], strict=True):
        metrics.record_sample(before, after, clock, now)
    values = read(metrics.render())
    assert values["time_to_first_token_seconds_sum"] == 1.5
    assert (values["inter_token_latency_seconds_count"], values["inter_token_latency_seconds_sum"]) == (4, 4)
    assert values["inter_token_latency_seconds_bucket/0.75"] == 0
    assert values["inter_token_latency_seconds_bucket/1.0"] == 4
    assert values["request_time_per_output_token_seconds_count"] == 1
    assert values["request_time_per_output_token_seconds_sum"] == (6 - 2) / (5 - 1)
    assert values["request_queue_time_seconds_sum"] == 0.5
    assert values["request_prefill_time_seconds_sum"] == 1.0
    assert values["request_decode_time_seconds_sum"] == 4.0
    assert values["e2e_request_latency_seconds_sum"] == 5.5


def test_a_first_report_of_several_tokens_and_a_late_end() -> None:
    metrics, clock = make_metrics(), SampleClock(RequestMetrics(0.0, 1.0), 6)
    metrics.record_sample(output(0), output(3), clock, 2.0)
    metrics.record_sample(output(3), output(3, "abort"), clock, 9.0)
    values = read(metrics.render())
    assert (values["inter_token_latency_seconds_count"], values["inter_token_latency_seconds_sum"]) == (2, 0)
    assert values["request_decode_time_seconds_sum"] == 0
    assert values["e2e_request_latency_seconds_sum"] == 9


@pytest.mark.parametrize(
    ("scheduled", "num_tokens", "observed"),
    [(None, 0, set()), (1.0, 0, {"queue"}), (1.0, 1, {"queue", "prefill", "decode"})],
)
def test_a_phase_that_never_began_is_not_observed(scheduled: float | None, num_tokens: int, observed: set) -> None:
    metrics, clock = make_metrics(), SampleClock(RequestMetrics(0.0, scheduled), 6)
    metrics.record_sample(output(0), output(num_tokens, "abort"), clock, 2.0)
    values = read(metrics.render())
    phases = {phase for phase in ("queue", "prefill", "decode") if values[f"request_{phase}_time_seconds_count"]}
    assert phases == observed
    assert values["request_time_per_output_token_seconds_count"] == 0
    assert values["e2e_request_latency_seconds_count"] == values["request_success_total/abort"] == 1


def test_drafts_are_counted_by_what_is_new_even_without_a_token() -> None:
    metrics, clock = make_metrics(), SampleClock(RequestMetrics(0.0, 1.0), 6)
    first = {"num_drafts": 2, "num_draft_tokens": 7, "num_accepted_tokens": 4, "accepted_per_position": [2, 1, 1]}
    later = {"num_drafts": 3, "num_draft_tokens": 9, "num_accepted_tokens": 4, "accepted_per_position": [2, 1, 1]}
    metrics.record_sample(output(0), output(6, **first), clock, 2.0)
    metrics.record_sample(output(6, **first), output(6, "error", **later), clock, 3.0)
    values = read(metrics.render())
    assert values["spec_decode_num_drafts_total"] == 3
    assert values["spec_decode_num_draft_tokens_total"] == 9
    assert values["spec_decode_num_accepted_tokens_total"] == 4
    positions = [values[f"spec_decode_num_accepted_tokens_per_pos_total/{position}"] for position in range(3)]
    assert positions == [2, 1, 1]


def test_a_shared_prompt_is_counted_once_and_every_sample_is_a_request() -> None:
    metrics, times = make_metrics(), RequestMetrics(0.0, 1.0)
    for index in range(3):
        metrics.record_sample(output(0, index=index), output(2, "length", index), SampleClock(times, 6), 2.0)
    values = read(metrics.render())
    assert values["prompt_tokens_total"] == 6
    assert values["request_success_total/length"] == values["request_prompt_tokens_count"] == 3
    assert values["generation_tokens_total"] == values["request_generation_tokens_sum"] == 6


def test_any_registry_takes_an_engines_metrics() -> None:
    registry = CollectorRegistry()
    registry.register(make_metrics())
    assert registry.get_sample_value("specdec:num_requests_running", {"model_name": "m"}) == 3


def test_counting_a_step_costs_next_to_nothing() -> None:
    """One sample and a draft of four: well under the 20 microseconds that a step may spend on it."""
    metrics, clock = make_metrics(max_draft_length=4), SampleClock(RequestMetrics(0.0, 1.0), 6)
    states = [
        output(100 + 4 * step, num_drafts=step, num_draft_tokens=4 * step, num_accepted_tokens=3 * step)
        for step in range(101)
    ]
    for step, state in enumerate(states):
        state.speculation.accepted_per_position = [step, step, step, 0]
    best = float("inf")
    for _ in range(20):
        start = time.perf_counter()
        for before, after in pairwise(states):
            metrics.record_step(5)
            metrics.record_sample(before, after, clock, start)
        best = min(best, (time.perf_counter() - start) / 100)
    assert best < 20e-6
