"""Worker processes: what they answer, and what is said of them when they do not."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from specdec.eval.peers.process import PeerFailed, PeerLost, PeerProcess
from tests.eval.peers.helpers import fake

LOAD = {"op": "load", "model": "m", "num_threads": 1, "max_length": 9, "max_batch": 1}
GENERATE = {"op": "generate", "prompts": [[1, 2]], "max_tokens": 3}


@pytest.fixture
def worker() -> Iterator[PeerProcess]:
    with PeerProcess(fake().argv, {**os.environ, "OMP_NUM_THREADS": "1"}) as process:
        yield process


def test_requests_are_answered_though_the_library_prints(worker: PeerProcess) -> None:
    assert worker.ask({**LOAD, "options": {}}, 60) == {
        "library": "fake of m, 1 threads, OMP 1",
        "precision": "int3",
    }
    assert worker.ask(GENERATE, 60) == {
        "token_ids": [[3, 4, 5]],
        "first_token_s": 2.0,
        "first_tokens": 1,
        "total_s": 4.0,
    }
    peak = worker.ask({"op": "stats"}, 60)["peak_memory_bytes"]
    assert peak is None or peak > 1 << 20


def test_a_refusal_is_told_and_the_next_request_is_served(worker: PeerProcess) -> None:
    with pytest.raises(PeerFailed, match=r"no option 'x'; its options are die_at_batch, "):
        worker.ask({**LOAD, "options": {"x": "1"}}, 60)
    with pytest.raises(PeerFailed, match="SystemExit: no such instruction"):
        worker.ask({**LOAD, "options": {"exit_on_load": ""}}, 60)
    with pytest.raises(PeerFailed, match="KeyError: 'sing'"):
        worker.ask({"op": "sing"}, 60)
    worker.ask({**LOAD, "options": {"refuse_batch": "1"}}, 60)
    with pytest.raises(PeerFailed, match="ValueError: not 1 at once"):
        worker.ask(GENERATE, 60)
    assert "peak_memory_bytes" in worker.ask({"op": "stats"}, 60)


def test_the_dead_are_quoted(worker: PeerProcess) -> None:
    worker.ask({**LOAD, "options": {"die_at_batch": "1"}}, 60)
    for _ in range(2):
        with pytest.raises(PeerLost, match=r"ended with exit code 3; its last words: out of cheese"):
            worker.ask(GENERATE, 60)
    worker.close()
    worker.close()


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("input(); import os; os.kill(os.getpid(), 9)", "was killed by signal 9"),
        ("input(); print('hello'); input()", "answered what is no JSON: b'hello'"),
        ("import time; time.sleep(60)", "no answer to stats within 0.2 s"),
    ],
)
def test_what_is_no_worker_is_lost(code: str, said: str) -> None:
    with PeerProcess([sys.executable, "-uIc", code], os.environ) as process, pytest.raises(PeerLost, match=said):
        process.ask({"op": "stats"}, 0.2 if "within" in said else 60)


def test_what_cannot_be_started_is_lost() -> None:
    with pytest.raises(PeerLost, match=r"cannot be started: \./no-python: No such file"):
        PeerProcess(["./no-python"], {})
