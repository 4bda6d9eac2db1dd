"""What `specdec verify` prints, its verdict, and with which exit code it ends."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from specdec.cli.verify import DEFAULT_PROMPTS
from specdec.cli.verify import verify as verify_command
from specdec.cli.verify_options import VerifyOptions
from specdec.config import EngineConfig
from specdec.engine import Engine, TargetFacts
from specdec.engine.build import assemble
from specdec.proposers.base import DraftModel
from specdec.sampling import rejection
from specdec.tokenizer import Tokenizer
from tests.cli import fake
from tests.engine.test_draft_files import save
from tests.sampling.wrong import recover_from_next_row
from tests.toys import BYTE_VOCABULARY, EOS, ScriptedModel, byte_tokenizer, looping_script

IDS = ("--prompts-file=-",)
LINES = "\n".join(json.dumps({"prompt_token_ids": ids}) for ids in ([1, 2, 3, 4], [5, 6, 5, 6, 5], [7] * 6, [8, 9]))
SHORT = ("--max-tokens=16", "--draws=96", "-k3")


@pytest.fixture
def built() -> list[EngineConfig]:
    return []


Build = Callable[[EngineConfig, object], Engine]


def builder(built: list[EngineConfig], vocab_size: int = 13, tokenizer: Tokenizer | None = None) -> Build:
    """Engines around a scripted model and its draft, all of them the same."""
    target = ScriptedModel(looping_script(vocab_size, 5), vocab_size)
    draft = DraftModel(ScriptedModel(looping_script(vocab_size, 5, salt=1), vocab_size), vocab_size, 256)

    def build(config: EngineConfig, progress: object) -> Engine:
        built.append(config)
        drafts = {"draft": draft} if any(entry.method == "draft" for entry in config.speculative) else {}
        facts = TargetFacts(vocab_size, 256, frozenset({EOS} if tokenizer else ()))
        return assemble(config, target, facts, tokenizer, draft_models=drafts)

    return build


def verify(build: Build, *args: str, input: str | None = LINES) -> tuple[int, str, str]:
    return fake.run(["verify", *SHORT, *args], build, input)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (
            ("--proposer=suffix", "--verifier=greedy"),
            ("greedy equality", "greedy verification gives plain decoding's tokens on 4 prompts"),
        ),
        (("--proposer=ngram", "--verifier=coupled", "--temperature=1"), ("coupled equality",)),
        (
            ("--draft-layers=1", "--temperature=1"),
            ("law", "draft law", "acceptance", "proposer KV", "error level of 0.001"),
        ),
        (
            ("--draft-layers=1", "--temperature=0.7", "--verifier=block"),
            ("law", "recovered", "block verification keeps"),
        ),
    ],
)
def test_a_right_engine_is_verified(args: tuple[str, ...], words: tuple[str, ...], built: list[EngineConfig]) -> None:
    code, out, errors = verify(builder(built), *IDS, *args)
    assert code == 0, (out, errors)
    lines = out.splitlines()
    assert lines[-1].startswith("specdec: verified: ")
    assert all(word in out for word in words)
    assert "  not run: " in out
    assert lines[0].startswith("smollm2-135m, proposer ")
    assert "target KV          passed" in out
    assert all(line.startswith("specdec: ") for line in errors.splitlines())
    assert errors


def test_json_is_one_object_and_the_verdict_is_on_standard_error(built: list[EngineConfig]) -> None:
    code, out, errors = verify(builder(built), *IDS, "--proposer=suffix", "--json", "--quiet")
    assert code == 0
    found: dict[str, Any] = json.loads(out)
    assert found["verified"] is True
    assert errors == f"specdec: {found['verdict']}\n"
    assert (found["proposer"], found["num_speculative_tokens"], found["temperature"]) == ("suffix", 3, 0.0)
    assert found["num_prompts"] == 4
    assert [check["name"] for check in found["checks"]] == ["greedy equality", "target KV", "draft positions"]
    for check in found["checks"]:
        assert check["status"] == "passed"
        assert check["faults"] == []
        assert check["figures"]
    assert found["seconds"] > 0
    assert found["interrupted"] is False


def test_a_fault_is_the_verdict_and_exit_code_1(built: list[EngineConfig], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejection, "emission_logits", recover_from_next_row)
    args = (*IDS, "--draft-layers=1", "--temperature=1", "--draws=192", "--quiet")
    code, out, errors = verify(builder(built), *args)
    assert (code, errors) == (1, "")
    assert out.splitlines()[-1].startswith("specdec: NOT lossless: recovered: ")
    assert "recovered          failed" in out
    code, out, _ = verify(builder(built), *args, "--json")
    assert code == 1
    assert json.loads(out)["verified"] is False


def test_nothing_drafted_is_not_verified(built: list[EngineConfig]) -> None:
    code, out, _ = verify(builder(built), *IDS, "--max-tokens=2", "--proposer=ngram", "--quiet")
    assert code == 1
    assert "NOT verified: greedy equality: no draft was verified" in out.splitlines()[-1]


def test_only_the_first_proposer_is_loaded_and_verified(built: list[EngineConfig]) -> None:
    both = '[{"method": "suffix", "num_speculative_tokens": 2}, {"method": "ngram"}]'
    code, out, _ = fake.run(
        ["verify", "--max-tokens=8", *IDS, "--speculative-config", both, "--json"], builder(built), LINES
    )
    assert code == 0
    assert json.loads(out)["proposer"] == "suffix"
    assert {tuple(entry.method for entry in config.speculative) for config in built} <= {("suffix",), ()}


def test_auto_is_verified_with_all_that_it_chooses_from(built: list[EngineConfig]) -> None:
    """In the law's large batch too, where drafts do not pay on many machines."""
    args = (*IDS, "--proposer=auto", "--draft-layers=1", "--temperature=1", "--quiet")
    code, out, errors = verify(builder(built), *args)
    assert (code, errors) == (0, ""), out
    assert "choices            passed  by chance (seed 0), not by what pays: ngram " in out
    assert [entry.method for entry in built[0].speculative] == ["auto", "draft"]
    code, out, _ = verify(builder(built), *args, "--json", "--seed=1")
    (choices,) = [check for check in json.loads(out)["checks"] if check["name"] == "choices"]
    assert min(choices["figures"]["num_drafts"].values()) > 0
    assert choices["figures"]["seed"] == 1
    both = '[{"method": "auto", "proposers": ["suffix"]}, {"method": "ngram"}, {"method": "suffix"}]'
    built.clear()
    code, out, errors = fake.run(
        ["verify", "--max-tokens=8", *IDS, "--speculative-config", both], builder(built), LINES
    )
    assert code == 0, (out, errors)
    assert [entry.method for entry in built[0].speculative] == ["auto", "suffix"]


def test_texts_go_through_the_tokenizer_and_there_are_default_prompts(built: list[EngineConfig]) -> None:
    build = builder(built, BYTE_VOCABULARY, byte_tokenizer())
    args = ("--proposer=suffix", "--json", "--max-tokens=6")
    code, out, errors = fake.run(["verify", *args, "hello", "abcabc"], build)
    assert code == 0, errors
    assert json.loads(out)["num_prompts"] == 2
    code, out, errors = fake.run(["verify", *args], build)
    assert code == 0, errors
    assert json.loads(out)["num_prompts"] == len(DEFAULT_PROMPTS) == 4


def test_a_model_directory_is_loaded_once(tmp_path: Path) -> None:
    folder = save(tmp_path, layers=3)
    args = [
        "verify",
        "--model",
        str(folder),
        "--draft-layers=2",
        "--dtype=float64",
        "--json",
        "--max-tokens=8",
        "hello",
    ]
    code, out, errors = fake.run([*args, "aaaaaaa bbbbb"], None)
    assert code == 0, (out, errors)
    found = json.loads(out)
    assert found["verified"]
    assert found["checks"][1]["figures"]["largest_relative_difference"] < 1e-9
    code, out, errors = fake.run([*args, "--temperature=1", "--draws=64"], None)
    assert code == 0, (out, errors)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--proposer=none",), "without a proposer there is nothing to verify"),
        (("--verifier=typical", "--temperature=1"), "the verifier 'typical' is lossy"),
        (("--verifier=greedy", "--temperature=1"), "needs temperature 0"),
        (("--temperature=-1",), "temperature must be a number at least 0"),
        (("--max-tokens=0",), "max_tokens must be an integer, at least 1"),
        (("--draws=10", "--temperature=1"), "the number of draws must be at least 40"),
        (("--proposer=gram",), "unknown proposer 'gram'; did you mean 'ngram'?"),
        (("--draft-layers=1", "--proposer=ngram"), "--draft-layers contradicts --proposer ngram"),
        (("--seed=99999999999999999999999",), "seed must be"),
        (("",), "the prompt is empty; give at least one character"),
        (("--prompts-file=no.jsonl",), "no.jsonl: No such file"),
        (("--nonsense",), "--nonsense"),
    ],
)
def test_bad_input_is_one_line_before_any_model_work(
    args: tuple[str, ...], message: str, built: list[EngineConfig]
) -> None:
    code, out, errors = verify(builder(built), *args)
    assert (code, out, built) == (2, "", [])
    (line,) = errors.splitlines()
    assert line.startswith("specdec: error: ")
    assert message in line


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"prompt_token_ids": [1, 2], "temperature": 0.5}, "line 1: verify samples every prompt alike"),
        ({"prompt_token_ids": [1, 2], "temperature": 1}, "and raw, but not temperature"),
        ({"prompt_token_ids": [1, 2], "seed": None, "proposer": None}, "and raw, but not seed or proposer"),
        ({"prompt_token_ids": [1, 2], "proposer": "ngram"}, "line 1: verify samples every prompt alike"),
        ({"prompt_token_ids": [1, 99]}, "line 1: prompt_token_ids: 99 is outside the vocabulary"),
        ({"prompt_token_ids": [1] * 256}, "line 1: the prompt has 256 tokens; with at least one new token the model"),
        ({"prompt": "hello"}, "line 1: this model has no tokenizer; give prompt_token_ids"),
    ],
)
def test_a_bad_prompt_is_named(line: dict[str, Any], message: str, built: list[EngineConfig]) -> None:
    code, out, errors = verify(builder(built), *IDS, "--quiet", input=json.dumps(line))
    assert (code, out) == (2, "")
    assert message in errors
    assert len(errors.splitlines()) == 1


@pytest.fixture
def _default_handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_default_handler")
@pytest.mark.parametrize("as_json", [False, True])
def test_ctrl_c_prints_what_was_found(
    as_json: bool, built: list[EngineConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here in the middle of the KV check, which comes after the law test."""
    step = Engine.step

    def interrupted(self: Engine) -> list[Any]:
        if not self.config.enable_prefix_caching:
            os.kill(os.getpid(), signal.SIGINT)
        return step(self)

    monkeypatch.setattr(Engine, "step", interrupted)
    flags = ("--json",) if as_json else ()
    code, out, errors = verify(builder(built), *IDS, "--draft-layers=1", "--temperature=1", *flags)
    assert code == 130
    if as_json:
        found = json.loads(out)
        assert found["interrupted"]
        assert not found["verified"]
        assert found["checks"][-1]["name"] == "law"
    else:
        assert "law                passed" in out
        assert out.splitlines()[-1].startswith("specdec: interrupted: ")
    assert "Traceback" not in errors


def test_options_have_a_help_text_and_a_value_in_the_options_object() -> None:
    assert [param.name for param in verify_command.params] == list(VerifyOptions.__dataclass_fields__)
    assert all(param.help for param in verify_command.params if isinstance(param, click.Option))
    code, out, _ = fake.run(["verify", "--help"], None)
    assert code == 0
    assert "Exit codes: 0 verified; 1 not lossless" in out
    assert "[default: 512]" in out


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.parametrize("cache", ["auto", "int8"])
def test_the_default_model_is_verified(cache: str) -> None:
    args = ["verify", "--max-tokens=12", "--json", "Repeat three times: one two three four five six seven."]
    args += ["--kv-cache-dtype", cache]
    code, out, errors = fake.run(args, None)
    assert code == 0, (out, errors)
    greedy, kv, _ = json.loads(out)["checks"]
    assert greedy["figures"]["num_draft_tokens"] > 0
    assert 0 <= kv["figures"]["largest_relative_difference"] < 1e-4
