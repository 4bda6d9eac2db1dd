"""What a job asks and what becomes of it, its replies being given."""

from __future__ import annotations

import pytest

from specdec.train.data.chat import Chat
from specdec.train.data.conversation import WRITING_TEMPERATURE, Ask, Conversation, Limits, Outcome, Reply
from specdec.train.data.filters import Exclusion
from specdec.train.data.plan import Job
from specdec.train.data.prompts import Message, Prompt
from tests.toys import EOS, byte_tokenizer
from tests.train.data.toys import chat_tokenizer

CHAT = Chat.of(chat_tokenizer())
FORBIDDEN = Exclusion(["the question of an evaluation"])
TALK = Prompt("talk", (Message("user", "Hi."),), ("Why?", "So?"))
WRITTEN = Prompt("self-written", number=0)


def ids(text: str) -> tuple[int, ...]:
    return tuple(text.encode())


def said(text: str) -> Reply:
    return Reply((*ids(text), EOS), "stop")


def run(prompt: Prompt, *replies: Reply, chat: Chat = CHAT, longest: int = 200) -> tuple[list[Ask], Outcome]:
    """What was asked, and the outcome."""
    job = Job(7, prompt, 0, 0.7, 1234)
    talk = Conversation(job, chat, Limits(50, 40, longest), FORBIDDEN).run()
    asked, rest = [], iter(replies)
    try:
        asked.append(next(talk))
        while True:
            asked.append(talk.send(next(rest)))
    except StopIteration as done:
        assert next(rest, None) is None, "the job is over before its last reply"
        return asked, done.value


def texts(asked: list[Ask]) -> list[str]:
    return [CHAT.tokenizer.decode(ask.token_ids, skip_special_tokens=False) for ask in asked]


def test_every_turn_is_asked_with_what_was_said_before() -> None:
    asked, outcome = run(TALK, said("Hello"), said("Because"), Reply(ids("so it"), "length"))
    first, second = "<user>Hi.<eos><assistant>", "<user>Hi.<eos><assistant>Hello<eos><user>Why?<eos><assistant>"
    assert texts(asked)[:2] == [first, second]
    assert [(ask.temperature, ask.max_tokens, ask.keeps) for ask in asked] == [(0.7, 50, True)] * 3
    assert len({ask.seed for ask in asked}) == 3
    assert [answer.turn for answer in outcome.answers] == [0, 1, 2]
    assert [answer.finished for answer in outcome.answers] == [True, True, False]
    answer = outcome.answers[0]
    assert answer.token_ids.tolist() == [*asked[0].token_ids, *ids("Hello"), EOS]
    assert answer.num_prompt_tokens == len(asked[0].token_ids)
    assert (outcome.dropped, outcome.job, answer.source) == ((), 7, "talk")


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (Reply((EOS,), "stop"), "empty"),
        (said(" \n "), "empty"),
        (Reply(ids("ab" * 20), "length"), "loop"),
        (Reply((), "error"), "failed"),
    ],
)
def test_a_bad_answer_ends_the_conversation_and_leaves_the_turns_before(reply: Reply, reason: str) -> None:
    _, outcome = run(TALK, said("Hello"), reply)
    assert [answer.turn for answer in outcome.answers] == [0]
    assert outcome.dropped == (reason,)


def test_a_prompt_that_leaves_no_room_is_not_asked() -> None:
    asked, outcome = run(TALK, said("a b c d e f g h i j k l m n o p q r s t u v w x y z " * 2), longest=100)
    assert len(asked) == 1
    assert outcome.dropped == ("too long",)


def test_the_model_writes_in_the_users_place() -> None:
    asked, outcome = run(WRITTEN, said(" Tell me a nice story. "), said("Once."))
    assert texts(asked) == ["<user>", "<user>Tell me a nice story.<eos><assistant>"]
    assert (asked[0].temperature, asked[0].max_tokens, asked[0].keeps) == (WRITING_TEMPERATURE, 40, False)
    assert asked[0].stop_token_ids == (EOS,)
    assert len(outcome.answers) == 1


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (said("Too few words"), "unfinished prompt"),
        (Reply(ids("this one has no end and"), "length"), "unfinished prompt"),
        (said("a b " * 20), "unfinished prompt"),
        (said("What is the question of an evaluation?"), "evaluation prompt"),
        (Reply((), "error"), "failed"),
    ],
)
def test_bad_prompts_of_the_model_are_not_answered(reply: Reply, reason: str) -> None:
    asked, outcome = run(WRITTEN, reply)
    assert len(asked) == 1
    assert outcome == Outcome(7, (), (reason,))


def test_raw_prompts_and_models_without_a_template() -> None:
    text = Prompt("s", (Message("user", "1, 2,"),), raw=True)
    asked, _ = run(text, said("3"))
    assert texts(asked) == ["1, 2,"]
    plain = Chat.of(byte_tokenizer())
    asked, outcome = run(Prompt("s", (Message("user", "1, 2,"),), ("and",)), said("3"), chat=plain)
    assert texts(asked) == ["1, 2,"]
    assert outcome.dropped == ("rejected",)
    with pytest.raises(ValueError, match="the model has no chat template: it cannot write prompts itself"):
        plain.user_header()
    with pytest.raises(ValueError, match="this model has no tokenizer"):
        Chat.of(None)


def test_a_template_that_changes_what_the_user_says_cannot_be_opened() -> None:
    tokenizer = chat_tokenizer()
    tokenizer.chat_template = "{{ messages[0]['content'] | upper | reverse }}"
    with pytest.raises(ValueError, match="does not write the user's words as they are"):
        Chat.of(tokenizer).user_header()
