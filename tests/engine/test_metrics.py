"""The counters are the outputs, summed: over any batch, proposer, abort, fault, preemption and prefix hit."""

import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.config import SpeculativeConfig
from specdec.core.sequence import Sequence
from specdec.engine import Engine
from specdec.proposers.registry import build_proposer
from specdec.types import RequestOutput, SamplingParams, SpeculationParams, SpeculationStats
from tests.test_metrics import read
from tests.toys import (
    EOS,
    OracleProposer,
    RandomProposer,
    ScriptedModel,
    SelfProposer,
    byte_tokenizer,
    looping_script,
    make_engine,
    run,
)

VOCABULARY = 13
PROPOSERS = ("none", "ngram", "suffix", "random", "self", "oracle")
FAULTY = 11
"""Prompts that begin with this token meet bad logits after a few output tokens."""


def every_proposer(**options) -> tuple[Engine, ScriptedModel]:
    healthy = looping_script(VOCABULARY, 5)

    def script(prefix):
        logits = healthy(prefix)
        return logits * math.nan if prefix[0] == FAULTY and len(prefix) >= 9 else logits

    target = ScriptedModel(script, VOCABULARY, max_model_len=60)
    given = {
        "suffix": build_proposer(SpeculativeConfig("suffix")),
        "random": RandomProposer(VOCABULARY),
        "self": SelfProposer(target),
        "oracle": OracleProposer(target, 2),
    }
    return make_engine(target, proposer="ngram", proposers=given, **options), target


class Witness:
    """Steps an engine as a program would, and keeps the last output and every sample of each request."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.outputs: dict[str, RequestOutput] = {}
        self.sequences: list[Sequence] = []
        self.looked_up: set[str] = set()
        """Requests whose prompts are looked up in the prefix cache once they start."""
        self.unfinished: set[str] = set()

    def add(self, request_id: str, prompt: list[int], params: SamplingParams, proposer: str) -> None:
        self.engine.add_request(request_id, prompt, params, speculation=SpeculationParams(proposer))
        self.sequences += self.engine._states[request_id].sequences
        self.unfinished.add(request_id)
        if params.prompt_logprobs is None and self.engine.config.enable_prefix_caching:
            self.looked_up.add(request_id)

    def keep(self, outputs: list[RequestOutput]) -> None:
        self.outputs.update((output.request_id, output) for output in outputs)
        self.unfinished -= {output.request_id for output in outputs if output.finished}

    def step(self) -> None:
        self.keep(self.engine.step())

    def abort(self, request_id: str) -> None:
        output = self.engine.abort(request_id)
        assert output is not None
        self.keep([output])

    def finish(self) -> None:
        while self.engine.has_unfinished_requests():
            self.step()


def sums(witness: Witness) -> dict[str, float]:
    """What the counters should say, from the outputs alone (and from the samples for preemptions)."""
    outputs = witness.outputs.values()
    samples = [sample for output in outputs for sample in output.outputs]
    total = SpeculationStats(accepted_per_position=[0] * 4)
    for sample in samples:
        total.add(sample.speculation)
    ended = [sample for sample in samples if sample.finished]
    answered = [output for output in outputs if any(sample.token_ids for sample in output.outputs)]
    started = [output for output in outputs if output.metrics.first_scheduled_time is not None]
    num_tokens = sum(len(sample.token_ids) for sample in samples)
    num_first_tokens = sum(bool(sample.token_ids) for sample in samples)
    expected = {
        "spec_decode_num_drafts_total": total.num_drafts,
        "spec_decode_num_draft_tokens_total": total.num_draft_tokens,
        "spec_decode_num_accepted_tokens_total": total.num_accepted_tokens,
        "generation_tokens_total": num_tokens,
        "prompt_tokens_total": sum(len(output.prompt_token_ids) for output in answered),
        "num_preemptions_total": sum(sequence.num_preemptions for sequence in witness.sequences),
        "prefix_cache_queries_total": sum(
            len(output.prompt_token_ids) for output in started if output.request_id in witness.looked_up
        ),
        "prefix_cache_hits_total": sum(output.num_cached_tokens for output in outputs),
        "time_to_first_token_seconds_count": num_first_tokens,
        "inter_token_latency_seconds_count": num_tokens - num_first_tokens,
        "e2e_request_latency_seconds_count": len(ended),
        "request_generation_tokens_count": len(ended),
        "request_generation_tokens_sum": sum(len(sample.token_ids) for sample in ended),
        "request_prompt_tokens_count": len(ended),
        "request_prompt_tokens_sum": sum(
            len(output.prompt_token_ids) for output in outputs for sample in output.outputs if sample.finished
        ),
        "request_decode_time_seconds_count": sum(bool(sample.token_ids) for sample in ended),
        "request_time_per_output_token_seconds_count": sum(len(sample.token_ids) > 1 for sample in ended),
    }
    reasons = Counter(sample.finish_reason for sample in ended)
    expected |= {f"request_success_total/{reason}": reasons[reason] for reason in ("stop", "length", "abort", "error")}
    per_position = enumerate(total.accepted_per_position)
    return expected | {f"spec_decode_num_accepted_tokens_per_pos_total/{j}": count for j, count in per_position}


def check(witness: Witness) -> dict[str, float]:
    values = read(witness.engine.metrics())
    expected = sums(witness)
    assert {name: values[name] for name in expected} == expected
    return values


def mixed_params(i: int) -> SamplingParams:
    temperature = (0.0, 1.0)[i % 2]
    return SamplingParams(
        n=3 if i % 4 == 1 else 1,
        temperature=temperature,
        seed=i,
        max_tokens=5 + 3 * (i % 6),
        stop_token_ids=[4] if i % 5 == 3 else None,
        prompt_logprobs=1 if i % 7 == 6 else None,
    )


@pytest.mark.parametrize("verifier", ["rejection", "coupled"])
def test_sums_of_outputs_are_the_counters(verifier: str) -> None:
    """One long mixed run in a small pool, in which everything that is counted happens."""
    engine, _ = every_proposer(verifier=verifier, kv_cache_tokens=100, max_num_batched_tokens=32)
    witness = Witness(engine)
    for i in range(40):
        prompt = [FAULTY if i % 9 == 8 else i % 3, *[1, 2, 3, 4, 5, 6, 7, 8, 9][: 3 + i % 7]]
        witness.add(str(i), prompt, mixed_params(i), PROPOSERS[i % 5])
        for _ in range(i % 3):
            witness.step()
        if i % 10 == 9:
            witness.abort(str(min(map(int, witness.unfinished))))
            witness.abort(str(i))
        engine.scheduler.check_integrity()
    witness.finish()
    values = check(witness)
    assert min(sums(witness).values()) > 0, "something never happened, and its equality says nothing"
    assert values["num_requests_running"] == values["num_requests_waiting"] == values["kv_cache_usage_perc"] == 0


@pytest.mark.filterwarnings("ignore:proposer 'self' failed")  # it draws from the target's own law, a faulty one too
@settings(max_examples=40)
@given(data=st.data())
def test_sums_hold_at_every_moment_of_any_run(data: st.DataObject) -> None:
    max_num_seqs = data.draw(st.integers(1, 6))
    engine, _ = every_proposer(
        verifier=data.draw(st.sampled_from(["rejection", "coupled"])),
        kv_cache_tokens=data.draw(st.sampled_from([60, 100, 400])),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=data.draw(st.integers(max(5, max_num_seqs), 40)),
        enable_prefix_caching=data.draw(st.booleans()),
    )
    witness = Witness(engine)
    before: dict[str, float] = {}
    for i, move in enumerate(data.draw(st.lists(st.sampled_from(["add", "step", "abort"]), max_size=30))):
        if move == "add":
            first = data.draw(st.sampled_from([0, 1, FAULTY]))
            prompt = [first, *[1, 2, 3, 4, 5, 6, 7, 8, 9][: data.draw(st.integers(0, 9))]]
            witness.add(str(i), prompt, mixed_params(i), data.draw(st.sampled_from(PROPOSERS)))
        elif move == "step":
            witness.step()
        elif witness.unfinished:
            witness.abort(data.draw(st.sampled_from(sorted(witness.unfinished))))
        values = read(engine.metrics())
        assert values["num_requests_running"] == len(engine.scheduler.running)
        num_unfinished = sum(not sequence.is_finished for sequence in witness.sequences)
        assert values["num_requests_running"] + values["num_requests_waiting"] == num_unfinished
        counters = {name: value for name, value in values.items() if name.endswith(("_total", "_count")) or "/" in name}
        assert all(counters[name] >= value for name, value in before.items()), "a counter went back"
        before = counters
        expected = sums(witness)
        of_outputs = [name for name in expected if not name.startswith("prefix_cache")]
        assert [values[name] for name in of_outputs] == [expected[name] for name in of_outputs]
    witness.finish()
    check(witness)


@pytest.mark.parametrize("proposer", PROPOSERS)
def test_times_are_those_of_the_outputs(proposer: str) -> None:
    engine, target = every_proposer()
    witness = Witness(engine)
    for i in range(6):
        witness.add(str(i), [1, 2, 3, 1, 2], SamplingParams(temperature=0, max_tokens=2 + 5 * i), proposer)
    witness.finish()
    values, times = check(witness), [output.metrics for output in witness.outputs.values()]
    waits = sum(t.first_scheduled_time - t.arrival_time for t in times)
    first_tokens = sum(t.first_token_time - t.arrival_time for t in times)
    decoding = [t.finished_time - t.first_token_time for t in times]
    lengths = [len(output.outputs[0].token_ids) for output in witness.outputs.values()]
    assert values["request_queue_time_seconds_sum"] == pytest.approx(waits)
    assert values["time_to_first_token_seconds_sum"] == pytest.approx(first_tokens)
    assert values["e2e_request_latency_seconds_sum"] == pytest.approx(first_tokens + sum(decoding))
    assert values["request_prefill_time_seconds_sum"] == pytest.approx(first_tokens - waits)
    assert values["request_decode_time_seconds_sum"] == pytest.approx(sum(decoding))
    assert values["inter_token_latency_seconds_sum"] == pytest.approx(sum(decoding))
    means = [seconds / (length - 1) for seconds, length in zip(decoding, lengths, strict=True)]
    assert values["request_time_per_output_token_seconds_sum"] == pytest.approx(sum(means))
    assert values["iteration_tokens_total_sum"] == target.num_computed
    assert values["iteration_tokens_total_count"] == len(target.step_sizes)


def test_what_an_interrupted_step_said_is_counted_once_it_is_reported() -> None:
    class Interrupting(OracleProposer):
        def propose(self, sequences, inp):
            raise KeyboardInterrupt

    target = ScriptedModel(looping_script(VOCABULARY, 5), VOCABULARY)
    given = {"oracle": Interrupting(target, 1)}
    witness = Witness(make_engine(target, proposer="oracle", proposers=given, enable_prefix_caching=False))
    witness.add("r", [1], SamplingParams(temperature=0, max_tokens=6), "oracle")
    while witness.engine.has_unfinished_requests():
        try:
            witness.step()
        except KeyboardInterrupt:
            check(witness)
    assert check(witness)["generation_tokens_total"] == 6


def test_engines_count_for_themselves_under_their_models_name() -> None:
    params = SamplingParams(temperature=0, max_tokens=3)
    busy, idle = every_proposer()[0], every_proposer()[0]
    busy.add_request("r", [1, 2], params)
    run(busy)
    assert 'specdec:generation_tokens_total{model_name="scripted"} 3.0\n' in busy.metrics()
    assert 'specdec:generation_tokens_total{model_name="scripted"} 0.0\n' in idle.metrics()


def test_a_sample_that_ends_by_its_text_counts_no_token_after_the_cut() -> None:
    target = ScriptedModel(looping_script(258, 5), 258)
    engine = make_engine(
        target,
        proposer="oracle",
        proposers={"oracle": OracleProposer(target, 4)},
        tokenizer=byte_tokenizer(),
        eos=[EOS],
    )
    witness = Witness(engine)
    witness.add("r", [97], SamplingParams(temperature=0, max_tokens=40, stop_token_ids=[3], ignore_eos=True), "oracle")
    witness.finish()
    values = check(witness)
    assert values["request_success_total/stop"] == 1
    assert values["generation_tokens_total"] < 40


def test_a_fork_that_lost_its_share_of_the_prompt_is_no_second_look_up() -> None:
    """One place and just enough blocks for one sample: the others give their share up, and find it in the cache."""
    engine, target = every_proposer(kv_cache_tokens=32, max_num_seqs=1)
    witness = Witness(engine)
    witness.add("r", list(range(10)), SamplingParams(n=3, seed=1, max_tokens=22), "none")
    witness.finish()
    assert target.num_computed > 10 + 2 + 3 * 21, "no fork had to find its prompt again"
    assert check(witness)["prefix_cache_queries_total"] == 10
