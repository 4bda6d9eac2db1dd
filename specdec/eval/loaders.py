"""Files of prompts, by format. Whatever is wrong with one is a ValueError of one line that names the file and the line.

Benchmarks that others publish are read from a path of the user's; none is part of this project.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from specdec.config import unknown_name
from specdec.eval.prompts import EvalPrompt, Message

Row = Mapping[str, Any]

HUMANEVAL_STOP = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
"""The stop texts of the benchmark's paper (arXiv 2107.03374, section 2.1): the function's body ends before them."""

FILE_KEYS = ("id", "category", "prompt", "messages", "raw")


def load(loader: str, path: Path, task: str) -> list[EvalPrompt]:
    """The prompts of `path` in the format `loader`, for a task of the name `task`."""
    if loader not in LOADERS:
        raise ValueError(unknown_name("format of prompts", loader, LOADERS))
    prompts = []
    for origin, row in _rows(path):
        try:
            prompt = LOADERS[loader](row, task, origin)
        except ValueError as error:
            raise ValueError(f"{origin}: {error}") from None
        if prompt is not None:
            prompts.append(prompt)
    if not prompts:
        raise ValueError(f"{path} holds no prompts")
    _check_ids(prompts)
    return prompts


def _check_ids(prompts: list[EvalPrompt]) -> None:
    known: dict[str, str] = {}
    for prompt in prompts:
        if prompt.prompt_id in known:
            raise ValueError(f"{prompt.origin}: the id {prompt.prompt_id!r} is that of {known[prompt.prompt_id]} too")
        known[prompt.prompt_id] = prompt.origin


def _rows(path: Path) -> Iterator[tuple[str, Row]]:
    """(origin, object) of each line that is not blank; of each entry, where the file is one JSON list."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from None
    if content.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
        for number, entry in enumerate(_parse(content, str(path)), start=1):
            yield _object(entry, f"{path}, entry {number}")
        return
    for number, line in enumerate(content.splitlines(), start=1):
        if line.strip():
            origin = f"{path}, line {number}"
            yield _object(_parse(line, origin), origin)


def _parse(text: bytes, origin: str) -> Any:
    try:
        return json.loads(text.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ValueError(f"{origin}: not valid UTF-8 at byte {error.start + 1}") from None
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if error.lineno > 1 else ""
        raise ValueError(f"{origin}: not valid JSON: {error.msg} at {line}column {error.colno}") from None
    except RecursionError:
        raise ValueError(f"{origin}: not valid JSON: nested too deeply") from None


def _object(value: object, origin: str) -> tuple[str, Row]:
    if not isinstance(value, dict):
        raise ValueError(f"{origin}: expected a JSON object; got {value!r:.60}")
    return origin, value


def from_file(row: Row, task: str, origin: str) -> EvalPrompt:
    """This project's own: {"prompt": ...} or {"messages": [...]}, optionally "id", "category" and "raw"."""
    for key in row:
        if key not in FILE_KEYS:
            raise ValueError(unknown_name("key", key, FILE_KEYS))
    if ("prompt" in row) == ("messages" in row):
        raise ValueError("give exactly one of prompt and messages")
    raw = row.get("raw", False)
    if not isinstance(raw, bool):
        raise ValueError(f"raw must be true or false; got {raw!r:.60}")
    content = _string(row, "prompt") if "prompt" in row else _messages(row["messages"])
    if raw and not isinstance(content, str):
        raise ValueError("messages need the chat template, and raw leaves it out; give a prompt, or drop raw")
    category = _string(row, "category") if "category" in row else task
    prompt_id = _identity(row["id"]) if "id" in row else _number(origin)
    return EvalPrompt(task, category, prompt_id, content, raw=raw, origin=origin)


def from_spec_bench(row: Row, task: str, origin: str) -> EvalPrompt:
    """Spec-Bench's and MT-bench's question file: the first turn of each."""
    turns = row.get("turns")
    if not isinstance(turns, list) or not turns:
        raise ValueError(f"turns must be a list of at least one text; got {turns!r:.60}")
    text = _string({"the first turn": turns[0]}, "the first turn")
    return EvalPrompt(task, _string(row, "category"), _identity(row.get("question_id")), text, origin=origin)


def from_humaneval(row: Row, task: str, origin: str) -> EvalPrompt:
    """HumanEval: the beginning of a file, to be completed as it is, without a chat template, to the function's end."""
    prompt_id = _string(row, "task_id")
    return EvalPrompt(task, task, prompt_id, _string(row, "prompt"), raw=True, stop=HUMANEVAL_STOP, origin=origin)


def from_gsm8k(row: Row, task: str, origin: str) -> EvalPrompt:
    """GSM8K: the question."""
    return EvalPrompt(task, task, _number(origin), _string(row, "question"), origin=origin)


def from_sharegpt(row: Row, task: str, origin: str) -> EvalPrompt | None:
    """A ShareGPT conversation up to the first human turn; None where it does not begin with one, after any system's."""
    turns = row.get("conversations")
    if not isinstance(turns, list):
        raise ValueError(f"conversations must be a list; got {turns!r:.60}")
    messages: list[Message] = []
    for turn in turns:
        if not isinstance(turn, dict):
            raise ValueError(f"a turn must be an object; got {turn!r:.60}")
        role = {"system": "system", "human": "user", "user": "user"}.get(str(turn.get("from")))
        if role is None or not turn.get("value"):
            return None
        messages.append(Message(role, _string(turn, "value")))
        if role == "user":
            prompt_id = _identity(row["id"]) if "id" in row else _number(origin)
            return EvalPrompt(task, task, prompt_id, tuple(messages), origin=origin)
    return None


LOADERS: dict[str, Callable[[Row, str, str], EvalPrompt | None]] = {
    "file": from_file,
    "spec_bench": from_spec_bench,
    "humaneval": from_humaneval,
    "gsm8k": from_gsm8k,
    "sharegpt": from_sharegpt,
}
"""Format -> what makes a prompt of one row (None: the row is passed over), the task's name and the row's origin."""


def _string(row: Row, key: str) -> str:
    value = row.get(key)
    if not isinstance(value, str) or not value:
        raise ValueError(f"{key} must be a text that is not empty; got {value!r:.60}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{key} is not valid Unicode at position {error.start}") from None
    return value


def _messages(value: object) -> tuple[Message, ...]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"messages must be a list of at least one message; got {value!r:.60}")
    messages = []
    for number, message in enumerate(value, start=1):
        if not isinstance(message, dict):
            raise ValueError(
                f"message {number} must be an object with the strings role and content; got {message!r:.60}"
            )
        messages.append(Message(_string(message, "role"), _string(message, "content")))
    return tuple(messages)


def _identity(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise ValueError(f"an id must be a text or a number; got {value!r:.60}")
    return str(value)


def _number(origin: str) -> str:
    """The number of a line or entry, as the id of a prompt that has none."""
    return origin.rsplit(" ", 1)[-1]
