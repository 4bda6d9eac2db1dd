"""What `specdec generate` prints, where, in which order, and with which exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import click
import pytest

from specdec.cli.run import interruptible
from specdec.core.control.explanation import Explanation, ProposerAccount
from specdec.types import RequestOutput
from tests.cli.fake import FakeEngine, generate, invoke, run

GREEN, YELLOW, RESET = "\x1b[32m", "\x1b[33m", "\x1b[0m"


def test_a_lone_answer_and_one_line_of_statistics() -> None:
    result = generate("--raw", "hello")
    assert result.stdout == "re: hello\n"
    (line,) = result.stderr.splitlines()
    assert line.startswith("specdec: 9 tokens in ")
    assert " tok/s; proposer auto, k = 16; acceptance rate 25.0 % of 20 drafted tokens" in line
    assert line.endswith("mean acceptance length 2.00")


def test_a_lone_answer_is_shown_as_it_comes() -> None:
    """What has been written is looked at before each step; half a character is never there."""
    seen: list[str] = []
    engine = FakeEngine(answer=lambda prompt: "aé cdé", before_step=lambda step: seen.append(_written()))
    assert generate("--raw", "x", engine=engine).stdout == "aé cdé\n"
    assert seen == ["", "a", "aé c"]


def _written() -> str:
    return sys.stdout.buffer.getvalue().decode()  # type: ignore[attr-defined, no-any-return]


def test_plain_decoding_has_no_acceptance_in_its_statistics() -> None:
    result = generate("--raw", "hello", "--proposer", "none")
    assert result.stdout == "re: hello\n"
    assert result.stderr.endswith("proposer none\n")


def test_several_answers_come_whole_in_input_order_under_headers() -> None:
    result = generate("--raw", "a long prompt whose answer takes many steps", "b\nc", "x" * 80)
    title = "x" * 59 + "…"
    assert result.stdout == (
        "== 1/3: a long prompt whose answer takes many steps\nre: a long prompt whose answer takes many steps\n\n"
        f"== 2/3: b c\nre: b\nc\n\n== 3/3: {title}\nre: {'x' * 80}\n\n"
    )


def test_an_answer_is_written_once_those_before_it_are_not_when_all_are_done() -> None:
    seen: list[str] = []
    engine = FakeEngine(
        answer=lambda prompt: "y" * {"a": 4, "b": 2, "c": 12}[prompt], before_step=lambda step: seen.append(_written())
    )
    generate("--raw", "--quiet", "a", "b", "c", engine=engine)
    assert seen[:4] == ["", "", "yyyy\nyy\n", "yyyy\nyy\n"]


def test_samples_are_numbered() -> None:
    result = generate("--raw", "a", "--n=2", "--temperature=1")
    assert result.stdout == "== 1/1 (sample 1/2): a\nre: a\n\n== 1/1 (sample 2/2): a\nre: a\n\n"


def test_headers_of_other_kinds_of_prompts() -> None:
    lines = '{"prompt_token_ids": [65, 66]}\n{"messages": [{"role": "user", "content": "hello"}]}'
    result = generate("--prompts-file=-", input=lines)
    assert [line for line in result.stdout.splitlines() if line.startswith("==")] == [
        "== 1/2: 2 token ids",
        "== 2/2: hello",
    ]


def test_quiet_prints_nothing_but_the_answers() -> None:
    result = generate("--raw", "--quiet", "a", "b")
    assert (result.stdout, result.stderr) == ("re: a\nre: b\n", "")
    result = generate("--raw", "--quiet", "--color", "a", engine=FakeEngine(answer=lambda prompt: "xy"))
    assert (result.stdout, result.stderr) == (f"{GREEN}x{RESET}y{RESET}\n", "")


def test_verbose_describes_configuration_and_memory() -> None:
    result = generate("--raw", "a", "-v", "--block-size=32")
    assert result.stdout == "re: a\n"
    assert "  block_size: 32\n" in result.stderr
    assert "specdec: start-up 1.50 s: imports 0.50, weights 1.00\n" in result.stderr
    assert "specdec: sequences of up to " in result.stderr
    assert "the memory plan\n" in result.stderr


def test_color_shows_provenance_even_where_no_terminal_is_and_no_color_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens come in pairs: a drafted one, then a bonus (after the first draft) or a recovered one, in turns."""
    monkeypatch.setenv("NO_COLOR", "1")
    result = generate("--raw", "--color", "x", engine=FakeEngine(answer=lambda prompt: "abcdé"))
    assert result.stdout == f"{GREEN}a{RESET}b{RESET}{GREEN}c{RESET}{YELLOW}d{RESET}é\n"
    assert "green: drafted" in result.stderr
    assert "\x1b" not in generate("--raw", "x").stdout


def test_color_changes_nothing_but_colors() -> None:
    plain = generate("--raw", "one é", "two", "--quiet").stdout
    assert click.unstyle(generate("--raw", "one é", "two", "--quiet", "--color").stdout) == plain


def test_json_is_the_documented_object() -> None:
    (line,) = generate("--raw", "--json", "Hi", engine=FakeEngine(answer=lambda prompt: "abcde")).stdout.splitlines()
    assert json.loads(line) == {
        "index": 0,
        "prompt_token_ids": [72, 105],
        "outputs": [
            {
                "text": "abcde",
                "token_ids": [97, 98, 99, 100, 101],
                "finish_reason": "stop",
                "stop_reason": None,
                "logprobs": None,
            }
        ],
        "num_cached_tokens": 0,
        "speculation": {
            "proposer": "auto",
            "num_speculative_tokens": 16,
            "verifier": "greedy",
            "exactness": "bytes",
            "num_drafts": 3,
            "num_draft_tokens": 12,
            "num_accepted_tokens": 3,
            "accepted_per_position": [3],
            "mean_acceptance_length": 2.0,
            "provenance": [["auto", "bonus", "auto", "recovered", "auto"]],
        },
        "timing": {"load_s": 1.5, "ttft_s": 0.5, "decode_s": 2.0, "decode_tokens_per_s": 2.0},
    }


def test_json_tells_how_far_each_request_was_drafted() -> None:
    lines = ('{"prompt": "a", "num_speculative_tokens": 7}', '{"prompt": "b"}', '{"prompt": "c", "proposer": "none"}')
    result = generate("--raw", "--json", "-k3", "--prompts-file=-", input="\n".join(lines))
    told = [json.loads(line)["speculation"] for line in result.stdout.splitlines()]
    assert [each["num_speculative_tokens"] for each in told] == [7, 3, 0]


def test_json_has_a_line_for_each_prompt_in_input_order() -> None:
    result = generate("--raw", "--json", "a much longer prompt than the next", "b", "--n=2", "--temperature=1")
    objects = [json.loads(line) for line in result.stdout.splitlines()]
    assert [o["index"] for o in objects] == [0, 1]
    assert [o["outputs"][1]["text"] for o in objects] == ["re: a much longer prompt than the next", "re: b"]
    assert [len(o["speculation"]["provenance"]) for o in objects] == [2, 2]
    assert objects[1]["speculation"]["num_drafts"] == 6
    assert result.stderr.startswith("specdec: 86 tokens in ")


def test_json_has_logprobs_where_a_line_asks_for_them() -> None:
    lines = '{"prompt": "a", "logprobs": 1}\n{"prompt": "b"}'
    result = generate("--raw", "--json", "--prompts-file=-", input=lines, engine=FakeEngine(answer=lambda prompt: "x"))
    first, second = [json.loads(line, parse_constant=pytest.fail) for line in result.stdout.splitlines()]
    assert first["outputs"][0]["logprobs"] == [
        {
            "120": {"logprob": -0.5, "rank": 1, "decoded_token": "x"},
            "0": {"logprob": None, "rank": 9, "decoded_token": None},
        }
    ]
    assert second["outputs"][0]["logprobs"] is None


def test_a_single_token_has_no_decoding_speed() -> None:
    (line,) = generate("--raw", "--json", "a", "--max-tokens=1").stdout.splitlines()
    assert json.loads(line)["outputs"][0]["finish_reason"] == "length"
    assert json.loads(line)["timing"]["decode_tokens_per_s"] == 0.0


def test_a_failed_request_does_not_take_the_others_down() -> None:
    result = invoke("generate", "--raw", "a", "fail", "c")
    assert result.exit_code == 1
    assert result.stdout == "== 1/3: a\nre: a\n\n== 2/3: fail\nre\n\n== 3/3: c\nre: c\n\n"
    error, statistics = result.stderr.splitlines()
    assert error == "specdec: error: prompt 2: the logits are not finite"
    assert " tokens in " in statistics


def test_the_error_of_a_failed_request_is_said_even_if_quiet() -> None:
    result = invoke("generate", "--raw", "--quiet", "fail")
    assert (result.exit_code, result.stdout, result.error) == (1, "re\n", "the logits are not finite")


def test_what_is_wrong_with_the_model_is_one_line() -> None:
    def build(config: object, progress: object) -> FakeEngine:
        raise ValueError("the file is truncated:\n  it ends at byte 3")

    assert run(["generate", "a"], build) == (2, "", "specdec: error: the file is truncated: it ends at byte 3\n")


def test_an_error_while_stepping_is_a_fault_and_keeps_its_traceback() -> None:
    def fail(step: int) -> None:
        raise ValueError("a broken invariant")

    with pytest.raises(ValueError, match="a broken invariant"):
        invoke("generate", "a", engine=FakeEngine(before_step=fail))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("smollm2-135", "unknown model 'smollm2-135'; did you mean 'smollm2-135m'?"),
        ("./nowhere.gguf", "there is no model at './nowhere.gguf'"),
    ],
)
def test_the_real_engine_refuses_an_unknown_model(model: str, message: str) -> None:
    code, out, err = run(["generate", "a", "--model", model], None)
    assert (code, out) == (2, "")
    assert err.startswith(f"specdec: error: {message}")
    assert err.count("\n") == 1


def press_ctrl_c_at(number: int) -> Callable[[int], None]:
    return lambda step: os.kill(os.getpid(), signal.SIGINT) if step == number else None


def test_ctrl_c_finishes_the_step_and_prints_what_is_there() -> None:
    result = invoke("generate", "--raw", "hello", engine=FakeEngine(before_step=press_ctrl_c_at(2)))
    assert (result.exit_code, result.stdout) == (130, "re: \n")
    note, statistics = result.stderr.splitlines()
    assert note == "specdec: interrupted; 0 of 1 prompts finished"
    assert statistics.startswith("specdec: 4 tokens in ")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_prints_the_finished_answers() -> None:
    answers = {"a": "y" * 20, "b": "bb", "c": "cc"}
    engine = FakeEngine(answer=answers.__getitem__, before_step=press_ctrl_c_at(2))
    result = invoke("generate", "--raw", "a", "b", "c", engine=engine)
    assert (result.exit_code, result.stdout) == (130, "== 2/3: b\nbb\n\n== 3/3: c\ncc\n\n")
    assert "2 of 3 prompts finished" in result.stderr


def test_ctrl_c_with_json_prints_every_prompt() -> None:
    answers = {"a": "y" * 20, "b": "bb"}
    engine = FakeEngine(answer=answers.__getitem__, before_step=press_ctrl_c_at(2))
    result = invoke("generate", "--raw", "--json", "a", "b", engine=engine)
    objects = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(o["index"], o["outputs"][0]["text"], o["outputs"][0]["finish_reason"]) for o in objects] == [
        (0, "yyyy", "abort"),
        (1, "bb", "stop"),
    ]
    assert not engine.has_unfinished_requests()


def test_ctrl_c_in_the_last_step_is_too_late_to_matter() -> None:
    result = generate("--raw", "--quiet", "a", engine=FakeEngine(answer=lambda p: "x", before_step=press_ctrl_c_at(1)))
    assert (result.stdout, result.stderr) == ("x\n", "")


def test_a_second_ctrl_c_does_not_wait_for_the_step() -> None:
    def press_twice(step: int) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    result = invoke("generate", "--raw", "a", engine=FakeEngine(before_step=press_twice))
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "specdec: interrupted\n")


def test_a_handler_of_someone_else_is_left_alone() -> None:
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interruptible():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, previous)
    in_a_thread: list[bool] = []

    def run_in_thread() -> None:
        with interruptible() as interrupted:
            in_a_thread.append(interrupted())

    thread = threading.Thread(target=run_in_thread)
    thread.start()
    thread.join()
    assert in_a_thread == [False]


@pytest.mark.parametrize("args", [["models"], ["models", "--json"]])
def test_models_lists_where_the_default_model_is_kept(
    args: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path))
    result = invoke(*args)
    assert result.exit_code == 0
    if "--json" in args:
        model, head = json.loads(result.stdout)
        assert (model["name"], model["licence"], model["cached"]) == ("smollm2-135m", "Apache-2.0", False)
        assert (head["name"], head["kind"], head["target"]) == ("smollm2-135m-eagle3", "eagle3", "smollm2-135m")
        assert model["path"].startswith(str(tmp_path))
    else:
        lines = [line.split() for line in result.stdout.splitlines()]
        assert lines[1][:5] == ["smollm2-135m", "98", "MB", "Apache-2.0", "no"]
        assert lines[2] == []
        assert lines[3] == ["HEAD", "FOR", "SIZE", "LICENCE", "INSTALLED", "DESCRIPTION"]
        assert lines[4][:2] == ["smollm2-135m-eagle3", "smollm2-135m"]


@pytest.mark.parametrize("args", [["models"], ["models", "--json"]])
def test_models_without_a_home_is_one_line(args: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECDEC_CACHE", "~no-such-user/models")
    result = invoke(*args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.error.startswith("there is no home directory for ~no-such-user/models; set SPECDEC_CACHE")


def test_a_reader_that_goes_away_ends_the_command_quietly() -> None:
    code = (
        "from tests.cli.fake import FakeEngine\nfrom specdec.cli import main\n"
        "engine = FakeEngine(answer=lambda prompt: 'x' * 1_000_000)\n"
        "main(['generate', '--raw', '--max-tokens=1000000', 'a'], build_engine=lambda config, progress: engine)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_lossy_answers_say_so() -> None:
    class Lossy(FakeEngine):
        def step(self) -> list[RequestOutput]:
            return [replace(output, verifier="typical", exactness="lossy") for output in super().step()]

    result = generate("--raw", "hello", engine=Lossy())
    assert result.stderr.endswith("; lossy: the verifier typical does not keep the model's distribution\n")
    (line,) = generate("--raw", "--json", "hello", engine=Lossy()).stdout.splitlines()
    assert json.loads(line)["speculation"]["exactness"] == "lossy"


def warned(engine: FakeEngine, *args: str, lines: list[dict[str, object]]) -> list[str]:
    """What the run on these lines warns of."""
    text = "\n".join(map(json.dumps, lines))
    result = generate("--raw", "--proposer=ngram", "--prompts-file=-", *args, input=text, engine=engine)
    *told, last = result.stderr.splitlines() or [""]
    assert " tokens in " in last or "--quiet" in args
    return told


@pytest.mark.parametrize(
    ("num_accepted", "words"),
    [
        (None, "specdec: warning: proposer ngram drafted nothing in 200 generated tokens; likely "),
        (0, "specdec: warning: proposer ngram: the first drafted token was accepted in 0 of 100 drafts"),
    ],
)
def test_a_proposer_that_does_not_help_is_warned_of(num_accepted: int | None, words: str) -> None:
    engine = FakeEngine(answer=lambda prompt: "y" * 200, num_accepted=num_accepted)
    (line,) = warned(engine, lines=[{"prompt": "a"}])
    assert line.startswith(words)
    assert warned(engine, "--quiet", lines=[{"prompt": "a"}]) == []
    assert warned(engine, "--json", lines=[{"prompt": "a"}]) == [line]


def test_each_proposer_that_requests_asked_for_is_judged_by_all_of_them() -> None:
    engine = FakeEngine(answer=lambda prompt: "y" * 50, num_accepted=None)
    asked = [{"prompt": "a", "proposer": name} for name in ("ngram", "suffix", "ngram", "suffix", "none", "none")]
    names = [line.split()[3] for line in warned(engine, lines=asked)]
    assert names == ["ngram", "suffix"]
    assert warned(engine, lines=asked[4:]) == []
    assert warned(engine, lines=[{"prompt": "a", "num_speculative_tokens": 0}] * 2) == []


@pytest.mark.parametrize("num_accepted", [None, 0])
def test_short_runs_are_not_judged(num_accepted: int | None) -> None:
    engine = FakeEngine(answer=lambda prompt: "y" * 60, num_accepted=num_accepted)
    assert warned(engine, lines=[{"prompt": "a"}]) == []
    assert warned(engine, "--max-tokens=2", lines=[{"prompt": "a"}] * 40) == []


def test_auto_explains_itself_on_standard_error_when_asked() -> None:
    explanation = Explanation(
        chosen={("none", 0): 60, ("ngram", 3): 40},
        proposers=(ProposerAccount("ngram", 40, 4, 0.001, 0.00002, (40, 20), (20, 15), is_off=False),),
        step_seconds={1: 0.004, 5: 0.005},
        num_tokens=150,
        seconds=0.5,
        expected_tokens=150.0,
        expected_seconds=0.48,
        plain_seconds=0.4,
        num_steps=100,
        num_sequence_steps=100,
        hint_seconds=0.002,
        follow_seconds=0.0,
        probe_loss_seconds=0.003,
    )
    engine = FakeEngine(explanation=explanation)
    assert "choices" not in generate("--raw", "x", engine=engine).stderr
    result = generate("--raw", "--explain-speculation", "x", engine=engine)
    assert result.stdout == generate("--raw", "x").stdout
    assert result.stderr.splitlines()[1:] == [
        "speculation: 100 choices of who drafts, plain decoding 60 % of them",
        "  ngram: k = 3: 40; 4 of these to look again",
        "    accepted by position, given the one before, in %: 50, 75 (of 40 drafts)",
        "    a draft took 25 microseconds on average, 20 lately",
        "  a step by its rows: 1: 4.00 ms (x1.00), 5: 5.00 ms (x1.25)",
        "  tokens a second: 300.0 measured, 312.5 expected, 250.0 plain by the figures above; speed-up 1.20 measured, "
        "1.25 expected",
        "  probes lost 3.0 ms, hints took 2.0 ms and following 0.0 ms of 500 ms",
    ]
    plain = generate("--raw", "--explain-speculation", "--proposer=none", "x")
    assert plain.stderr.splitlines()[1].startswith("specdec: nothing to explain: auto is not among")
