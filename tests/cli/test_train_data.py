"""`specdec train data`: what it says, what it refuses, and that the same command goes on."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from specdec.cli.train_data import stoppable
from specdec.cli.train_data_options import parse_size
from specdec.engine import Engine
from specdec.train.data.dataset import open_dataset
from specdec.train.data.prompts import PROMPT_KEYS
from specdec.types import RequestOutput
from tests.cli import fake
from tests.engine.test_draft_files import save
from tests.train.data.toys import TEMPLATE, files

TINY = ("--dtype=float32", "--kernels=reference", "--max-model-len=100", "--max-num-seqs=4", "--kv-cache-tokens=1024")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save(tmp_path_factory.mktemp("model"), layers=2)
    (folder / "chat_template.jinja").write_text(TEMPLATE.replace("<eos>", "\n"), "utf-8")
    return folder


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    rows = [{"prompt": f"What is {i} and {i}?", "source": "sums"} for i in range(9)]
    path.write_text("\n".join(json.dumps(row) for row in [*rows, {"turns": ["Hi.", "Why?"]}]), "utf-8")
    return path


def data(*args: object) -> tuple[int, str, str]:
    return fake.run(["train", "data", *map(str, args)], None)


def usual(model: Path, prompts: Path, output: Path) -> list[object]:
    return [*TINY, "--model", model, "--prompts", prompts, "-o", output, "--max-tokens=8", "--shard-jobs=4"]


def test_data_is_made_and_gone_on_with(model: Path, prompts: Path, tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    common = ["--samples-per-prompt=2", "--temperatures=0,1", "--weights=1,2", "--seed=3", "--cache-states=1MB"]
    code, out, err = data(*usual(model, prompts, one), *common)
    assert code == 0, err
    assert "all prompts are answered" in out
    assert "jobs" in err
    assert re.search(r"^states kept: \d+\.\d KiB of at most 1MB$", out, re.MULTILINE)
    stopped = data(*usual(model, prompts, other), *common, "--max-total-tokens=20", "--quiet")
    assert stopped[0] == 0
    assert "there are as many tokens as were asked for" in stopped[1]
    assert "jobs" not in stopped[2].replace("jobs are done", "")
    code, out, err = data(*usual(model, prompts, other), *common, "--proposer=ngram", "--json", "--quiet")
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert told["ended"] == "complete"
    assert told["jobs_done"] == told["jobs"] == 20
    dataset = open_dataset(other)
    assert told["counts"]["samples"] == len(dataset) > 10
    assert files(one).keys() == files(other).keys()
    assert [open_dataset(one)[i].token_ids.tolist() for i in range(len(dataset))] == [
        dataset[i].token_ids.tolist() for i in range(len(dataset))
    ]
    assert dataset.aux_layers == (0, 1, 2)
    assert dataset.states(0) is not None
    record = dataset.provenance
    assert [run["proposers"] for run in record["runs"]] == [["none"], ["ngram"]]
    assert f"--prompts {prompts}" in record["runs"][0]["command"]
    assert len(record["identity"]["model"]["sha256"]) == 64
    assert record["identity"]["sources"][0]["prompts"] == 10


def test_prompts_that_leave_no_room_are_told_with_the_limit(model: Path, prompts: Path, tmp_path: Path) -> None:
    code, out, _ = data(*usual(model, prompts, tmp_path / "out"), "--max-model-len=8", "--quiet")
    assert code == 0
    assert "too long for --max-model-len 8\n" in out


def test_a_directory_of_other_data_is_refused(model: Path, prompts: Path, tmp_path: Path) -> None:
    asked = usual(model, prompts, tmp_path / "out")
    assert data(*asked, "--max-total-tokens=5")[0] == 0
    code, out, err = data(*asked, "--seed=1", "--quiet")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "holds data made otherwise: sampling.seed was 0, and is 1 now" in err


def test_evaluation_prompts_are_left_out_and_told(model: Path, prompts: Path, tmp_path: Path) -> None:
    evaluation = tmp_path / "evaluation.jsonl"
    evaluation.write_text(json.dumps({"question": "what is 3 and 3"}), "utf-8")
    asked = usual(model, prompts, tmp_path / "out")
    code, out, _ = data(*asked, "--exclude", evaluation, "--most-per-source=5", "--quiet")
    assert code == 0
    assert "left out before: 0 repeated prompt, 1 evaluation prompt, 3 beyond its source's share" in out


def test_the_model_writes_prompts_and_reads_documents(model: Path, tmp_path: Path) -> None:
    book = tmp_path / "book.txt"
    book.write_text("A few words of it. " * 10, "utf-8")
    out = tmp_path / "out"
    options = ["--self-written=3", "--documents", book, "--max-model-len=128", "--max-tokens=8", "-o", out]
    code, said, err = data(*TINY[:2], *TINY[3:], "--model", model, *options, "--json", "--quiet")
    assert code == 0, err
    assert json.loads(said)["jobs_done"] == 4


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "there is nothing to answer: give --prompts FILE, --documents PATH or --self-written N"),
        (("--self-written=2", "--raw"), "--raw is for --prompts alone"),
        (("--self-written=2", "--temperatures=a"), "--temperatures must be numbers with commas between them; got 'a'"),
        (("--self-written=2", "--weights=1"), "there must be a weight for each temperature; got 1 for 3"),
        (("--self-written=2", "--cache-states=lots"), "--cache-states must be a number of bytes such as 20GB"),
        (("--self-written=2", "--aux-layers=x"), "--aux-layers must be layers with commas between them; got 'x'"),
        (("--self-written=2", "--temperatures=0", "--samples-per-prompt=2"), "several samples of a prompt need"),
        (("--self-written=2", "--proposer=nobody"), "unknown proposer 'nobody'"),
        (("--self-written=2", "--speculative-config={"), "--speculative-config: not valid JSON"),
        (("--self-written=2", "--model=./nowhere"), "there is no model at './nowhere'"),
        (("--prompts=missing.jsonl",), "'--prompts': File 'missing.jsonl' does not exist"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, args: tuple[str, ...], message: str) -> None:
    code, out, err = data("-o", tmp_path / "out", "--quiet", *args)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_wrong_prompt_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "a"}\n{"question": "b"}', "utf-8")
    code, _, err = data("-o", tmp_path / "out", "--prompts", path)
    assert code == 2
    assert f"{path}, line 2: give exactly one of {', '.join(PROMPT_KEYS[:2])} and {PROMPT_KEYS[2]}" in err


def test_a_request_to_terminate_is_noted_once() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with stoppable() as stopped:
        assert not stopped()
        signal.raise_signal(signal.SIGTERM)
        assert stopped()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("interrupt", [signal.SIGINT, signal.SIGTERM])
def test_what_is_finished_is_kept(
    interrupt: signal.Signals, model: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = usual(model, prompts, tmp_path / "out")
    steps, step = iter(range(100)), Engine.step

    def interrupted(engine: Engine) -> list[RequestOutput]:
        if next(steps) == 11:
            signal.raise_signal(interrupt)
        return step(engine)

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "step", interrupted)
        code, out, err = data(*asked)
    assert code == 130, err
    assert "stopped; the same command goes on" in out
    kept = len(open_dataset(tmp_path / "out"))
    assert 0 < kept < 12
    assert data(*asked, "--quiet")[0] == 0
    assert len(open_dataset(tmp_path / "out")) > kept


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("20GB", 20 * 10**9), ("1.5 kb", 1500), ("2MiB", 2 << 20), ("7B", 7)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size("--x", text) == size


@pytest.mark.parametrize("text", ["", "-1", "GB", "1 QB", "1e9", "nan"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="--x must be a number of bytes"):
        parse_size("--x", text)
