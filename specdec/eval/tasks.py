"""Tasks by name: the built-in ones, a file for each in evals/tasks, and `FORMAT:PATH` for files of one's own."""

from __future__ import annotations

import sysconfig
from collections.abc import Sequence
from pathlib import Path

from specdec.config import unknown_name
from specdec.eval.loaders import LOADERS, load
from specdec.eval.prompts import EvalPrompt

ALL = "all"
"""Every built-in task."""

INSTALLED = Path("share", "specdec", "evals", "tasks")
"""Where an installation has the built-in tasks, below its data folder."""


def tasks_dir() -> Path | None:
    """The folder of the built-in tasks: the checkout's, else the installation's; None where there is neither."""
    checkout = Path(__file__).parents[2] / "evals" / "tasks"
    installed = Path(sysconfig.get_path("data")) / INSTALLED
    return next((folder for folder in (checkout, installed) if folder.is_dir()), None)


def load_tasks(names: Sequence[str], folder: Path | None = None) -> list[EvalPrompt]:
    """The prompts of the named tasks, in order; `folder` stands in for `tasks_dir()`. ValueError in one line."""
    prompts: list[EvalPrompt] = []
    for name in dict.fromkeys(_expand(names, folder)):
        loader, colon, path = name.partition(":")
        own = _from_path(loader, path) if colon else load("file", _folder(folder) / f"{name}.jsonl", name)
        if any(prompt.task == own[0].task for prompt in prompts):
            raise ValueError(f"two tasks have the name {own[0].task!r}; rename one of the files")
        prompts += own
    return prompts


def _from_path(loader: str, path: str) -> list[EvalPrompt]:
    """A task named after the format and the file, which says nothing of the machine it is on."""
    if not path:
        raise ValueError(f"{loader}: needs the path of a file, as in {loader}:prompts.jsonl")
    return load(loader, Path(path), f"{loader}:{Path(path).stem}")


def _expand(names: Sequence[str], folder: Path | None) -> list[str]:
    expanded: list[str] = []
    for name in names:
        if name == ALL:
            expanded += _known(_folder(folder))
        elif ":" in name or name in _known(_folder(folder)):
            expanded.append(name)
        else:
            formats = [f"{loader}:PATH" for loader in LOADERS]
            raise ValueError(unknown_name("task", name, [ALL, *_known(_folder(folder)), *formats]))
    return expanded


def _folder(given: Path | None) -> Path:
    folder = given if given is not None else tasks_dir()
    if folder is None:
        raise ValueError("the built-in tasks are not part of this installation; give --tasks-dir, or FORMAT:PATH tasks")
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder of tasks")
    if not _known(folder):
        raise ValueError(f"{folder}: no task in it (a task is a file NAME.jsonl)")
    return folder


def _known(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.jsonl"))
