"""An even choice among prompts, seeds of their own, and what the engine is given."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.eval.prompts import EvalPrompt, Message, choose, token_ids
from specdec.tokenizer import Tokenizer
from tests.cli.fake import CharTokenizer
from tests.toys import byte_tokenizer


def prompts(layout: list[tuple[str, str]]) -> list[EvalPrompt]:
    return [EvalPrompt(task, category, str(number), "text") for number, (task, category) in enumerate(layout)]


layouts = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xyz")), max_size=30)


@given(layouts, st.integers(1, 12))
def test_the_choice_is_even(layout: list[tuple[str, str]], limit: int) -> None:
    everything = prompts(layout)
    chosen = choose(everything, limit)
    assert chosen == [prompt for prompt in everything if prompt in chosen]
    for task in {task for task, _ in layout}:
        available = Counter(category for own, category in layout if own == task)
        taken = Counter(prompt.category for prompt in chosen if prompt.task == task)
        assert taken.total() == min(limit, available.total())
        for category, count in available.items():
            most = max(taken.values())
            assert taken[category] >= min(count, most - 1)


def test_a_category_is_taken_from_all_over() -> None:
    chosen = choose(prompts([("a", "x")] * 9), 3)
    assert [prompt.prompt_id for prompt in chosen] == ["0", "3", "6"]


def test_no_limit_takes_all() -> None:
    assert choose(prompts([("a", "x")] * 9), None) == prompts([("a", "x")] * 9)


def test_a_prompts_seed_is_its_own_and_the_evaluations() -> None:
    one, other = prompts([("a", "x"), ("a", "x")])
    assert len({one.seed(0), one.seed(1), other.seed(0)}) == 3
    assert one.seed(0) == one.seed(0)


CHAT = EvalPrompt("t", "c", "1", (Message("system", "s"), Message("user", "u")), origin="f, line 1")


def asked(prompt: EvalPrompt, template: str | None = "chat") -> str:
    tokenizer = CharTokenizer(template)
    return tokenizer.decode(token_ids(prompt, tokenizer))  # type: ignore[arg-type]


def test_texts_go_through_the_template_unless_they_are_raw_or_there_is_none() -> None:
    text = EvalPrompt("t", "c", "1", "hi")
    assert asked(text) == "<user>hi<assistant>"
    assert asked(text, None) == "hi"
    assert asked(EvalPrompt("t", "c", "1", "hi", raw=True)) == "hi"
    assert asked(CHAT) == "<system>s<user>u<assistant>"


def test_what_cannot_be_asked_is_said_of_the_prompt() -> None:
    with pytest.raises(ValueError, match=r"^f, line 1: the model has no chat template"):
        token_ids(CHAT, byte_tokenizer())
    with pytest.raises(ValueError, match="no tokenizer"):
        token_ids(CHAT, None)


def test_names_and_texts() -> None:
    assert CHAT.name == "t/1"
    assert CHAT.text == "u"
    assert isinstance(byte_tokenizer(), Tokenizer)
