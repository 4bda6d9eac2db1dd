"""`specdec train eagle3`: from data to a head that drafts, what it refuses, and that the same command goes on."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch

from tests.cli import fake
from tests.engine.test_draft_files import save
from tests.train.data.toys import TEMPLATE

TINY = ("--dtype=float32", "--kernels=reference", "--max-model-len=100", "--max-num-seqs=4", "--kv-cache-tokens=1024")
SHORT = ("--epochs=2", "--draft-vocab-size=20", "--step-tokens=200", "--unrolls=2", "--dtype=float32")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save(tmp_path_factory.mktemp("model"), layers=2)
    (folder / "chat_template.jinja").write_text(TEMPLATE.replace("<eos>", "\n"), "utf-8")
    return folder


@pytest.fixture(scope="module")
def data(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    prompts = folder / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps({"prompt": f"What is {i} and {i}?"}) for i in range(12)), "utf-8")
    made = ["--model", str(model), "--prompts", str(prompts), "-o", str(folder / "data"), "--max-tokens=12"]
    code, _, err = fake.run(["train", "data", *TINY, *made, "--temperatures=1", "--cache-states=1MB"], None)
    assert code == 0, err
    return folder / "data"


def eagle3(*args: object) -> tuple[int, str, str]:
    return fake.run(["train", "eagle3", *map(str, args)], None)


def test_a_head_is_trained_and_drafts(model: Path, data: Path, tmp_path: Path) -> None:
    asked = ["--model", model, "--data", data, "-o", tmp_path / "run", *SHORT]
    code, out, err = eagle3(*asked, "--stop-after=0.0001")
    assert code == 0, err
    assert "the time is over; the same command goes on" in out
    assert "the draft's 20 tokens are" in err
    code, out, err = eagle3(*asked, "--json", "--quiet", f"--threads={torch.get_num_threads()}")
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert told["ended"] == "finished"
    assert told["step"] == told["num_steps"] > 2
    provenance = json.loads((tmp_path / "run" / "last.json").read_text())
    assert f"--data {data}" in provenance["command"]
    assert len(provenance["target"]["sha256"]) == 64
    assert provenance["recipe"]["eagle3"]["unrolls"] == 2
    head = tmp_path / "run" / "head"
    drafting = [
        "--proposer=eagle3",
        f"--draft-model={head}",
        "--dtype=float32",
        "--kernels=reference",
        "--max-tokens=8",
    ]
    code, out, err = fake.run(
        ["generate", f"--model={model}", "--raw", "--kv-cache-tokens=512", *drafting, "abc"], None
    )
    assert code == 0, err
    code, out, err = eagle3(
        *["--model", model, "--data", data, "-o", tmp_path / "more", *SHORT, "--quiet"],
        *["--start-from", tmp_path / "run" / "best.pt"],
    )
    assert code == 0, err
    assert "trained to the end" in out
    assert_another_run_is_refused(model, data, tmp_path)
    assert_a_lost_head_is_written_again(model, data, tmp_path)
    assert_grown(model, data, tmp_path)


def assert_another_run_is_refused(model: Path, data: Path, folder: Path) -> None:
    """Where a run is there already: one that began otherwise, and one of something else."""
    asked = ["--model", model, "--data", data, "-o", folder / "more", "--quiet"]
    code, out, err = eagle3(*asked, *SHORT, "--start-from", folder / "more" / "best.pt")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "last.pt was begun with start_from 'weights of sha256 " in err
    code, out, err = fake.run(["train", "medusa", *map(str, asked)], None)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "last.pt is of a run of `specdec train eagle3`: give another output directory" in err


def assert_a_lost_head_is_written_again(model: Path, data: Path, folder: Path) -> None:
    asked = ["--model", model, "--data", data, "-o", folder / "run", *SHORT, "--quiet"]
    weights = folder / "run" / "head" / "model.safetensors"
    before = weights.read_bytes()
    shutil.rmtree(folder / "run" / "head")
    assert eagle3(*asked)[0] == 0
    assert weights.read_bytes() == before
    shutil.rmtree(folder / "run" / "head")
    (folder / "run" / "best.pt").rename(folder / "kept")
    code, out, err = eagle3(*asked)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "has lost head and best.pt: train into another directory" in err
    (folder / "kept").rename(folder / "run" / "best.pt")


def assert_grown(model: Path, data: Path, folder: Path) -> None:
    """A larger vocabulary than the checkpoint's adds tokens to it, and changes no row of those that were there."""
    code, _, err = eagle3(
        *["--model", model, "--data", data, "-o", folder / "grown", *SHORT, "--draft-vocab-size=26"],
        *["--learning-rate=0", "--start-from", folder / "run" / "best.pt"],
    )
    assert code == 0, err
    assert "the draft's 26 tokens are" in err
    before, after = (torch.load(folder / name / "best.pt")["weights"] for name in ("run", "grown"))
    rows = torch.isin(after["token_ids"], before["token_ids"])
    assert (len(rows), int(rows.sum())) == (26, 20)
    torch.testing.assert_close(after["lm_head"][rows], before["lm_head"])
    torch.testing.assert_close(after["fc"], before["fc"])


def test_several_data_sets_are_trained_on_together(model: Path, data: Path, tmp_path: Path) -> None:
    """Also where one has no states, which are computed anew."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps({"prompt": f"Why is {i} not {i}?"}) for i in range(5)), "utf-8")
    more = tmp_path / "more"
    made = ["--model", str(model), "--prompts", str(prompts), "-o", str(more), "--max-tokens=9"]
    code, _, err = fake.run(["train", "data", *TINY, *made, "--temperatures=1"], None)
    assert code == 0, err
    asked = ["--model", model, *SHORT, "--json", "--epochs=1"]
    counts = []
    for number, folders in enumerate(([data], [more], [data, more])):
        options = [option for folder in folders for option in ("--data", folder)]
        code, _, err = eagle3(*asked, *options, "-o", tmp_path / str(number))
        assert code == 0, err
        assert ("not all of its states were kept" in err) == (more in folders)
        told = json.loads((tmp_path / str(number) / "last.json").read_text())
        assert [each["directory"] for each in told["data"]["directories"]] == [folder.name for folder in folders]
        counts.append(told["progress"]["unique_answer_tokens"])
    assert counts[2] == counts[0] + counts[1]


def test_shards_that_are_missing_at_the_end_are_told(model: Path, data: Path, tmp_path: Path) -> None:
    shutil.copytree(data, tmp_path / "data")
    counts = json.loads((tmp_path / "data" / "data.json").read_text())
    counts["counts"]["samples"] += 7
    (tmp_path / "data" / "data.json").write_text(json.dumps(counts))
    asked = ["--model", model, *SHORT, "--epochs=1"]
    _, _, err = eagle3(*asked, "--data", tmp_path / "data", "-o", tmp_path / "run")
    assert re.search(r"holds 12 samples, and its data.json counts 19: are its last files missing\?", err)
    assert "missing" not in eagle3(*asked, "--data", data, "-o", tmp_path / "whole")[2]


def test_without_held_out_samples_the_figures_say_what_they_are_of(model: Path, data: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("run: {held_out_share: 0, evaluations: 1}")
    asked = ["--model", model, "--data", data, "-o", tmp_path / "run", *SHORT, "--config", recipe]
    code, out, err = eagle3(*asked, "--epochs=1")
    assert code == 0, err
    assert "no sample is held out; on some it was trained on, acceptance" in out


def test_what_is_refused(model: Path, data: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("optimiser: {learning_rat: 1e-3}")
    broken = tmp_path / "broken.yaml"
    broken.write_text("run: [")
    asked = ["--model", model, "--data", data, "-o", tmp_path / "out"]
    cases = {
        ("--config", recipe): "recipe.yaml: unknown key of optimiser 'learning_rat'; did you mean 'learning_rate'?",
        ("--unrolls=9",): "--unrolls: eagle3.unrolls is 9, and must be between 1 and 7",
        ("--dtype=int8",): "--dtype: run.dtype is 'int8', and must be one of auto, bfloat16, float32",
        ("--device=moon",): "the device must be auto, cpu, cuda or one of several GPUs, such as cuda:1; got 'moon'",
        ("--config", broken): "broken.yaml: not valid YAML",
        ("--stop-after=nan",): "'nan' is no number of minutes",
        ("--start-from", data / "data.json"): "data.json is no last.pt or best.pt of a training run, or a damaged one",
        ("-o", data): "data holds the data: give --output another directory",
    }
    for extra, message in cases.items():
        code, out, err = eagle3(*asked, *extra, "--quiet")
        assert (code, out) == (2, "")
        assert message in err
        assert err.count("\n") == 1
    code, _, err = eagle3("--model", model, "--data", tmp_path, "-o", tmp_path / "out")
    assert code == 2
    assert "holds no training data" in err


def test_data_of_another_model_is_refused(data: Path, tmp_path: Path) -> None:
    other = save(tmp_path, layers=3)
    code, _, err = eagle3("--model", other, "--data", data, "-o", tmp_path / "out", "--quiet")
    assert code == 2
    assert "whose weights are not those of" in err
