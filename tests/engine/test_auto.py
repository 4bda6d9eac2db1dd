"""`auto` in an engine: whatever is chosen changes no answer, nothing is dropped for what it is, and slow ones cost
little. Where time matters, the clock is the test's."""

from __future__ import annotations

import random
import re
import warnings
from collections import Counter
from collections.abc import Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass, field, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.config import EngineConfig, SpeculativeConfig
from specdec.core.control.chance import Chance
from specdec.core.control.controller import Controller
from specdec.core.control.types import Choice
from specdec.core.sequence import Sequence
from specdec.engine import Engine, TargetFacts
from specdec.engine.build import assemble
from specdec.engine.calibration import SECONDS
from specdec.engine.speculation import Speculation
from specdec.proposers.base import NOTHING, DraftModel, ProposalInput, Proposer
from specdec.runner import Answer, Runner
from specdec.step.batch import Batch
from specdec.step.kv_cache import KVCache
from specdec.types import Draft, ProposerWarning, SamplingParams, SpeculationParams
from tests.engine.test_draft_model import check_draft_kv
from tests.test_metrics import read
from tests.toys import (
    OracleProposer,
    RandomProposer,
    ScriptedModel,
    SelfProposer,
    generate,
    looping_script,
    make_engine,
    random_script,
    run,
    tokens,
)
from tests.trees import RandomTree

VOCABULARY = 13
PROMPTS = [[1, 2, 3], [4] * 9, [5, 6, 7, 8, 5, 6, 7, 8, 5, 6], [12]]
STEP = 0.01


@dataclass
class Clock:
    """Stands still but for what is added."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


class TimedModel(ScriptedModel):
    """Takes `step` seconds for a row, and a part of it for each more."""

    def __init__(self, clock: Clock, *args: object, step: float = STEP, row: float = 0.1, **options: object) -> None:
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self.clock, self.step_seconds, self.row = clock, step, row

    def forward(self, batch: Batch, kv: KVCache) -> torch.Tensor:
        self.clock.now += self.step_seconds * (1 + self.row * (batch.num_tokens - 1))
        return super().forward(batch, kv)


@dataclass
class Timed:
    """A proposer that takes its time."""

    inner: Proposer
    clock: Clock
    seconds: float
    kv_caches: tuple[KVCache, ...] = ()
    wants = NOTHING

    def propose(self, sequences: Many[Sequence], inp: ProposalInput) -> Many[Draft | None]:
        self.clock.now += self.seconds
        return self.inner.propose(sequences, inp)

    def forget(self, sequence: Sequence) -> None:
        self.inner.forget(sequence)


def model(salt: int = 0) -> ScriptedModel:
    return ScriptedModel(looping_script(VOCABULARY, 5, salt=salt), VOCABULARY)


def auto_engine(
    target: ScriptedModel, proposers: dict[str, Proposer], k: int = 8, clock: Clock | None = None
) -> Engine:
    """An engine whose `auto` chooses among these instances. Without a clock to go by time stands still and rows are
    free, so that whether drafting pays is no matter of how fast the machine just is."""
    entries = [SpeculativeConfig("auto", k, {"proposers": list(proposers)})]
    entries += [SpeculativeConfig(name, k) for name in proposers]
    config = EngineConfig(
        model="scripted", block_size=4, kv_cache_tokens=4096, max_num_seqs=16, max_num_batched_tokens=256,
        speculative=tuple(entries),
    )  # fmt: skip
    facts = TargetFacts(target.vocab_size, target.max_model_len)
    return assemble(config, target, facts, proposers=proposers, clock=clock or Clock())


def by_chance(engine: Engine, seed: int = 0) -> Engine:
    """Whatever is chosen, answers must be right."""
    assert engine.speculation.controller is not None
    engine.speculation.controller = Chance(engine.speculation.controller.members, seed)
    return engine


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_any_choice_has_plain_decodings_bytes(temperature: float, seed: int) -> None:
    params = SamplingParams(temperature=temperature, max_tokens=60, seed=11, n=2 if temperature else 1)
    target = model()
    given = {"random": RandomProposer(VOCABULARY), "tree": RandomTree(VOCABULARY), "self": SelfProposer(target)}
    engine = make_engine(target, proposer="auto", k=8, proposers=given, verifier="coupled")
    expected = tokens(generate(make_engine(model()), PROMPTS, params))
    assert tokens(generate(by_chance(engine, seed), PROMPTS, params)) == expected
    names = {name for each in generate(engine, PROMPTS, params) for s in each.outputs for name in s.provenance}
    assert len(names) >= 5, "several proposers had their turn"


@settings(max_examples=8)
@given(data=st.data())
def test_what_it_chooses_has_plain_decodings_bytes(data: st.DataObject) -> None:
    """With its own choices, in any batch, pool, budget and block size."""
    length = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=20)
    prompts = data.draw(st.lists(length, min_size=1, max_size=5))
    params = SamplingParams(temperature=1.0, max_tokens=20, seed=3)
    block_size = data.draw(st.integers(1, 5))
    engine = make_engine(
        model(), proposer="auto", k=data.draw(st.integers(1, 7)), verifier="coupled", block_size=block_size,
        kv_cache_tokens=data.draw(st.integers(-(-40 // block_size) * block_size, 150)), max_num_seqs=3,
        max_num_batched_tokens=data.draw(st.integers(8, 40)),
    )  # fmt: skip
    if data.draw(st.booleans()):
        by_chance(engine)
    expected = tokens(generate(make_engine(model()), prompts, params))
    assert tokens(generate(engine, prompts, params)) == expected
    assert tokens(generate(engine, prompts, params)) == expected


def with_draft_model(target: ScriptedModel, draft: ScriptedModel, clock: Clock | None = None, **sizes: int) -> Engine:
    config = EngineConfig(
        model="scripted",
        speculative=(SpeculativeConfig("auto", 8), SpeculativeConfig("draft", 3, {"num_draft_layers": 1})),
        **{"block_size": 4, "kv_cache_tokens": 4096, "max_num_seqs": 8, "max_num_batched_tokens": 64, **sizes},
    )
    facts = TargetFacts(target.vocab_size, target.max_model_len)
    loaded = DraftModel(draft, draft.vocab_size, draft.max_model_len)
    timed = {} if clock is None else {"clock": clock}
    engine = assemble(config, target, facts, draft_models={"draft": loaded}, **timed)
    for kv in (engine.runner.kv, engine.runner.proposers["draft"].kv):  # type: ignore[attr-defined]
        for cache in (*kv.keys, *kv.values):
            cache.fill_(float("nan"))
    return engine


def scripted() -> ScriptedModel:
    return ScriptedModel(random_script(VOCABULARY, order=30), VOCABULARY)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("pool", [48, 4096])
def test_a_draft_model_may_miss_any_steps_and_its_kv_stays_right(seed: int, pool: int) -> None:
    """The draft model is the target itself: one wrong entry of its KV, and a draft of it would be rejected."""
    engine = by_chance(with_draft_model(scripted(), scripted(), kv_cache_tokens=pool), seed)
    params = SamplingParams(temperature=0, max_tokens=30)
    prompts = [[i, i + 1, i + 2] * 3 for i in range(5)]
    for i, prompt in enumerate(prompts):
        engine.add_request(f"r{i}", prompt, params)
    drafts: Counter[str] = Counter()
    while engine.has_unfinished_requests():
        before = {s: (s.draft.proposer, replace(s.stats)) for s in engine.scheduler.running}
        engine.step()
        engine.scheduler.check_integrity()
        for sequence in engine.scheduler.running:
            proposer, earlier = before.get(sequence, ("none", sequence.stats))
            if proposer == "draft" and sequence.stats.num_drafts > earlier.num_drafts:
                drafts["drafted"] += 1
                submitted = sequence.stats.num_draft_tokens - earlier.num_draft_tokens
                assert sequence.stats.num_accepted_tokens - earlier.num_accepted_tokens == submitted
        check_kv_of_what_counts(engine)
    assert drafts["drafted"] > 10


def check_kv_of_what_counts(engine: Engine) -> None:
    """As `check_draft_kv`, of a proposer that may lag behind."""
    kv = engine.runner.proposers["draft"].kv  # type: ignore[attr-defined]
    for sequence in engine.scheduler.running:
        count = min(sequence.num_draft_computed_tokens, sequence.num_tokens)
        entries = kv.keys[0][torch.tensor(sequence.block_table, dtype=torch.int64)].flatten()[:count]
        assert entries.tolist() == sequence.token_ids[:count]


def test_a_draft_model_that_is_asked_at_every_step_is_accepted_whole() -> None:
    engine = with_draft_model(scripted(), scripted())
    params = SamplingParams(temperature=0, max_tokens=40)
    (output,) = generate(engine, [[1, 2, 3] * 5], params, SpeculationParams("draft"))
    assert output.proposer == "draft"
    assert set(output.outputs[0].provenance) == {"draft", "bonus"}
    engine.add_request("again", [1, 2, 3] * 5, params, speculation=SpeculationParams("draft"))
    engine.step()
    check_draft_kv(engine)


def test_a_request_may_still_choose_for_itself() -> None:
    target = model()
    engine = auto_engine(target, {"oracle": OracleProposer(target, 4), "random": RandomProposer(VOCABULARY)}, k=4)
    params = SamplingParams(temperature=0, max_tokens=24)
    for i, wanted in enumerate((None, "auto", "oracle", "random", "none")):
        engine.add_request(str(i), PROMPTS[0], params, speculation=SpeculationParams(wanted))
    outputs = run(engine)
    assert [outputs[str(i)].proposer for i in range(5)] == ["auto", "auto", "oracle", "random", "none"]
    assert {"oracle"} == set(outputs["2"].outputs[0].provenance) - {"bonus", "recovered"}
    assert set(outputs["4"].outputs[0].provenance) == {"bonus"}
    assert len({tuple(output.outputs[0].token_ids) for output in outputs.values()}) == 1
    with pytest.raises(ValueError, match="unknown proposer of this engine 'suffix'"):
        engine.add_request("x", [1], params, speculation=SpeculationParams("suffix"))


def test_num_speculative_tokens_of_a_request_bounds_what_is_chosen() -> None:
    target = model()
    engine = auto_engine(target, {"oracle": OracleProposer(target, 8)})
    params = SamplingParams(temperature=0, max_tokens=40)
    generate(engine, [PROMPTS[0]], params, SpeculationParams("auto", 2))
    explanation = engine.explain_speculation()
    assert explanation is not None
    assert {length for _, length in explanation.chosen} <= {0, 1, 2}


class Halves:
    """Drafts one token, drawn from (.5, .5)."""

    kv_caches = ()
    wants = NOTHING

    def propose(self, sequences: Many[Sequence], inp: ProposalInput) -> list[Draft]:
        return [self._draft(s, n) for s, n in zip(sequences, inp.lengths, strict=True)]

    def _draft(self, sequence: Sequence, length: int) -> Draft:
        if not length:
            return Draft()
        token = random.Random(f"{sequence.request.seed}/{sequence.num_tokens}").randrange(2)
        return Draft((token,), draft_probs=torch.full((1, 2), 0.5, dtype=torch.float64))

    def forget(self, sequence: Sequence) -> None:
        pass


class LooksFirst(Runner):
    """Drops a draft that begins with the token that the target likes less: it decides after looking."""

    def propose(self, sequences: Many[Sequence], choices: Many[Choice], record: object) -> list[Answer]:
        answers = super().propose(sequences, choices, record)  # type: ignore[arg-type]
        return [replace(each, draft=Draft()) if each.draft and each.draft.token_ids[0] else each for each in answers]


@dataclass
class Share:
    """How often the first token that a draft may precede was 0."""

    zeros: int = 0
    drafted: int = 0
    counted: int = 0
    of: int = field(default=1500)

    def count(self, engine: Engine) -> float:
        params = SamplingParams(temperature=1.0, max_tokens=3, ignore_eos=True)
        for i in range(self.of):
            engine.add_request(str(i), [0], replace(params, seed=i))
        for output in run(engine, check=False).values():
            self.zeros += output.outputs[0].token_ids[1] == 0
            self.drafted += output.outputs[0].speculation.num_drafts
        return self.zeros / self.of


def halves_engine() -> Engine:
    """Target (.7, .3), draft (.5, .5)."""
    law = torch.tensor([0.7, 0.3], dtype=torch.float64).log().tolist()
    return auto_engine(ScriptedModel(lambda prefix: law, 2), {"halves": Halves()}, k=1)


def test_the_golden_negative_case() -> None:
    """Who drops drafts after looking gives (.85, .15). What is chosen here is chosen before, and gives (.7, .3)."""
    share = Share()
    assert share.count(halves_engine()) == pytest.approx(0.7, abs=0.04)
    assert share.drafted > share.of / 2, "there is no proof without drafts"
    looking = halves_engine()
    looking.runner.__class__ = LooksFirst
    assert Share().count(looking) == pytest.approx(0.85, abs=0.04)


def test_no_token_reaches_the_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it is told between a choice and its verification is who, how deep and how many rows."""
    target, told = model(), []
    engine = auto_engine(target, {"oracle": OracleProposer(target, 3)})
    controller = engine.speculation.controller
    assert controller is not None
    drafted = controller.drafted

    def listen(member: str, drafts: Many[tuple[object, int, int]], seconds: float, read: Mapping[object, int]) -> None:
        told.extend(drafts)
        drafted(member, drafts, seconds, read)  # type: ignore[arg-type]

    monkeypatch.setattr(controller, "drafted", listen)
    generate(engine, PROMPTS, SamplingParams(temperature=0, max_tokens=30))
    assert told
    assert all(isinstance(key, Sequence) and depth == nodes <= 8 for key, depth, nodes in told)


def test_all_that_is_drafted_is_submitted() -> None:
    """Sampled drafts are verified as long as they came."""
    target = model()
    engine = auto_engine(target, {"self": SelfProposer(target)})
    params = SamplingParams(temperature=1.0, max_tokens=40, seed=1)
    engine.add_request("r", [1, 2], params)
    while engine.has_unfinished_requests():
        drafts = {s: len(s.draft) for s in engine.scheduler.running}
        before = {s: s.stats.num_draft_tokens for s in engine.scheduler.running}
        engine.step()
        for sequence, length in drafts.items():
            if not sequence.is_finished:
                assert sequence.stats.num_draft_tokens - before[sequence] == length


@pytest.mark.parametrize("seconds", [0.0, 0.2 * STEP, 10 * STEP])
def test_useless_and_slow_proposers_cost_less_than_two_percent(seconds: float) -> None:
    clock = Clock()
    target = TimedModel(clock, random_script(VOCABULARY), VOCABULARY, max_model_len=600)
    given = {"random": Timed(RandomProposer(VOCABULARY), clock, seconds), "more": RandomProposer(VOCABULARY, 1)}
    engine = auto_engine(target, given, clock=clock)
    took = seconds_of(engine, clock, 500)
    assert took <= 500 * STEP / 0.98


def test_a_good_proposer_is_used_on_the_engines_clock() -> None:
    """Right for 6 of up to 8 tokens, beside a useless one: near the best that a fixed length does."""
    clock = Clock()
    target = TimedModel(clock, random_script(VOCABULARY), VOCABULARY, max_model_len=600)
    given = {
        "useless": Timed(RandomProposer(VOCABULARY), clock, 0.1 * STEP),
        "oracle": Timed(OracleProposer(target, 6), clock, 0.1 * STEP),
    }
    took = seconds_of(auto_engine(target, given, clock=clock), clock, 500)
    assert took <= 500 / 7 * STEP * (1.6 + 0.1) / 0.9


def seconds_of(engine: Engine, clock: Clock, count: int) -> float:
    """Of decoding so many tokens after the first."""
    engine.add_request("r", [1, 2, 3], SamplingParams(temperature=0, max_tokens=count + 1, ignore_eos=True))
    engine.step()
    start = clock.now
    run(engine, check=False)
    return clock.now - start


def test_calibration_reads_the_machine_and_leaves_nothing_behind() -> None:
    clock = Clock()
    target = TimedModel(clock, random_script(VOCABULARY), VOCABULARY, max_model_len=200)
    engine = auto_engine(target, {"random": Timed(RandomProposer(VOCABULARY), clock, 0.004)}, clock=clock)
    controller = engine.speculation.controller
    assert isinstance(controller, Controller)
    for rows in (1, 2, 3, 4, 8, 16):
        assert controller.cost.seconds(rows) == pytest.approx(STEP * (0.9 + 0.1 * rows))
    assert controller.beliefs.drafting["random"].seconds(8) == pytest.approx(0.004)
    assert engine.scheduler.blocks.num_free_blocks == engine.scheduler.blocks.num_blocks
    assert clock.now < SECONDS + 10 * STEP + 0.1
    assert not engine.scheduler.has_unfinished()
    ran = generate(engine, [[i % 7 for i in range(64)]], SamplingParams(temperature=0, max_tokens=2))
    assert ran[0].num_cached_tokens == 0


@pytest.mark.parametrize("batch", [1, 12])
def test_a_draft_model_is_used_at_what_it_costs_a_batch(batch: int) -> None:
    """One pass of the draft model serves all sequences: `auto` is near it where it is named, and far ahead of none."""
    took = {}
    for proposer in ("none", "draft", "auto"):
        clock = Clock()
        target, draft = (
            TimedModel(clock, random_script(VOCABULARY, order=30), VOCABULARY, max_model_len=400, step=step, row=0.01)
            for step in (STEP, 0.1 * STEP)
        )
        engine = with_draft_model(target, draft, clock=clock, max_num_seqs=16, max_num_batched_tokens=1024)
        start = clock.now
        params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
        for number in range(batch):
            prompt = [(number + i) % VOCABULARY for i in range(40)]
            engine.add_request(f"{number}", prompt, params, speculation=SpeculationParams(proposer))
        run(engine, check=False)
        took[proposer] = clock.now - start
    assert took["auto"] <= 1.1 * took["draft"]
    assert took["auto"] <= 0.6 * took["none"]


def test_calibration_tells_what_drafting_takes_from_reading_and_what_is_shared() -> None:
    clock = Clock()
    target, draft = (
        TimedModel(clock, random_script(VOCABULARY), VOCABULARY, max_model_len=400, step=STEP, row=row)
        for row in (0.01, 0.02)
    )
    controller = with_draft_model(target, draft, clock=clock).speculation.controller
    assert isinstance(controller, Controller)
    cost, reading = controller.beliefs.drafting["draft"], controller.beliefs.following["draft"]
    assert cost.seconds(3) == pytest.approx(STEP * 3, rel=0.02)
    assert cost.shared == pytest.approx(0.98, abs=0.01)
    assert reading.seconds(63) == pytest.approx(STEP * 0.02 * 63, rel=0.05)


@pytest.mark.parametrize("seconds", [0.01, 0.5])
def test_slow_proposers_do_not_hold_up_the_start(seconds: float) -> None:
    clock = Clock()
    target = TimedModel(clock, random_script(VOCABULARY), VOCABULARY, max_model_len=200, step=0.001)
    auto_engine(target, {"slow": Timed(RandomProposer(VOCABULARY), clock, seconds)}, clock=clock)
    assert clock.now <= 2 * SECONDS + 2 * seconds


def test_a_chunk_of_a_prompt_is_read_as_what_it_is() -> None:
    """A follower that reads a prompt chunk by chunk, beside drafts for others, is believed to read what it reads."""
    clock = Clock()
    target, draft = (
        TimedModel(clock, random_script(VOCABULARY, order=30), VOCABULARY, max_model_len=1200, step=step, row=0.01)
        for step in (STEP, 0.1 * STEP)
    )
    engine = with_draft_model(target, draft, clock=clock, max_num_batched_tokens=64)
    controller = engine.speculation.controller
    assert isinstance(controller, Controller)
    reading = controller.beliefs.following["draft"]
    before = reading.seconds(900)
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    engine.add_request("short", [1, 2, 3], params)
    for _ in range(4):
        engine.step()
    engine.add_request("long", [i % VOCABULARY for i in range(900)], params)
    run(engine, check=False)
    assert 0.4 * before <= reading.seconds(900) <= 2.5 * before


def test_at_most_one_of_its_proposers_has_kv_of_its_own() -> None:
    target, draft = scripted(), scripted()
    loaded = {name: DraftModel(draft, draft.vocab_size, draft.max_model_len) for name in ("draft",)}
    engine = with_draft_model(target, draft)
    twin = engine.runner.proposers["draft"]
    config = replace(engine.config, speculative=(*engine.config.speculative, SpeculativeConfig("twin", 3)))
    facts = TargetFacts(target.vocab_size, target.max_model_len)
    with pytest.raises(ValueError, match=re.escape("has draft and twin; name those that it may choose from")):
        assemble(config, target, facts, draft_models=loaded, proposers={"twin": twin})


def test_it_shows_in_the_metrics_what_it_did() -> None:
    target = model()
    engine = auto_engine(target, {"oracle": OracleProposer(target, 4), "random": RandomProposer(VOCABULARY)})
    (output,) = generate(engine, [PROMPTS[0]], SamplingParams(temperature=0, max_tokens=60))
    values = read(engine.metrics())
    explanation = engine.explain_speculation()
    assert explanation is not None
    text = engine.metrics()
    for (name, length), count in explanation.chosen.items():
        line = (
            f'specdec:spec_decode_auto_choices_total{{k="{length}",model_name="scripted",proposer="{name}"}} {count}.0'
        )
        assert line in text
    kept = sum(sum(each.kept) for each in explanation.proposers)
    assert kept >= output.outputs[0].speculation.num_accepted_tokens
    assert values["spec_decode_auto_decode_tokens_total"] == explanation.num_tokens > 0
    assert generate(make_engine(model()), [PROMPTS[0]], SamplingParams(max_tokens=2))
    assert make_engine(model()).explain_speculation() is None
    assert "spec_decode_auto" not in make_engine(model()).metrics()


def test_a_failing_proposer_costs_a_draft_and_not_a_request() -> None:
    class Failing(RandomProposer):
        def propose(self, sequences: Many[Sequence], inp: ProposalInput) -> list[Draft]:
            raise RuntimeError("no")

        def hint(self, sequence: Sequence) -> int:
            raise RuntimeError("no hint")

    target = model()
    params = SamplingParams(temperature=0, max_tokens=30)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        outputs = generate(auto_engine(target, {"failing": Failing(VOCABULARY)}), [PROMPTS[0]], params)
    said = " ".join(str(each.message) for each in caught)
    assert "gives no draft this step" in said
    assert "gives no hint this step: RuntimeError: no hint" in said
    told = [each.message for each in caught if isinstance(each.message, ProposerWarning)]
    assert len(told) == len(caught)
    assert len({each.kind for each in told}) == 2, "one for each way to fail"
    assert tokens(outputs) == tokens(generate(make_engine(model()), [PROMPTS[0]], params))


class SlowToFail(RandomProposer):
    """Fails to hint, after some time; counts what it is asked."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        super().__init__(VOCABULARY)
        self.clock, self.seconds, self.asked = clock, seconds, Counter[str]()

    def hint(self, sequence: Sequence) -> int:
        self.asked["hint"] += 1
        self.clock.now += self.seconds
        raise RuntimeError("no answer")

    def propose(self, sequences: Many[Sequence], inp: ProposalInput) -> list[Draft]:
        self.asked["draft"] += 1
        return super().propose(sequences, inp)


@pytest.mark.filterwarnings("ignore:proposer 'slow' failed")
@pytest.mark.parametrize("seconds", [0.0, 0.01 * STEP, 10 * STEP])
def test_a_hint_that_fails_is_paid_for_and_followed_by_no_draft(seconds: float) -> None:
    clock = Clock()
    target = TimedModel(clock, random_script(VOCABULARY), VOCABULARY, max_model_len=600)
    slow = SlowToFail(clock, seconds)
    engine = auto_engine(target, {"slow": slow}, clock=clock)
    slow.asked.clear()
    took = seconds_of(engine, clock, 500)
    assert took <= 500 * STEP / 0.98
    assert not slow.asked["draft"]
    explanation = engine.explain_speculation()
    assert explanation is not None
    assert explanation.hint_seconds == pytest.approx(slow.asked["hint"] * seconds)


@pytest.mark.filterwarnings("ignore:proposer 'mute' failed")
@pytest.mark.parametrize("fails", [True, False])
def test_who_never_drafts_is_not_expected_to(fails: bool) -> None:
    """It is asked for probes alone, once that is known."""

    class Mute(RandomProposer):
        def propose(self, sequences: Many[Sequence], inp: ProposalInput) -> list[Draft]:
            if fails:
                raise RuntimeError("nothing")
            return [Draft() for _ in sequences]

    clock = Clock()
    target = TimedModel(clock, random_script(VOCABULARY), VOCABULARY, max_model_len=600)
    engine = auto_engine(target, {"mute": Timed(Mute(VOCABULARY), clock, 0.001 * STEP)}, clock=clock)
    seconds_of(engine, clock, 500)
    explanation = engine.explain_speculation()
    assert explanation is not None
    (mute,) = explanation.proposers
    assert mute.num_asked - mute.num_probes <= 30
    assert explanation.expected_tokens / explanation.num_steps < 1.02


def test_the_seam_is_there_for_those_who_name_their_proposer() -> None:
    engine = make_engine(model(), proposer="ngram")
    assert isinstance(engine.speculation, Speculation)
    assert engine.speculation.controller is None
