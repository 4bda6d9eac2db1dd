"""One engine for many jobs: its batch is full as long as there are jobs."""

from __future__ import annotations

from specdec.train.data.answers import Desk
from specdec.train.data.chat import Chat
from specdec.train.data.conversation import Conversation, Limits, Outcome
from specdec.train.data.filters import Exclusion
from specdec.train.data.plan import Job
from specdec.train.data.prompts import Message, Prompt
from tests.train.data.toys import chat_tokenizer, engine_around, plan, scripted

CHAT = Chat.of(chat_tokenizer())


def talk(job: Job, longest: int = 200) -> Conversation:
    return Conversation(job, CHAT, Limits(12, 24, longest), Exclusion(()))


def test_the_batch_is_kept_full() -> None:
    engine = engine_around(scripted(), max_num_seqs=4, max_num_batched_tokens=512)
    desk, jobs = Desk(engine, 4), list(plan().jobs)
    done: list[Outcome] = []
    while jobs or desk.is_busy:
        while desk.has_room and jobs:
            done += desk.begin(talk(jobs.pop()).run())
        more = bool(jobs)
        done += desk.step()
        assert engine.last_step.num_rows == 4 or not more
    assert sorted(outcome.job for outcome in done) == list(range(len(plan().jobs)))
    assert desk.counted.answer_tokens > 0
    assert not engine.has_unfinished_requests()


def test_what_the_engine_refuses_is_a_failure_of_the_job_alone() -> None:
    """The model takes fewer tokens than the job was told."""
    desk = Desk(engine_around(scripted()), 4)
    job = Job(3, Prompt("s", (Message("user", "long " * 80),)), 0, 0.0, 1)
    assert list(desk.begin(talk(job, longest=10_000).run())) == [Outcome(3, (), ("failed",))]
    assert not desk.is_busy


def test_what_is_abandoned_leaves_the_engine_idle() -> None:
    engine = engine_around(scripted())
    desk = Desk(engine, 4)
    for job in plan().jobs[:4]:
        assert not list(desk.begin(talk(job).run()))
    list(desk.step())
    desk.abandon()
    assert not desk.is_busy
    assert not engine.has_unfinished_requests()
