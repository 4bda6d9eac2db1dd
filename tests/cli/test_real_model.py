"""`specdec generate` as a user runs it: a process of its own, the default model, real drafts."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from typing import Any

import click
import pytest

pytestmark = [pytest.mark.model, pytest.mark.slow]

COUNT = "Repeat this line three times: one two three four five six seven eight nine ten."


def specdec(*args: str, input: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "specdec", *args]
    done = subprocess.run(command, input=input, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


def test_a_lone_answer_is_streamed_and_ends_with_statistics() -> None:
    done = specdec("generate", COUNT, "--max-tokens=48", "--explain-speculation")
    assert "two three four five" in done.stdout
    statistics, *explained = done.stderr.splitlines()
    assert re.match(r"specdec: \d+ tokens in \d+\.\d\d s, .* tok/s; proposer auto, k = 16; acceptance", statistics)
    assert explained[0].startswith("speculation: ")
    assert any(line.startswith("  a step by its rows: 1: ") for line in explained)


def test_lines_with_and_without_speculation_agree_in_one_batch() -> None:
    lines: list[dict[str, Any]] = [
        {"prompt": COUNT},
        {"prompt": COUNT, "proposer": "none"},
        {"prompt": COUNT, "num_speculative_tokens": 8},
        {"messages": [{"role": "user", "content": COUNT}], "logprobs": 2},
    ]
    text = "\n".join(map(json.dumps, lines))
    args = ("--json", "--quiet", "--max-tokens=48", "--proposer=ngram", "--prompts-file=-")
    done = specdec("generate", *args, input=text)
    objects = [json.loads(line) for line in done.stdout.splitlines()]
    assert [o["index"] for o in objects] == [0, 1, 2, 3]
    answers = [o["outputs"][0]["token_ids"] for o in objects]
    assert answers[0] == answers[1] == answers[2] == answers[3]
    assert [o["speculation"]["proposer"] for o in objects] == ["ngram", "none", "ngram", "ngram"]
    assert objects[0]["speculation"]["num_accepted_tokens"] > 0
    assert objects[1]["speculation"]["num_drafts"] == 0
    for o in objects:
        assert len(o["speculation"]["provenance"][0]) == len(o["outputs"][0]["token_ids"])
        assert o["timing"]["ttft_s"] > 0
    assert len(objects[3]["outputs"][0]["logprobs"]) == len(answers[3])


def test_color_and_verbose() -> None:
    plain = specdec("generate", "--quiet", COUNT, "--max-tokens=24").stdout
    done = specdec("generate", "--color", "-v", "--proposer=ngram", COUNT, "--max-tokens=24", "--kv-cache-tokens=1024")
    assert click.unstyle(done.stdout) == plain
    assert "\x1b[" in done.stdout
    assert "46,080 B a token" in done.stderr


def test_ctrl_c_prints_what_is_there() -> None:
    command = [
        sys.executable,
        "-m",
        "specdec",
        "generate",
        "Tell me a long story.",
        "--ignore-eos",
        "--max-tokens=4000",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate()
    assert process.returncode == 130, errors
    assert first
    assert rest.endswith("\n")
    assert "interrupted; 0 of 1 prompts finished" in errors
    assert "Traceback" not in errors
