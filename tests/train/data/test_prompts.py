"""Prompts from files, and what is said of files that are wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specdec.train.data.prompts import Message, Prompt, read_prompts, self_written, texts_of


def written(folder: Path, *rows: object, name: str = "prompts.jsonl") -> Path:
    path = folder / name
    path.write_text("\n".join(json.dumps(row) for row in rows), "utf-8")
    return path


def test_the_three_kinds_of_rows(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        {"prompt": "Why?", "source": "quiz", "other": 1},
        {"turns": ["First.", "Second.", "Third."]},
        {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]},
        {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]},
    )
    quiz, talk, system, answered = read_prompts(path).prompts
    assert quiz == Prompt("quiz", (Message("user", "Why?"),))
    assert talk == Prompt("prompts.jsonl", (Message("user", "First."),), ("Second.", "Third."))
    assert talk.text == "First.\nSecond.\nThird."
    assert [message.role for message in system.opening] == ["system", "user"]
    assert system.text == "Hi"
    assert answered.opening == (Message("user", "Hi"),)


def test_text_files_and_lists(tmp_path: Path) -> None:
    text = tmp_path / "some.txt"
    text.write_text("One?\n\n  Two? \n", "utf-8")
    assert [prompt.text for prompt in read_prompts(text, raw=True).prompts] == ["One?", "Two?"]
    assert all(prompt.raw for prompt in read_prompts(text, raw=True).prompts)
    path = tmp_path / "list.json"
    path.write_text('[{"prompt": "a\\nb"}]', "utf-8")
    assert read_prompts(path).prompts[0].text == "a\nb"


def test_a_line_may_hold_separators_of_lines_that_json_allows(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "a\u2028b"}\n{"prompt": "c"}', "utf-8")
    assert len(read_prompts(path).prompts) == 2


def test_keys_go_by_words_and_place() -> None:
    def prompt(text: str, *more: str, raw: bool = False) -> Prompt:
        return Prompt("s", (Message("user", text),), more, raw)

    assert prompt("What  now?").key == prompt("what now").key
    assert len({prompt("a").key, prompt("b").key, prompt("a", "b").key, prompt("a", raw=True).key}) == 4
    assert len({each.key for each in self_written(50).prompts}) == 50


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"text": "?"}], "line 1: give exactly one of prompt, messages and turns; got none of them"),
        ([{"prompt": "a"}, {"prompt": "a", "turns": ["b"]}], "line 2: give exactly one of .*; got prompt and turns"),
        ([{"prompt": "  "}], "line 1: prompt must be a text that is not empty"),
        ([{"turns": []}], "line 1: turns must be a list"),
        ([{"turns": [3]}], "line 1: a turn must be a text"),
        ([{"messages": [{"role": "assistant", "content": "x"}]}], "line 1: messages has no turn of the user's"),
        ([{"messages": "x"}], "line 1: messages must be a list"),
        ([{"prompt": "a", "source": 1}], "line 1: source must be a text"),
        ([3], "line 1: expected a JSON object"),
        ([{"prompt": "\ud800"}], "line 1: prompt is not valid Unicode"),
        ([], "holds no prompts"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, rows: list[object], message: str) -> None:
    path = written(tmp_path, *rows)
    with pytest.raises(ValueError, match=message) as caught:
        read_prompts(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[" * 100_000])
def test_broken_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"p\.jsonl.*not valid (JSON|UTF-8)"):
        read_prompts(path)


def test_raw_takes_single_texts_only(tmp_path: Path) -> None:
    for row in ({"turns": ["a", "b"]}, {"messages": [{"role": "user", "content": "a"}]}):
        with pytest.raises(ValueError, match="raw leaves it out"):
            read_prompts(written(tmp_path, row), raw=True)


def test_every_text_of_an_evaluation_counts(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        {"turns": ["a b", "c d"], "answer": "never"},
        {"prompt": "e"},
        {"conversations": [{"from": "human", "value": "f"}]},
    )
    assert texts_of(path) == ["a b", "c d", "e", "f"]
    with pytest.raises(ValueError, match="no prompts to leave out"):
        texts_of(written(tmp_path, {"answer": 3}))
    with pytest.raises(ValueError, match="No such file"):
        texts_of(tmp_path / "missing.jsonl")
