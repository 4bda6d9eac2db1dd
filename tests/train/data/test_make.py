"""Whole directories of data: the same whatever interrupts or computes them."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.train.data.collector import Collector
from specdec.train.data.dataset import open_dataset
from specdec.train.data.make import Bounds, Watch, alone_in
from specdec.train.data.prompts import Message, Prompt, Source
from tests.toys import EOS
from tests.train.data.toys import (
    after_steps,
    chat_tokenizer,
    files,
    make,
    plan,
    scripted,
    short_plan,
    small_decoder,
    target_around,
)

STATES = Bounds(states_bytes=10**9)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    folder = tmp_path_factory.mktemp("whole")
    assert make(folder, target_around(scripted())).ended == "complete"
    return files(folder)


@pytest.fixture(scope="module")
def with_states(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    folder = tmp_path_factory.mktemp("states")
    make(folder, target_around(small_decoder(), states=True), short_plan(), bounds=STATES)
    return files(folder)


@settings(max_examples=4)
@given(st.lists(st.integers(0, 40), max_size=3))
def test_a_run_that_is_stopped_anywhere_goes_on_to_the_same_samples(
    whole: dict[str, object], tmp_path_factory: pytest.TempPathFactory, stops: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("stopped")
    for steps in stops:
        assert make(folder, target_around(scripted()), watch=after_steps(steps)).ended in ("stopped", "complete")
    assert make(folder, target_around(scripted())).ended == "complete"
    assert files(folder) == whole


@pytest.mark.parametrize("stops", [[5, 9, 14], [11, 11]])
def test_states_too(stops: list[int], with_states: dict[str, object], tmp_path: Path) -> None:
    for steps in stops:
        make(
            tmp_path, target_around(small_decoder(), states=True), short_plan(), bounds=STATES, watch=after_steps(steps)
        )
    make(tmp_path, target_around(small_decoder(), states=True), short_plan(), bounds=STATES)
    assert files(tmp_path) == with_states
    assert any(name.startswith("states-") for name in with_states)


class Killed(BaseException):
    pass


@pytest.mark.parametrize("steps", [3, 11, 25, 35])
def test_a_run_that_is_killed_goes_on_behind_the_last_whole_shard(
    steps: int, whole: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = iter(range(steps))

    def kill() -> bool:
        if next(asked, None) is None:
            raise Killed
        return False

    with monkeypatch.context() as patch:
        patch.setattr(Collector, "write_partial", lambda self: None)
        with pytest.raises(Killed):
            make(tmp_path, target_around(scripted()), watch=Watch(stopped=kill))
    before = files(tmp_path)
    assert all(whole[name] == content for name, content in before.items())
    assert len(before) < len(whole)
    make(tmp_path, target_around(scripted()))
    assert files(tmp_path) == whole


@pytest.mark.parametrize(
    "options", [{"max_num_seqs": 1}, {"max_num_seqs": 3, "proposer": "ngram"}, {"proposer": "auto"}]
)
def test_neither_the_batch_nor_the_proposer_changes_a_token(
    options: dict[str, object], whole: dict[str, object], tmp_path: Path
) -> None:
    make(tmp_path, target_around(scripted(), **options))
    assert files(tmp_path) == whole


def test_the_samples_are_whole_conversations(whole: dict[str, object], tmp_path: Path) -> None:
    made = make(tmp_path, target_around(scripted()))
    dataset, tokenizer = open_dataset(tmp_path), chat_tokenizer()
    assert len(dataset) == made.totals.samples > 20
    texts = {}
    for i in range(len(dataset)):
        sample = dataset[i]
        prompt = tokenizer.decode(sample.token_ids[: sample.num_prompt_tokens].tolist(), skip_special_tokens=False)
        answer = sample.token_ids[sample.num_prompt_tokens :].tolist()
        assert prompt.endswith("<assistant>")
        assert len(answer) == 12 or answer[-1] == EOS
        assert EOS not in answer[:-1]
        texts[prompt] = tokenizer.decode(answer), sample.source
    talk = sorted((prompt for prompt, (_, source) in texts.items() if source == "talk"), key=len)
    assert len(talk) == 3
    for earlier, later in pairwise(talk):
        assert later.startswith(f"{earlier}{texts[earlier][0]}<eos><user>")
    written = [prompt for prompt, (_, source) in texts.items() if source == "self-written"]
    assert written
    assert all(len(prompt.removeprefix("<user>").partition("<eos>")[0].split()) > 3 for prompt in written)


def test_bounds_end_a_run_and_a_later_one_goes_on(whole: dict[str, object], tmp_path: Path) -> None:
    made = make(tmp_path, target_around(scripted()), bounds=Bounds(answer_tokens=40))
    assert made.ended == "tokens"
    assert 40 <= made.totals.answer_tokens < 40 + 8 * 36
    times = iter(range(10**6))
    watch = Watch(clock=lambda: float(next(times)))
    assert make(tmp_path, target_around(scripted()), bounds=Bounds(seconds=12), watch=watch).ended == "time"
    assert make(tmp_path, target_around(scripted())).ended == "complete"
    assert files(tmp_path) == whole
    runs = open_dataset(tmp_path).provenance["runs"]
    assert [run["ended"] for run in runs] == ["tokens", "time", "complete"]
    counts = open_dataset(tmp_path).provenance["counts"]
    assert counts["samples"] == len(open_dataset(tmp_path))


def test_data_that_was_made_otherwise_is_refused_and_left_alone(tmp_path: Path) -> None:
    make(tmp_path, target_around(scripted()), watch=after_steps(20))
    before = files(tmp_path), (tmp_path / "data.json").read_bytes()
    with pytest.raises(
        ValueError, match=r"holds data made otherwise: seed was 0, and is 1 now; use the same"
    ) as caught:
        make(tmp_path, target_around(scripted()), identity={"seed": 1})
    assert "\n" not in str(caught.value)
    assert before == (files(tmp_path), (tmp_path / "data.json").read_bytes())


def test_what_differs_is_named_however_deep_it_lies(tmp_path: Path) -> None:
    settings = {"sampling": {"temperatures": [0.0, 0.7, 1.0], "weights": [1.0, 1.0, 1.0], "max_tokens": 16}}
    make(tmp_path, target_around(scripted()), watch=after_steps(20), identity=settings)
    other = {"sampling": {**settings["sampling"], "max_tokens": 17}}
    with pytest.raises(ValueError, match=r"made otherwise: sampling\.max_tokens was 16, and is 17 now; use the same"):
        make(tmp_path, target_around(scripted()), identity=other)


def test_two_runs_at_once_are_refused(tmp_path: Path) -> None:
    with alone_in(tmp_path), pytest.raises(ValueError, match="another run is making data in"):
        make(tmp_path, target_around(scripted()))
    assert not list(tmp_path.iterdir())
    assert make(tmp_path, target_around(scripted())).ended == "complete"


def test_shards_without_their_record_are_refused(tmp_path: Path) -> None:
    make(tmp_path, target_around(scripted()))
    (tmp_path / "data.json").unlink()
    with pytest.raises(ValueError, match=r"has shards and no data\.json"):
        make(tmp_path, target_around(scripted()))


def test_a_missing_shard_is_noticed(tmp_path: Path) -> None:
    make(tmp_path, target_around(scripted()))
    (tmp_path / "shard-00001.safetensors").unlink()
    with pytest.raises(ValueError, match=r"shard-00002.* does not follow the shard before it"):
        make(tmp_path, target_around(scripted()))


def test_states_stop_where_their_budget_is_full(tmp_path: Path) -> None:
    """Whole shards only, and the tokens are all there."""
    first = tmp_path / "all"
    made = make(first, target_around(small_decoder(), states=True), short_plan(), bounds=STATES)
    budget = made.totals.states_bytes // 2
    second = tmp_path / "half"
    half = make(second, target_around(small_decoder(), states=True), short_plan(), bounds=Bounds(states_bytes=budget))
    assert 0 < half.totals.states_bytes <= budget
    kept = {name: content for name, content in files(second).items() if name.startswith("states")}
    assert sum(len(content) for content in kept.values() if isinstance(content, bytes)) == half.totals.states_bytes
    one, other = open_dataset(first), open_dataset(second)
    assert len(one) == len(other)
    assert [one[i].token_ids.tolist() for i in range(len(one))] == [
        other[i].token_ids.tolist() for i in range(len(other))
    ]
    kept_samples = [other.states(i) is not None for i in range(len(other))]
    assert kept_samples[0]
    assert not all(kept_samples)


@pytest.mark.parametrize("steps", [12, 30, 1000])
def test_the_record_counts_what_is_there(tmp_path: Path, steps: int) -> None:
    made = make(tmp_path, target_around(scripted()), watch=after_steps(steps))
    counts = json.loads((tmp_path / "data.json").read_text("utf-8"))["counts"]
    dataset = open_dataset(tmp_path)
    assert counts["samples"] == len(dataset)
    assert counts["tokens"] == sum(len(dataset[i].token_ids) for i in range(len(dataset)))
    assert counts["by_source"] == dict(sorted(Counter(dataset[i].source for i in range(len(dataset))).items()))
    assert counts["dropped"] == dict(sorted(made.totals.dropped.items()))
    assert counts["prompts_left_out"] == plan().left_out


def test_a_model_without_a_template_cannot_write_prompts(tmp_path: Path) -> None:
    target = target_around(scripted())
    assert target.engine.tokenizer is not None
    target.engine.tokenizer.chat_template = None
    with pytest.raises(ValueError, match="it cannot write prompts itself; give prompt files"):
        make(tmp_path / "out", target)
    assert not (tmp_path / "out").exists()


def test_a_prompt_that_leaves_no_room_is_dropped(tmp_path: Path) -> None:
    long = Source("s", (Prompt("s", (Message("user", "long " * 60),)), Prompt("s", (Message("user", "short one"),))))
    made = make(tmp_path, target_around(scripted()), plan([long]))
    assert made.totals.dropped["too long"] == 1
    assert made.totals.samples == 1
