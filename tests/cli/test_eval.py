"""`specdec eval acceptance`: what is asked of the engine, what is written where, and how it ends."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from specdec.config import EngineConfig
from specdec.engine import Engine
from specdec.eval.baseline import read, write
from specdec.eval.results import Estimate, Result, from_json
from specdec.proposers.registry import build_proposer
from tests.cli.fake import run
from tests.eval.helpers import toy_engine, toy_model
from tests.toys import BYTE_VOCABULARY, RandomProposer, ScriptedModel, random_script

TASKS = {
    "chat": [{"id": f"chat-{n}", "category": "chat", "prompt": f"chat {n}: abcabcabc"} for n in range(3)],
    "code": [{"id": f"code-{n}", "category": "code", "prompt": f"code {n}: xyxyxyxy"} for n in range(3)],
}
QUICK = ("--max-tokens=16", "--timing-prompts=2", "--batch-sizes=1,2", "--limit=2")


@pytest.fixture(autouse=True)
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the tasks, in a folder to be in."""
    folder = tmp_path / "tasks"
    folder.mkdir()
    for name, rows in TASKS.items():
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    monkeypatch.chdir(tmp_path)
    return folder


class Built:
    """Builds toy engines for configurations, and keeps what it was asked."""

    def __init__(self, make: Callable[[EngineConfig], Engine] | None = None) -> None:
        self.make = make or self._toy
        self.config = EngineConfig()
        self.engine: Engine | None = None

    def __call__(self, config: EngineConfig, progress: object) -> Engine:
        self.config = config
        self.engine = self.make(config)
        return self.engine

    @staticmethod
    def _toy(config: EngineConfig) -> Engine:
        """The drafting model's place is taken by noise."""
        model = toy_model()
        first, *others = config.speculative
        proposers = {entry.method: build_proposer(entry) for entry in others if entry.method != "draft"}
        if any(entry.method == "draft" for entry in config.speculative):
            proposers["draft"] = RandomProposer(model.vocab_size)
        return toy_engine(
            model,
            proposer=first.method,
            k=max(entry.num_speculative_tokens for entry in config.speculative),
            proposers=proposers,
            verifier=config.verifier,
        )


def evaluate(*args: str, built: Built | None = None, code: int = 0) -> tuple[str, str, Built]:
    """Run the command on toy engines; standard output and error."""
    built = built or Built()
    found, out, err = run(["eval", "acceptance", "--tasks-dir=tasks", *args], built)
    assert found == code, err
    return out, err, built


def refused(*args: str) -> str:
    """The one line that refuses `args`, before any engine is built."""
    _, err, built = evaluate(*args, code=2)
    assert built.engine is None
    (line,) = err.splitlines()
    return line.removeprefix("specdec: error: ")


def result(*args: str, code: int = 0, built: Built | None = None) -> Result:
    out, _, _ = evaluate("--json=-", *QUICK, *args, code=code, built=built)
    return from_json(json.loads(out))


def test_by_default_a_table_comes_out_and_progress_goes_to_standard_error() -> None:
    out, err, built = evaluate(*QUICK)
    assert out.startswith("scripted, float64: 4 prompts of chat, code, at most 16 tokens each\n")
    assert "Acceptance" in out
    assert "Speed" in out
    assert re.search(r"specdec: +\d+ % acceptance, plain, T=0: \d of 4 answers, \d+ tok/s", err)
    assert [(entry.method, entry.num_speculative_tokens) for entry in built.config.speculative] == [("ngram", 4)]


def test_quiet_says_nothing_but_the_result() -> None:
    _, err, _ = evaluate(*QUICK, "--quiet")
    assert err == ""


def test_lists_make_every_combination_in_one_engine() -> None:
    built = Built()
    found = result("--proposer=ngram,suffix", "-k", "2,4", "--temperature=0,1", "--task=code", built=built)
    variants = [(p, k) for p in ("ngram", "suffix") for k in (2, 4)]
    assert [(r.temperature, r.proposer, r.num_speculative_tokens) for r in found.runs] == [
        (t, *variant) for t in (0.0, 1.0) for variant in variants
    ]
    assert [(e.method, e.num_speculative_tokens) for e in built.config.speculative] == [("ngram", 4), ("suffix", 4)]
    assert found.settings.tasks == ("code",)
    assert found.settings.limit == 2


def test_auto_is_measured_beside_others_in_one_engine() -> None:
    built = Built()
    found = result("--proposer=auto,ngram", "--task=code", built=built)
    assert [(r.proposer, r.num_speculative_tokens) for r in found.runs] == [("auto", 16), ("ngram", 4)]
    assert [(e.method, e.num_speculative_tokens) for e in built.config.speculative] == [("auto", 16), ("ngram", 4)]
    assert all(run.exactness.num_equal == run.exactness.num_prompts > 0 for run in found.runs)


def test_an_oracle_compares_auto_with_the_best_choice_among_its_members() -> None:
    args = (
        "--proposer=auto,ngram",
        "--oracle",
        "--concurrency=1",
        "--timing-prompts=0",
        "--max-tokens=16",
        "--limit=1",
    )
    out, err, _ = evaluate(*args, "--json=r.json", "--html=r.html")
    found = from_json(json.loads(Path("r.json").read_text()))
    assert found.settings.concurrency == 1
    assert [(o.proposer, o.num_speculative_tokens) for o in found.oracles if o.task is None] == [
        ("auto", 16),
        (None, 4),
    ]
    ngram = found.oracles[-3].members[0]
    assert ngram.alone_tokens_per_step == ngram.measured_tokens_per_step == found.runs[1].overall.tokens_per_step
    assert "auto k=16 reaches " in out
    assert "oracle, ngram k=16, suffix k=16, ngram k=4: " in err
    assert '<section id="oracle">' in Path("r.html").read_text("utf-8")


def test_without_being_asked_no_oracle_is_made() -> None:
    found = result()
    assert found.oracles == ()
    assert found.settings.concurrency == 16


def test_so_many_prompts_at_once_as_a_step_holds() -> None:
    assert (
        result("--proposer=draft", "--draft-layers=2", "--tree=breadth", "--tree-nodes=64").settings.concurrency == 16
    )
    Path("c.yaml").write_text("model: m\nmax_num_batched_tokens: 64\nmax_num_seqs: 8\n")
    args = ("--config=c.yaml", "--proposer=ngram", "-k", "15", "--batch-sizes=1")
    assert result(*args).settings.concurrency == 4
    assert refused(*args, "--concurrency=5").startswith("--concurrency 5 with drafts of 15 tokens is more than ")
    assert refused(*args, "--concurrency=9").startswith("--concurrency 9 is more than the engine's max_num_seqs (8)")


def test_the_command_is_recorded_as_it_would_be_typed() -> None:
    found = result("--task", "chat", "-k", "2")
    assert found.origin.command == (
        "specdec eval acceptance --num-speculative-tokens 2 --task chat --tasks-dir tasks --limit 2 --max-tokens 16 "
        "--timing-prompts 2 --batch-sizes 1,2"
    )


def test_a_limit_of_nought_takes_all_and_no_timing_prompts_no_times() -> None:
    out, _, _ = evaluate("--json=-", "--max-tokens=8", "--timing-prompts=0", "--limit=0")
    found = from_json(json.loads(out))
    assert found.runs[0].overall.num_prompts == 6
    assert (found.settings.limit, found.settings.batch_sizes, found.curve) == (None, (), None)


def test_json_goes_to_a_file_beside_the_table(tmp_path: Path) -> None:
    out, _, _ = evaluate(*QUICK, "--json=r.json")
    assert out.startswith("scripted")
    assert from_json(json.loads((tmp_path / "r.json").read_text())).runs[0].proposer == "ngram"


def test_a_report_is_one_file(tmp_path: Path) -> None:
    evaluate(*QUICK, "--html=r.html")
    assert "</html>" in (tmp_path / "r.html").read_text("utf-8")


def test_draft_options_and_configurations_are_those_of_generate(tmp_path: Path) -> None:
    _, _, built = evaluate(*QUICK, "--draft-layers=3")
    assert [(e.method, dict(e.settings)) for e in built.config.speculative] == [("draft", {"num_draft_layers": 3})]
    _, _, built = evaluate(*QUICK, "--proposer=ngram,draft", "--draft-model=m")
    assert [(e.method, dict(e.settings)) for e in built.config.speculative] == [
        ("ngram", {}),
        ("draft", {"model": "m"}),
    ]
    entries = '[{"method": "suffix", "num_speculative_tokens": 2}, {"method": "ngram", "num_speculative_tokens": 3}]'
    (tmp_path / "c.yaml").write_text(f"model: m\nverifier: coupled\nspeculative_config: {entries}\n")
    for option in ("--config=c.yaml", f"--speculative-config={entries}"):
        out, _, built = evaluate(*QUICK, option, "--json=-", "--temperature=0.5")
        found = from_json(json.loads(out))
        assert [(r.proposer, r.num_speculative_tokens) for r in found.runs] == [("suffix", 2), ("ngram", 3)]
    assert built.config.verifier == "auto"


def test_auto_is_measured_with_all_that_is_listed_for_it_to_choose_from() -> None:
    entries = '[{"method": "auto"}, {"method": "suffix", "num_speculative_tokens": 3}]'
    for named, methods in (("auto", ["auto", "suffix"]), ("suffix", ["suffix"])):
        out, _, built = evaluate(*QUICK, f"--proposer={named}", f"--speculative-config={entries}", "--json=-")
        assert [entry.method for entry in built.config.speculative] == methods
        assert {run.proposer for run in from_json(json.loads(out)).runs} == {named}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--task=chad"], "unknown task 'chad'; did you mean 'chat'? "),
        (["--task=chat,"], "--task has an empty entry; got 'chat,'"),
        (["--task=file:none.jsonl"], "none.jsonl: No such file or directory"),
        (["--proposer=ngrm"], "unknown proposer 'ngrm'; did you mean 'ngram'?"),
        (
            ["--proposer=none"],
            "there is no proposer to measure; name some with --proposer, as in --proposer ngram,suffix",
        ),
        (["-k", "2,x"], "--num-speculative-tokens must be numbers with commas between them; got '2,x'"),
        (["-k", "0"], "--num-speculative-tokens 0 is plain decoding, which is always measured; leave it out"),
        (["-k", "99"], "num_speculative_tokens must be an integer, between 0 and 32; got 99"),
        (["--temperature=hot"], "--temperature must be numbers with commas between them; got 'hot'"),
        (["--temperature=nan"], "temperature must be a number at least 0; got nan"),
        (["--temperature=-1"], "temperature must be a number at least 0; got -1.0"),
        (["--verifier=greedy", "--temperature=0,1"], "the verifier 'greedy' needs temperature 0, got 1; "),
        (["--batch-sizes=0"], "--batch-sizes must be at least 1; got 0"),
        (["--batch-sizes=100"], "--batch-sizes 100 is more than the engine's max_num_seqs (64)"),
        (["--batch-sizes=64", "-k", "32"], "--batch-sizes 64 with drafts of 32 tokens is more than the engine's "),
        (["--concurrency=0"], "--concurrency must be at least 1; got 0"),
        (["--oracle", "--temperature=0.7"], "--oracle needs temperature 0 among those of --temperature; got 0.7"),
        (["--limit=-1"], "--limit must be at least 0; got -1"),
        (["--max-tokens=2"], "--max-tokens must be at least 3; got 2"),
        (["--timing-prompts=-1"], "--timing-prompts must be at least 0; got -1"),
        (
            ["--proposer=ngram", "--draft-layers=2"],
            "--draft-layers is of draft, which --proposer does not name",
        ),
        (["--proposer=ngram,draft", "--tree=breadth"], "the proposer 'draft' needs one of model "),
        (["--proposer=ngram", "--tree=breadth"], "--tree is of draft and eagle and eagle3 and medusa and recycling, "),
        (
            ["--batch-sizes=32", "--draft-layers=2", "--tree=breadth", "--tree-nodes=64"],
            "--batch-sizes 32 with drafts ",
        ),
        (["--html=-"], "--html needs a file; only --json can be - for standard output"),
        (["--json=x", "--html=x"], "--json and --html name the same file, x; give each its own"),
        (["--json=no/such/r.json"], "--json: there is no folder no/such"),
        (["--html=no/r.html"], "--html: there is no folder no"),
        (["--proposer=suffix", '--speculative-config={"method": "ngram"}'], "--proposer suffix contradicts --spec"),
        (["-k", "2,3", '--speculative-config={"method": "ngram", "num_speculative_tokens": 2}'], "--num-speculative-t"),
    ],
)
def test_bad_input_is_refused_in_one_line_before_any_model_work(args: list[str], message: str) -> None:
    assert refused(*args).startswith(message)


def test_a_bad_task_file_is_named_with_its_line(tasks: Path) -> None:
    (tasks / "chat.jsonl").write_text('{"prompt": "a"}\n{"prompt": 3}\n')
    assert refused("--task=chat") == "tasks/chat.jsonl, line 2: prompt must be a text that is not empty; got 3"


def test_a_configuration_without_proposers_has_nothing_to_measure(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("model: m\n")
    assert refused("--config=c.yaml").startswith("there is no proposer to measure")


def test_prompts_that_are_too_long_are_counted(tasks: Path) -> None:
    (tasks / "long.jsonl").write_text(json.dumps({"id": "x", "prompt": "x" * 250}) + '\n{"prompt": "short"}')
    _, err, _ = evaluate(*QUICK, "--task=long")
    assert "specdec: note: 1 prompts are too long for 16 tokens after them; left out" in err


def noisy(config: EngineConfig) -> Engine:
    model = ScriptedModel(random_script(BYTE_VOCABULARY), BYTE_VOCABULARY)
    return toy_engine(model, proposer="ngram", proposers={"ngram": RandomProposer(BYTE_VOCABULARY)})


def test_a_proposer_that_is_never_right_is_an_error_after_everything_is_written(tmp_path: Path) -> None:
    out, err, _ = evaluate("--max-tokens=40", "--timing-prompts=0", "--json=r.json", built=Built(noisy), code=1)
    assert "Acceptance" in out
    alarm = from_json(json.loads((tmp_path / "r.json").read_text())).runs[0].alarm
    assert alarm is not None
    assert f"specdec: error: {alarm}" in err.splitlines()
    assert "proposer ngram: the first drafted token was accepted in 0 of " in alarm


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a file that is always full")
def test_a_file_that_cannot_be_written_is_named_and_costs_no_other(tmp_path: Path) -> None:
    args = ("--max-tokens=40", "--timing-prompts=0", "--json=/dev/full", "--html=r.html")
    out, err, _ = evaluate(*args, built=Built(noisy), code=1)
    assert "Acceptance" in out
    assert "<html" in (tmp_path / "r.html").read_text()
    alarm, unwritten = (line for line in err.splitlines() if line.startswith("specdec: error: "))
    assert "proposer ngram: the first drafted token was accepted in 0 of " in alarm
    assert unwritten == f"specdec: error: cannot write /dev/full: {os.strerror(errno.ENOSPC)}"


def test_a_baseline_is_recorded_and_bounds_the_next_run_from_below(tmp_path: Path) -> None:
    evaluate(*QUICK, "--record-baseline=b.json")
    path = tmp_path / "b.json"
    evaluate(*QUICK, "--baseline=b.json")
    recorded = read(path)
    assert [entry.task for entry in recorded.entries] == ["chat", "code"]
    better = tuple(replace(entry, mean_acceptance_length=Estimate(1.0)) for entry in recorded.entries)
    write(replace(recorded, entries=better), path)
    evaluate(*QUICK, "--baseline=b.json")
    worse = tuple(replace(entry, mean_acceptance_length=Estimate(5.0)) for entry in recorded.entries)
    write(replace(recorded, entries=worse), path)
    out, err, _ = evaluate(*QUICK, "--baseline=b.json", "--json=-", code=1)
    regressions = from_json(json.loads(out)).regressions
    assert len(regressions) == 2
    assert f"specdec: error: below the baseline: {regressions[0]}" in err.splitlines()


def test_a_baseline_of_something_else_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    evaluate(*QUICK, "--record-baseline=b.json")
    _, err, built = evaluate(*QUICK, "--baseline=b.json", "--seed=1", code=2)
    assert "the baseline was recorded with seed 0, and this run has 1" in err
    _, err, _ = evaluate(*QUICK, "--baseline=b.json", "--concurrency=1", code=2)
    assert "the baseline was recorded with concurrency 16, and this run has 1" in err
    unknown = json.loads((tmp_path / "b.json").read_text())
    del unknown["conditions"]["concurrency"]
    (tmp_path / "b.json").write_text(json.dumps(unknown))
    evaluate(*QUICK, "--baseline=b.json", "--concurrency=1")
    assert built.engine is not None
    assert built.engine.metrics().count("specdec:generation_tokens_total") > 0
    (tmp_path / "b.json").write_text("{}")
    assert refused("--baseline=b.json") == "b.json: not a baseline that --record-baseline wrote"


class Pressed:
    """A toy engine on which Ctrl-C is pressed at a step."""

    def __init__(self, at: int) -> None:
        self.at = at

    def __call__(self, config: EngineConfig) -> Engine:
        engine = Built._toy(config)
        step, steps = engine.step, iter(range(1, 10_000))

        def pressing() -> object:
            if next(steps) == self.at:
                os.kill(os.getpid(), signal.SIGINT)
            return step()

        engine.step = pressing  # type: ignore[method-assign, assignment]
        return engine


@pytest.mark.parametrize("at", [3, 30, 45])
def test_ctrl_c_keeps_what_was_measured(tmp_path: Path, at: int) -> None:
    args = (*QUICK, "--json=r.json", "--record-baseline=b.json")
    out, err, built = evaluate(*args, built=Built(Pressed(at)), code=130)
    assert "interrupted: what follows is what was measured by then" in out
    assert err.splitlines()[-1].startswith("specdec: interrupted; what was measured by then is above")
    found = from_json(json.loads((tmp_path / "r.json").read_text()))
    assert found.interrupted
    assert len(found.runs) == (at > 20)
    assert not any(each.complete for each in found.runs)
    assert not (tmp_path / "b.json").exists()
    assert built.engine is not None
    assert not built.engine.has_unfinished_requests()


@pytest.mark.model
@pytest.mark.slow
def test_the_default_model_is_measured_and_its_greedy_answers_are_plain_decodings(tmp_path: Path) -> None:
    rows = [
        {"id": "1", "category": "a", "prompt": "Repeat: one two three four five six seven eight. Repeat it again."},
        {"id": "2", "category": "b", "prompt": "Why is the sky blue?"},
    ]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, rows)))
    options = ["--task=file:p.jsonl", "--max-tokens=16", "--timing-prompts=1", "--batch-sizes=1", "--json=-"]
    command = [sys.executable, "-m", "specdec", "eval", "acceptance", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = from_json(json.loads(done.stdout))
    (only,) = found.runs
    assert (found.settings.model, found.settings.dtype, only.proposer) == ("smollm2-135m", "float32", "ngram")
    assert (only.exactness.checked, only.exactness.num_equal) == (True, 2)
    assert only.prediction is not None
    assert only.prediction.measured_speedup > 0
    assert found.curve is not None
    assert found.curve.points[-1].ratio > 1
    assert sum(len(sample.pieces) for sample in only.samples) == only.overall.num_tokens
    assert all("".join(piece.text for piece in sample.pieces).strip() for sample in only.samples)
