"""The built-in tasks: files that can be read, and prompts that are enough, distinct and of the kind the file says."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

TASKS = Path(__file__).parents[2] / "evals" / "tasks"
NAMES = ("chat", "code", "code_editing", "extraction", "long_copying", "maths", "summarisation", "translation")

FEWEST_PROMPTS = 20
MOST_BYTES = 600_000
SHORTEST_LONG_PROMPT = 4_000
SHINGLE = 5
MOST_IN_COMMON = 0.2
"""Of the shingles (runs of five words) of the shorter of two prompts."""

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
"""ASCII control characters but for tab and line feed."""


def rows(name: str) -> list[dict[str, Any]]:
    lines = (TASKS / f"{name}.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


def turns(row: dict[str, Any]) -> list[dict[str, str]]:
    return row["messages"] if "messages" in row else [{"role": "user", "content": row["prompt"]}]


def text(row: dict[str, Any]) -> str:
    """All turns."""
    return "\n".join(turn["content"] for turn in turns(row))


def shingles(prompt: str) -> frozenset[tuple[str, ...]]:
    words = re.findall(r"\w+", prompt.lower())
    return frozenset(zip(*(words[start:] for start in range(SHINGLE)), strict=False))


def in_common(first: frozenset[Any], second: frozenset[Any]) -> float:
    """The share of the smaller set that is in the other as well."""
    return len(first & second) / max(1, min(len(first), len(second)))


def every_row() -> list[dict[str, Any]]:
    return [row for name in NAMES for row in rows(name)]


def test_the_files_are_the_tasks() -> None:
    assert sorted(path.stem for path in TASKS.glob("*")) == list(NAMES)
    assert sum(path.stat().st_size for path in TASKS.glob("*")) < MOST_BYTES


@pytest.mark.parametrize("name", NAMES)
def test_a_task_has_enough_prompts_of_its_category(name: str) -> None:
    assert len(rows(name)) >= FEWEST_PROMPTS
    assert {row["category"] for row in rows(name)} == {name}


@pytest.mark.parametrize("name", NAMES)
def test_rows_have_the_fields_of_the_format(name: str) -> None:
    for row in rows(name):
        assert row.keys() in ({"id", "category", "prompt"}, {"id", "category", "messages"}), row["id"]
        assert row["id"].startswith(f"{name}-")
        for turn in turns(row):
            assert turn.keys() == {"role", "content"}
            assert turn["content"] == turn["content"].strip() != "", row["id"]
            assert not CONTROL.search(turn["content"]), row["id"]


def test_conversations_alternate_and_end_with_the_user() -> None:
    conversations = [row for row in every_row() if "messages" in row]
    assert conversations
    for row in conversations:
        roles = [turn["role"] for turn in row["messages"] if turn["role"] != "system"]
        assert roles == ["user" if index % 2 == 0 else "assistant" for index in range(len(roles))], row["id"]
        assert roles[-1] == "user", row["id"]
        assert "system" not in [turn["role"] for turn in row["messages"][1:]], row["id"]


def test_ids_are_unique() -> None:
    ids = [row["id"] for row in every_row()]
    assert len(set(ids)) == len(ids)


def test_no_prompt_is_nearly_another() -> None:
    prompts = [(row["id"], shingles(text(row)), text(row)) for row in every_row()]
    assert len({prompt for _, _, prompt in prompts}) == len(prompts)
    for (one, first, _), (other, second, _) in combinations(prompts, 2):
        shared = in_common(first, second)
        assert shared <= MOST_IN_COMMON, f"{one} and {other} have {100 * shared:.0f} % in common"


def test_long_prompts_are_long_and_no_filler() -> None:
    for row in rows("long_copying"):
        prompt = text(row)
        assert len(prompt) >= SHORTEST_LONG_PROMPT, row["id"]
        lines = [line for line in prompt.splitlines() if len(line) >= 60]
        assert len(set(lines)) == len(lines), row["id"]


def test_near_duplicates_are_found() -> None:
    prompt = (
        "Write a function in Python which returns the median of a list of numbers, with type hints and a docstring."
    )
    other = "Translate the following sentence into French and explain your choice of tense."
    assert in_common(shingles(prompt), shingles(prompt.replace("Python", "Ruby"))) > MOST_IN_COMMON
    assert in_common(shingles(prompt), shingles(other)) == 0
