"""`specdec eval quality`: what is read, what is written where, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from specdec.config import EngineConfig
from specdec.engine import Engine
from tests.cli.fake import run
from tests.eval.helpers import toy_engine
from tests.toys import BYTE_VOCABULARY, ScriptedModel, random_script

ALL = ["float32", "float32/bfloat16", "float32/int8", "bfloat16", "bfloat16/int8", "int8", "int4"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to be in, with a model that is no .gguf file, a task and a text."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "one.jsonl").write_text('{"prompt": "abcabcabc"}\n{"prompt": "defdef"}\n{"prompt": "ghi"}\n')
    (tmp_path / "text.txt").write_text("to and fro and to and fro")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def build(config: EngineConfig, progress: object) -> Engine:
    weights = config.dtype if config.quantization == "none" else config.quantization
    if weights == "float16":
        raise ValueError("there are no weights in float16")
    base, noise = random_script(BYTE_VOCABULARY), random_script(BYTE_VOCABULARY, salt=1, spread=weights == "int4")
    model = ScriptedModel(lambda prefix: np.asarray(base(prefix)) + np.asarray(noise(prefix)), BYTE_VOCABULARY)
    return toy_engine(model, proposer="none", max_num_batched_tokens=config.max_num_batched_tokens)


def evaluate(*args: str) -> tuple[int, str, str]:
    return run(["eval", "quality", "--model=./model", "--context=20", "--quiet", *args], build)


def test_a_line_for_each_precision_of_a_model_without_codes() -> None:
    code, out, err = evaluate("--tasks-dir=tasks")
    assert (code, err) == (0, "")
    assert out.splitlines()[0].startswith("./model: 13 positions in 2 pieces of at most 20 tokens")
    assert len(out.splitlines()[5:]) == len(ALL)


def test_json_has_every_figure(folder: Path) -> None:
    code, out, _ = evaluate("--text=text.txt", "--text=text.txt", "--precision=float32,int4", "--json=-")
    result = json.loads(out)
    assert code == 0
    assert (result["num_pieces"], result["num_positions"], result["interrupted"]) == (4, 46, False)
    assert [quality["precision"] for quality in result["qualities"]] == ["float32", "int4"]
    assert result["qualities"][0]["mean_kl"]["value"] == 0
    assert result["qualities"][1]["mean_kl"]["value"] > 0.01
    code, out, _ = evaluate("--text=text.txt", "--text=text.txt", "--precision=float32,int4", "--json=out.json")
    assert json.loads((folder / "out.json").read_text()) == result
    assert "perplexity" in out


def test_a_precision_that_cannot_be_had_is_said_and_the_rest_is_shown() -> None:
    code, out, err = evaluate("--text=text.txt", "--precision=float16,int4", "--max-positions=5")
    assert code == 1
    assert err == "specdec: error: float16: there are no weights in float16\n"
    assert [line.split()[0] for line in out.splitlines()[5:]] == ["int4"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--precision=int3",), "unknown precision 'int3'"),
        (("--precision=gguf", "--text=text.txt"), "the precision 'gguf' keeps the codes of a .gguf file"),
        (("--text=text.txt", "--task=one"), "--text and --task contradict each other"),
        (("--task=nosuch",), "unknown task 'nosuch'"),
        (("--text=text.txt", "--json=nosuch/out.json"), "--json: there is no folder nosuch"),
        (("--text=empty.txt",), "empty.txt: there is no text in it"),
        (("--model=nosuch", "--text=text.txt"), "unknown model 'nosuch'"),
    ],
)
def test_bad_input_is_one_line(args: tuple[str, ...], said: str, folder: Path) -> None:
    (folder / "empty.txt").write_text("\n")
    code, _, err = evaluate(*args)
    assert code == 2
    assert err.startswith(f"specdec: error: {said}")
    assert len(err.splitlines()) == 1
