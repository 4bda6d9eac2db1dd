"""Where prompts come from, what each line may say, and how bad ones are refused before any model work."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest

from specdec.types import SamplingParams
from tests.cli.fake import CharTokenizer, FakeEngine, generate, invoke


def lines(*objects: object) -> str:
    return "".join(json.dumps(o) + "\n" for o in objects)


def from_stdin(text: str | bytes, *args: str) -> FakeEngine:
    engine = generate("--prompts-file", "-", *args, input=text).engine
    assert engine is not None
    return engine


def refused(text: str | bytes, *args: str) -> str:
    result = invoke("generate", "--prompts-file", "-", *args, input=text)
    assert result.exit_code == 2
    assert result.engine is None, "refused only after the model was loaded"
    assert result.stdout == ""
    return result.error


def test_arguments_come_first_then_the_file_in_order(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(lines({"prompt": "c"}) + "\n  \n" + lines({"prompt": "d"}))
    engine = generate("a", "b", "--prompts-file", str(file), "--raw").engine
    assert engine is not None
    assert [added["prompt"] for added in engine.added] == ["a", "b", "c", "d"]


def test_the_three_kinds_of_content() -> None:
    turns = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}, {"role": "user", "content": "z"}]
    engine = from_stdin(
        lines({"prompt": "p"}, {"messages": turns}, {"prompt_token_ids": [72, 105]}, {"prompt": "q", "raw": True})
    )
    assert [added["text"] for added in engine.added] == [
        "<user>p<assistant>",
        "<user>x<assistant>y<user>z<assistant>",
        "Hi",
        "q",
    ]


def test_a_line_overrides_the_command_line() -> None:
    engine = from_stdin(
        lines({"prompt": "a"}, {"prompt": "b", "raw": False, "temperature": 0.5, "max_tokens": None, "stop": ["x"]}),
        "--raw",
        "--max-tokens=7",
        "--stop=y",
        "--stop=z",
        "--seed=3",
    )
    first, second = engine.added
    assert first["text"] == "a"
    assert first["params"] == SamplingParams(temperature=0.0, max_tokens=7, stop=("y", "z"), seed=3)
    assert second["text"] == "<user>b<assistant>"
    assert second["params"] == SamplingParams(temperature=0.5, max_tokens=None, stop=("x",), seed=3)


OTHER_VALUES = {
    "n": 2, "presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.5, "temperature": 0.5,
    "top_p": 0.5, "top_k": 5, "min_p": 0.5, "seed": 5, "stop": ["stop"], "stop_token_ids": [5], "ignore_eos": True,
    "max_tokens": 5, "min_tokens": 2, "logprobs": 2, "prompt_logprobs": 2, "detokenize": False,
    "skip_special_tokens": False, "include_stop_str_in_output": True, "logit_bias": {"5": 1.0},
    "allowed_token_ids": [5], "bad_words": ["bad"],
}  # fmt: skip


@pytest.mark.parametrize("name", [field.name for field in fields(SamplingParams)])
def test_a_line_may_set_every_sampling_parameter(name: str) -> None:
    value = OTHER_VALUES[name]
    engine = from_stdin(lines({"prompt": "a", "temperature": 0.9, name: value}))
    params = engine.added[0]["params"]
    expected = SamplingParams(**({"temperature": 0.9, "max_tokens": 256} | {name: value}))
    assert params == expected
    assert getattr(params, name) != getattr(SamplingParams(), name)


def test_system_is_the_first_turn_where_there_is_none() -> None:
    own = [{"role": "system", "content": "own"}, {"role": "user", "content": "x"}]
    none = [{"role": "user", "content": "x"}]
    engine = from_stdin(
        lines({"prompt": "p"}, {"messages": own}, {"messages": none}, {"prompt": "r", "raw": True}), "--system", "be"
    )
    assert [added["text"] for added in engine.added] == [
        "<system>be<user>p<assistant>",
        "<system>own<user>x<assistant>",
        "<system>be<user>x<assistant>",
        "r",
    ]


def test_a_model_without_a_template_gets_raw_prompts_and_one_note() -> None:
    result = generate("a", "b", engine=FakeEngine(tokenizer=CharTokenizer(chat_template=None)))
    assert result.engine is not None
    assert [added["prompt"] for added in result.engine.added] == ["a", "b"]
    assert result.stderr.count("note: this model has no chat template") == 1
    quiet = generate("a", "b", "--quiet", engine=FakeEngine(tokenizer=CharTokenizer(chat_template=None)))
    assert quiet.stderr == ""


def test_without_a_template_system_and_messages_are_refused() -> None:
    bare = FakeEngine(tokenizer=CharTokenizer(chat_template=None))
    result = invoke("generate", "a", "--system", "s", engine=bare)
    assert (result.exit_code, "no chat template" in result.error) == (2, True)
    message = lines({"messages": [{"role": "user", "content": "x"}]})
    result = invoke("generate", "--prompts-file", "-", "--quiet", input=message, engine=bare)
    assert (result.exit_code, result.error) == (2, "standard input, line 1: the model has no chat template")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not valid JSON"),
        ('{"prompt": "a"} x', "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ('["a"]', "expected a JSON object"),
        ('{"prompt": "a", "prompt": "b"}', "the key 'prompt' appears twice"),
        ('{"promt": "a"}', "unknown key 'promt'; did you mean 'prompt'?"),
        ('{"prompt": "a", "max_token": 3}', "unknown key 'max_token'; did you mean 'max_tokens'?"),
        ("{}", "exactly one of prompt, messages and prompt_token_ids; got none of them"),
        ('{"prompt": "a", "prompt_token_ids": [1]}', "got prompt and prompt_token_ids"),
        ('{"prompt": ""}', "the prompt is empty"),
        ('{"prompt": 3}', "prompt must be a string; got 3"),
        ('{"messages": []}', "at least one message"),
        ('{"messages": [{"role": "user"}]}', "message 1 must be an object with the strings role and content"),
        ('{"messages": ["hi"]}', "message 1 must be"),
        ('{"messages": [{"role": "user", "content": "a"}], "raw": true}', "messages need the chat template"),
        ('{"prompt_token_ids": []}', "prompt_token_ids is empty"),
        ('{"prompt_token_ids": [1, -1]}', "must be a list of token ids"),
        ('{"prompt_token_ids": [true]}', "must be a list of token ids"),
        ('{"prompt": "a", "raw": 1}', "raw must be true or false; got 1"),
        ('{"prompt": "a", "temperature": -1}', "temperature must be"),
        ('{"prompt": "a", "temperature": NaN}', "temperature must be"),
        ('{"prompt": "a", "n": 2}', "n must be 1 when temperature is 0"),
        ('{"prompt": "a", "min_tokens": 300}', "min_tokens must be at most max_tokens"),
        ('{"prompt": "a", "proposer": "ngrm"}', "unknown proposer 'ngrm'; did you mean 'ngram'?"),
        ('{"prompt": "a", "num_speculative_tokens": 33}', "between 0 and 32; got 33"),
        ('{"prompt":"a"', "Expecting ',' delimiter at column 14"),
        ('{"prompt":', "Expecting value at column 11"),
        ('{"prompt": "a\\ud800"}', "prompt is not valid Unicode at position 1"),
        ('{"messages": [{"role": "user", "content": "\\udfff"}]}', "content of message 1 is not valid Unicode"),
        ('{"prompt": "a", "bad_words": "\\ud800"}', "bad_words must be valid Unicode"),
        ('{"prompt": "a", "stop": ["b", "\\ud800"]}', "stop must be valid Unicode"),
        ('{"prompt": "a", "seed": ' + "9" * 5000 + "}", "Exceeds the limit (4300 digits)"),
    ],
)
def test_a_bad_line_is_refused_by_number(line: str, message: str) -> None:
    error = refused('{"prompt": "fine"}\n\n' + line + '\n{"prompt": "fine"}\n')
    assert error.startswith("standard input, line 3: ")
    assert message in error
    assert "set_int_max_str_digits" not in error


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_an_unfinished_line_is_unfinished_where_it_ends(end: str) -> None:
    assert refused('{"prompt":"a"' + end).endswith("Expecting ',' delimiter at column 14")


def test_options_that_need_a_lines_own_parameters_are_judged_with_them() -> None:
    engine = from_stdin(lines({"prompt": "a", "temperature": 0.5}), "--n=2")
    assert engine.added[0]["params"] == SamplingParams(n=2, temperature=0.5, max_tokens=256)
    both = lines({"prompt": "a", "temperature": 0.5}, {"prompt": "b"})
    assert refused(both, "--n=2").startswith("standard input, line 2: n must be 1 when temperature is 0")
    assert refused(both, "--temperature=-1").startswith("temperature must be")
    assert refused(lines({"prompt": "a", "temperature": 0.5}), "b", "--n=2").startswith("n must be 1")


@pytest.mark.parametrize(
    ("own", "options", "message"),
    [
        ({"num_speculative_tokens": 20}, ["--max-num-batched-tokens=8", "--max-num-seqs=2"], "do not fit"),
        ({"temperature": 1}, ["--verifier=greedy"], "the verifier 'greedy' needs temperature 0"),
    ],
)
def test_a_line_that_the_engine_cannot_serve_is_named(own: dict[str, object], options: list[str], message: str) -> None:
    error = refused(lines({"prompt": "a"}, {"prompt": "b", **own}), *options)
    assert error.startswith("standard input, line 2: ")
    assert message in error


def test_a_bad_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_bytes(b'{"prompt": "a"}\n{"prompt": "\xff"}\n')
    result = invoke("generate", "--prompts-file", str(file))
    assert (result.exit_code, result.error) == (2, f"{file}, line 2: not valid UTF-8 at byte 13")
    missing = invoke("generate", "--prompts-file", str(tmp_path / "none.jsonl"))
    assert (missing.exit_code, missing.error) == (2, f"{tmp_path}/none.jsonl: No such file or directory")


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert invoke("generate", "--prompts-file", str(tmp_path)).error == f"{tmp_path}: Is a directory"
    assert invoke("generate", "--prompts-file", "").error.startswith("--prompts-file needs the name of a file")


@pytest.mark.parametrize("args", [["a\udcff"], ["a", "--system=\udcff"], ["a", "--stop=\udcff"]])
def test_arguments_that_are_no_utf8_are_named(args: list[str]) -> None:
    result = invoke("generate", *args)
    assert (result.exit_code, result.engine) == (2, None)
    assert "valid Unicode" in result.error
    assert result.error.startswith(("prompt ", "--system ", "stop "))


def test_a_byte_order_mark_is_no_part_of_the_first_line() -> None:
    assert from_stdin(b'\xef\xbb\xbf{"prompt": "a"}', "--raw").added[0]["prompt"] == "a"


def test_no_prompt_at_all_is_refused() -> None:
    result = invoke("generate")
    assert result.exit_code == 2
    assert "give a PROMPT" in result.error
    assert "standard input holds no prompts" in refused("\n\n")


def test_an_empty_argument_is_refused_by_number_where_there_are_more() -> None:
    assert invoke("generate", "").error == "the prompt is empty; give at least one character"
    assert invoke("generate", "a", "").error == "prompt 2: the prompt is empty; give at least one character"


def test_what_only_the_engine_can_refuse_names_the_prompt_too() -> None:
    result = invoke("generate", "--raw", "--prompts-file", "-", input=lines({"prompt": "a"}, {"prompt": "b" * 201}))
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.error == "standard input, line 2: the prompt has 201 tokens; the model takes 200"


def test_an_unknown_proposer_is_told_each_known_one_once_and_how_ones_own_is_named() -> None:
    error = refused('{"prompt": "a", "proposer": "ngrm"}')
    known = error.split("(valid: ")[1].split(")")[0].split(", ")
    assert "ngram" in known
    assert len(known) == len(set(known))
    assert "'package.module:Class', in --proposer, --speculative-config or --config" in error
