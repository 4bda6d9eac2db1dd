"""`specdec bench peers`: who takes part, what they are asked, and what is printed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from specdec.cli import bench_peers
from specdec.eval.peers.compare import Entry, Taken, Task
from specdec.eval.peers.contestants import Contestant
from tests.cli.fake import invoke
from tests.eval.peers.helpers import FAKE


class Run:
    """Stands in for the processes: everybody takes a second for the first token and two in all."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tasks: Path) -> None:
        (tasks / "one.jsonl").write_text('{"prompt": "a b c"}\n{"prompt": "d e"}\n')
        self.tasks = tasks
        self.contestants: list[Contestant] = []
        self.task: Task | None = None
        self.absent: set[str] = set()
        monkeypatch.setattr(bench_peers, "compare", self.compare)
        monkeypatch.setattr(bench_peers, "model_and_prompts", self.model_and_prompts)

    def model_and_prompts(self, values, config, tell):  # type: ignore[no-untyped-def]
        return Path("model.gguf"), ((1, 2), (3,))

    def compare(self, contestants, task, tell):  # type: ignore[no-untyped-def]
        self.contestants, self.task = contestants, task
        return [self._entry(each) for each in contestants]

    def _entry(self, contestant: Contestant) -> Entry:
        if contestant.label in self.absent:
            return Entry(contestant, faults=["does not take part: it is shy"])
        taken = {(1, 0, 0): Taken(((1,) * 16,), 1.0, 1, 2.0)}
        return Entry(contestant, f"lib {contestant.label}", "int3", 0.5, 10**6, taken)

    def __call__(self, *args: str) -> str:
        done = invoke("bench", "peers", "--tasks-dir", str(self.tasks), "--quiet", *args)
        assert (done.exit_code, done.stderr) == (0, "")
        return done.stdout


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    return Run(monkeypatch, tmp_path)


def test_specdec_runs_plainly_and_with_its_proposer_beside_the_peers(peers: Run) -> None:
    out = peers(
        *("--peer", "vllm=v", "--peer", "vllm:fast=v", "--peer", "llama-cpp=l", "--peer-model", "vllm=hf"),
        *("--peer-model", "vllm:fast=other", "--peer-option", 'vllm:fast/speculative_config={"a": "=/"}'),
        *("--peer-threads", "3", "--batch-sizes", "1,4", "--max-tokens", "16", "--rounds", "2", "--timeout", "9"),
    )
    assert [(each.label, each.model) for each in peers.contestants] == [
        ("specdec", "smollm2-135m"),
        ("specdec auto", "smollm2-135m"),
        ("vllm", "hf"),
        ("vllm:fast", "other"),
        ("llama-cpp", "model.gguf"),
    ]
    assert peers.contestants[3].options == {"speculative_config": '{"a": "=/"}'}
    assert json.loads(peers.contestants[0].options["config"])["speculative"] == []
    assert json.loads(peers.contestants[1].options["config"])["speculative"] == [
        {"method": "auto", "num_speculative_tokens": 16}
    ]
    assert peers.task == Task(((1, 2), (3,)), 16, (1, 4), num_rounds=2, num_threads=3, timeout_s=9)
    assert [line.split()[0] for line in out.splitlines()[2:7]] == [
        "specdec",
        "specdec",
        "vllm",
        "vllm:fast",
        "llama-cpp",
    ]


def test_who_is_absent_is_a_line_and_no_failure(peers: Run) -> None:
    peers.absent = {"vllm"}
    out = peers("--peer", "vllm=v", "--proposer", "none")
    assert out.splitlines()[-1] == "vllm does not take part: it is shy"
    result = json.loads(peers("--peer", "vllm=v", "--json"))
    assert result["faults"] == ["vllm does not take part: it is shy"]
    assert [each["label"] for each in result["standings"]] == ["specdec", "specdec auto"]


def test_without_specdec_there_is_nothing_to_compare_with(peers: Run) -> None:
    peers.absent = {"specdec"}
    done = invoke("bench", "peers", "--tasks-dir", str(peers.tasks))
    assert done.exit_code == 2
    assert done.error == "specdec does not take part: it is shy"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--peer", "vllm"), "--peer must be NAME=PATH; got 'vllm'"),
        (("--peer", "vlm=v"), "unknown peer 'vlm'; did you mean 'vllm'?"),
        (("--peer", "vllm=v", "--peer", "vllm=w"), "--peer has vllm twice; tell two of a kind apart as in vllm:2=PATH"),
        (("--peer", "vllm=v", "--peer-model", "llama-cpp=m"), "--peer-model is for llama-cpp, which no --peer names"),
        (("--peer", "vllm=v", "--peer-option", "vllm=m"), "--peer-option must be NAME/OPTION=TEXT"),
        (("--peer", "vllm=v", "--peer-option", "x/dtype=m"), "--peer-option is for x, which no --peer names"),
        (("--batch-sizes", "0"), "--batch-sizes must be at least 1; got 0"),
    ],
)
def test_bad_input_is_one_line(peers: Run, args: tuple[str, ...], said: str) -> None:
    done = invoke("bench", "peers", "--quiet", *args)
    assert done.exit_code == 2
    assert done.error.startswith(said)


@pytest.mark.model
@pytest.mark.slow
def test_real_processes_of_specdec_and_a_fake_peer_end_in_a_table(tmp_path: Path) -> None:
    (tmp_path / "one.jsonl").write_text('{"prompt": "Count from one to ten."}\n')
    done = invoke(
        *("bench", "peers", "--tasks-dir", str(tmp_path), "--quiet", "--max-tokens", "16", "--peer-threads", "1"),
        *("--proposer", "none", "--peer", f"{FAKE}={sys.executable}", "--peer-model", f"{FAKE}=none", "--json"),
    )
    assert done.exit_code == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["faults"] == []
    plain, fake = result["standings"]
    assert (plain["equal_answers"], fake["equal_answers"]) == (1, 0)
    assert fake["ratios"] == pytest.approx({"specdec": plain["decode_tokens_per_s"]})
    assert (fake["precision"], fake["decode_tokens_per_s"]) == ("int3", 1)
