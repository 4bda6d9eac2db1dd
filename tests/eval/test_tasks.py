"""Tasks by name and by path."""

from __future__ import annotations

import json
import sysconfig
from pathlib import Path

import pytest

from specdec.eval import tasks
from specdec.eval.tasks import INSTALLED, load_tasks, tasks_dir


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("chat", "code"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"id": f"{name}-01", "category": name, "prompt": "x"}))
    return tmp_path


def test_tasks_come_in_the_order_they_are_named_and_once(folder: Path) -> None:
    assert [prompt.task for prompt in load_tasks(["code", "chat", "code"], folder)] == ["code", "chat"]
    assert [prompt.prompt_id for prompt in load_tasks(["all"], folder)] == ["chat-01", "code-01"]


def test_a_path_is_a_task_named_after_format_and_file(folder: Path) -> None:
    (prompt,) = load_tasks([f"file:{folder / 'chat.jsonl'}"], folder)
    assert prompt.name == "file:chat/chat-01"


def test_two_files_of_one_name_are_two_tasks_of_one_name(folder: Path) -> None:
    other = folder / "other"
    other.mkdir()
    (other / "chat.jsonl").write_text('{"prompt": "y"}')
    with pytest.raises(ValueError, match="two tasks have the name 'file:chat'"):
        load_tasks([f"file:{folder / 'chat.jsonl'}", f"file:{other / 'chat.jsonl'}"], folder)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("chad", "unknown task 'chad'; did you mean 'chat'"),
        ("spec_bench", "did you mean 'spec_bench:PATH'"),
        ("file:", "file: needs the path of a file, as in file:prompts.jsonl"),
        ("mt_bench:x", "unknown format of prompts 'mt_bench'"),
    ],
)
def test_an_unknown_task_is_refused_with_the_nearest(folder: Path, name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_tasks([name], folder)


def test_an_empty_folder_is_told_from_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="no task in it"):
        load_tasks(["all"], tmp_path)
    with pytest.raises(ValueError, match="no such folder"):
        load_tasks(["all"], tmp_path / "nowhere")
    monkeypatch.setattr(tasks, "tasks_dir", lambda: None)
    with pytest.raises(ValueError, match="not part of this installation; give --tasks-dir"):
        load_tasks(["all"])


def test_the_checkouts_tasks_come_before_the_installations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "specdec" / "eval" / "tasks.py"
    monkeypatch.setattr(tasks, "__file__", str(module))
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path / name))
    assert tasks_dir() is None
    installed, checkout = tmp_path / "data" / INSTALLED, tmp_path / "evals" / "tasks"
    installed.mkdir(parents=True)
    assert tasks_dir() == installed
    checkout.mkdir(parents=True)
    assert tasks_dir() == checkout
