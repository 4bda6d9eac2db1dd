"""Passages of documents, and the tasks they are given."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.train.data.documents import FEWEST_WORDS, MOST_WORDS, TASKS, passages, read_documents

PARAGRAPH = "The quick brown fox jumps over the lazy dog and runs away into the deep dark wood again. " * 3


def test_pages_give_their_text_and_no_menus(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.html").write_text(
            f"<html><head><title>T</title></head><nav>menu</nav><script>var x;</script><p>Home of all pages</p>"
            f"<p>{PARAGRAPH} Page&nbsp;{number} ends &amp; stops.</p><pre>a\n  b</pre></html>",
            "utf-8",
        )
    prompts = read_documents(tmp_path, 0).prompts
    assert len(prompts) == 3
    for number, prompt in enumerate(prompts):
        assert "ends & stops." in prompt.text
        assert f"Page\xa0{number}".replace("\xa0", " ") in prompt.text.replace("\xa0", " ")
        assert not any(word in prompt.text for word in ("menu", "var x", "Home of all pages"))
        assert prompt.source == "documents"


def test_the_seed_chooses_the_tasks_and_nothing_else_does(tmp_path: Path) -> None:
    path = tmp_path / "book.md"
    path.write_text("\n\n".join(f"{i} {PARAGRAPH}" for i in range(40)), "utf-8")
    first, again, other = (read_documents(path, seed) for seed in (0, 0, 1))
    assert first == again
    assert first.sha256 == other.sha256
    assert [prompt.text for prompt in first.prompts] != [prompt.text for prompt in other.prompts]
    beginnings = {task.partition("{}")[0] for task in TASKS if not task.startswith("{}")}
    assert len({b for b in beginnings for prompt in first.prompts if prompt.text.startswith(b)}) > 2


@settings(max_examples=40)
@given(st.lists(st.integers(1, 700), max_size=12))
def test_passages_are_of_bounded_length_and_in_order(lengths: list[int]) -> None:
    words = iter(f"word{i}" for i in range(sum(lengths)))
    paragraphs = [" ".join(next(words) for _ in range(length)) for length in lengths]
    found = list(passages(p for p in paragraphs if len(p.split()) <= MOST_WORDS))
    assert all(FEWEST_WORDS <= len(passage.split()) <= 2 * MOST_WORDS for passage in found)
    spoken = [word for passage in found for word in passage.split()]
    assert spoken == sorted(spoken, key=lambda word: int(word[4:]))


def test_a_long_paragraph_is_cut_between_sentences(tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    path.write_text(" ".join(f"Sentence {i} has exactly these seven words." for i in range(300)), "utf-8")
    prompts = read_documents(path, 0).prompts
    assert len(prompts) > 2
    assert all(len(prompt.text.split()) < MOST_WORDS + 50 for prompt in prompts)
    assert sum(prompt.text.count("has exactly these seven words.") for prompt in prompts) == 300


def test_tables_of_numbers_and_scraps_are_no_passages(tmp_path: Path) -> None:
    path = tmp_path / "numbers.txt"
    path.write_text("12 34 56 78 " * 50 + "\n\nshort", "utf-8")
    with pytest.raises(ValueError, match="holds no passages"):
        read_documents(path, 0)
    with pytest.raises(ValueError, match=r"holds no documents; their names end in \.txt"):
        read_documents(tmp_path / "nothing", 0)
