"""Every format of prompts, and what is said of a file that is not in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specdec.eval.loaders import HUMANEVAL_STOP, load
from specdec.eval.prompts import EvalPrompt, Message


def write(folder: Path, *rows: object) -> Path:
    path = folder / "p.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows), "utf-8")
    return path


def only(loader: str, path: Path) -> EvalPrompt:
    (prompt,) = load(loader, path, "t")
    return prompt


def test_the_projects_own_format(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {"id": "chat-01", "category": "chat", "prompt": "Hello"},
        "",
        {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]},
        {"prompt": "x", "raw": True, "id": 7},
    )
    first, second, third = load("file", path, "t")
    assert first == EvalPrompt("t", "chat", "chat-01", "Hello", origin=f"{path}, line 1")
    assert (second.category, second.prompt_id) == ("t", "3")
    assert second.content == (Message("system", "s"), Message("user", "u"))
    assert (third.raw, third.prompt_id) == (True, "7")


def test_spec_bench_asks_the_first_turn(tmp_path: Path) -> None:
    found = only("spec_bench", write(tmp_path, {"question_id": 81, "category": "writing", "turns": ["one", "two"]}))
    assert (found.category, found.prompt_id, found.content, found.raw) == ("writing", "81", "one", False)


def test_humaneval_is_completed_as_it_is_to_the_end_of_the_function(tmp_path: Path) -> None:
    row = {"task_id": "HumanEval/0", "prompt": "def f():\n", "entry_point": "f", "test": "..."}
    found = only("humaneval", write(tmp_path, row))
    assert (found.prompt_id, found.content, found.raw, found.stop) == (
        "HumanEval/0",
        "def f():\n",
        True,
        HUMANEVAL_STOP,
    )


def test_gsm8k_asks_the_question(tmp_path: Path) -> None:
    found = only("gsm8k", write(tmp_path, {"question": "1 + 1?", "answer": "2"}))
    assert (found.content, found.prompt_id) == ("1 + 1?", "1")


def test_sharegpt_is_a_list_or_lines_and_asks_the_first_human_turn(tmp_path: Path) -> None:
    rows = [
        {"id": "a", "conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "r"}]},
        {"id": "b", "conversations": [{"from": "gpt", "value": "r"}, {"from": "human", "value": "q"}]},
        {"id": "c", "conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": "q"}]},
        {"id": "d", "conversations": []},
        {"id": "e", "conversations": [{"from": "human", "value": ""}]},
    ]
    as_lines = load("sharegpt", write(tmp_path, *rows), "t")
    assert [prompt.prompt_id for prompt in as_lines] == ["a", "c"]
    assert as_lines[1].content == (Message("system", "s"), Message("user", "q"))
    as_list = load("sharegpt", write(tmp_path, json.dumps(rows, indent=1)), "t")
    assert [prompt.content for prompt in as_list] == [prompt.content for prompt in as_lines]
    assert as_list[1].origin.endswith("p.jsonl, entry 3")


@pytest.mark.parametrize(
    ("loader", "rows", "message"),
    [
        ("file", ['{"prompt": "a"}', "{"], "p.jsonl, line 2: not valid JSON: "),
        ("file", ["3"], "p.jsonl, line 1: expected a JSON object; got 3"),
        ("file", [{"prompt": "a", "messages": []}], "p.jsonl, line 1: give exactly one of prompt and messages"),
        ("file", [{"id": "x"}], "line 1: give exactly one of prompt and messages"),
        ("file", [{"promt": "a"}], "line 1: unknown key 'promt'; did you mean 'prompt'?"),
        ("file", [{"prompt": ""}], "line 1: prompt must be a text that is not empty; got ''"),
        ("file", [{"prompt": "a", "raw": 1}], "line 1: raw must be true or false; got 1"),
        ("file", [{"prompt": "a", "id": None}], "line 1: an id must be a text or a number; got None"),
        ("file", ['{"prompt": "\\ud800"}'], "line 1: prompt is not valid Unicode at position 0"),
        ("file", [{"messages": [{"role": "user"}]}], "line 1: content must be a text that is not empty; got None"),
        ("file", [{"messages": ["hi"]}], "line 1: message 1 must be an object with the strings role and content"),
        ("file", [{"messages": []}], "line 1: messages must be a list of at least one message; got []"),
        ("file", [{"messages": [{"role": "user", "content": "a"}], "raw": True}], "line 1: messages need the chat"),
        ("file", [{"prompt": "a", "id": 1}, {"prompt": "b", "id": "1"}], "line 2: the id '1' is that of "),
        ("file", [], "p.jsonl holds no prompts"),
        ("file", ["[" * 100_000], "p.jsonl: not valid JSON: nested too deeply"),
        ("spec_bench", [{"question_id": 1, "category": "a"}], "line 1: turns must be a list of at least one text"),
        ("spec_bench", [{"question_id": 1, "category": "a", "turns": [1]}], "line 1: the first turn must be a text"),
        ("spec_bench", [{"category": "a", "turns": ["x"]}], "line 1: an id must be a text or a number; got None"),
        ("humaneval", [{"prompt": "a"}], "line 1: task_id must be a text that is not empty; got None"),
        ("gsm8k", [{"answer": "a"}], "line 1: question must be a text that is not empty; got None"),
        ("sharegpt", [{"items": []}], "line 1: conversations must be a list; got None"),
        ("sharegpt", [{"conversations": ["a"]}], "line 1: a turn must be an object; got 'a'"),
        ("sharegpt", ["[1]"], "p.jsonl, entry 1: expected a JSON object; got 1"),
        ("sharegp", [], "unknown format of prompts 'sharegp'; did you mean 'sharegpt'?"),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path: Path, loader: str, rows: list[object], message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        load(loader, write(tmp_path, *rows), "t")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_text_or_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    with pytest.raises(ValueError, match=r"p\.jsonl: No such file"):
        load("file", path, "t")
    path.write_bytes(b'{"prompt": "a"}\n{"prompt": "\xff"}')
    with pytest.raises(ValueError, match=r"p\.jsonl, line 2: not valid UTF-8 at byte 13"):
        load("file", path, "t")
