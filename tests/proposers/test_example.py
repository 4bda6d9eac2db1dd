"""The README's proposer from outside, in engines: it costs no token, and it drafts well where its phrases occur."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from specdec.proposers.base import ProposalInput, Wants
from specdec.types import SamplingParams, SpeculationParams
from tests.proposers.helpers import EXAMPLE
from tests.toys import BYTE_VOCABULARY, ScriptedModel, byte_tokenizer, generate, make_engine, random_script, tokens

EXAMPLES = Path(__file__).parents[2] / "examples"
TEXT = b"Dear Ann, thank you for your letter. We will write again. "
PHRASES = ["thank you for your letter", "We will write"]
SETTINGS = {"phrases": PHRASES}
PROMPTS = ["Dear ", "x", "Dear Ann, thank"]


def letter_writer() -> ScriptedModel:
    """Mostly writes `TEXT`, going by position."""
    noise = random_script(BYTE_VOCABULARY)

    def script(prefix: tuple[int, ...]) -> np.ndarray:
        logits = np.array(noise(prefix))
        logits[TEXT[len(prefix) % len(TEXT)]] += 16.0
        return logits

    return ScriptedModel(script, BYTE_VOCABULARY)


@pytest.mark.parametrize("k", [1, 4, 12])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_tokens_are_those_of_plain_decoding_and_drafts_are_accepted(k: int, temperature: float) -> None:
    params = SamplingParams(temperature=temperature, max_tokens=100, seed=7)
    options = {"tokenizer": byte_tokenizer(), "verifier": "coupled"}
    plain = generate(make_engine(letter_writer(), **options), PROMPTS, params)
    drafted = generate(
        make_engine(letter_writer(), proposer=EXAMPLE, k=k, settings=SETTINGS, **options), PROMPTS, params
    )
    assert tokens(drafted) == tokens(plain)
    for output in drafted:
        (sample,) = output.outputs
        assert output.proposer == EXAMPLE
        assert sample.provenance.count(EXAMPLE) == sample.speculation.num_accepted_tokens > 10
        assert sample.speculation.acceptance_rate > 0.5


def test_one_request_takes_it_and_another_does_not() -> None:
    engine = make_engine(letter_writer(), proposer=EXAMPLE, settings=SETTINGS, tokenizer=byte_tokenizer())
    params = SamplingParams(temperature=0, max_tokens=60)
    for i, name in enumerate((EXAMPLE, "none")):
        engine.add_request(str(i), "Dear ", params, speculation=SpeculationParams(name))
    finished = {}
    while engine.has_unfinished_requests():
        finished |= {output.request_id: output for output in engine.step()}
    assert [finished[i].outputs[0].speculation.num_drafts > 0 for i in "01"] == [True, False]
    with pytest.raises(ValueError, match="unknown proposer of this engine 'phrases_proposer:Phrases'"):
        engine.add_request("2", "Dear ", params, speculation=SpeculationParams("phrases_proposer:Phrases"))


def test_without_a_tokenizer_it_is_one_line() -> None:
    with pytest.raises(ValueError, match="the proposer 'phrases_proposer:PhrasesProposer' cannot be built: Attr"):
        make_engine(letter_writer(), proposer=EXAMPLE, settings=SETTINGS)


def test_states_that_the_model_does_not_have_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from phrases_proposer import PhrasesProposer

    def build(*layers: int) -> None:
        monkeypatch.setattr(PhrasesProposer, "wants", Wants(aux_layers=layers))
        make_engine(letter_writer(), proposer=EXAMPLE, settings=SETTINGS, tokenizer=byte_tokenizer())

    build(0, 1)
    for layer in (-1, 2):
        with pytest.raises(ValueError, match=f"wants the states before layer {layer}; the model's layers are 0 to 0, "):
            build(0, layer)


def test_one_that_fails_costs_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    from phrases_proposer import PhrasesProposer

    params = SamplingParams(temperature=0, max_tokens=40)
    plain = generate(make_engine(letter_writer(), tokenizer=byte_tokenizer()), PROMPTS, params)
    engine = make_engine(letter_writer(), proposer=EXAMPLE, settings=SETTINGS, tokenizer=byte_tokenizer())

    def fail(self: PhrasesProposer, sequences: object, inp: ProposalInput) -> None:
        raise RuntimeError("no idea")

    monkeypatch.setattr(PhrasesProposer, "propose", fail)
    monkeypatch.setattr(PhrasesProposer, "forget", fail)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert tokens(generate(engine, PROMPTS, params)) == tokens(plain)
    assert "gives no draft this step: RuntimeError: no idea" in str(told[0].message)


@pytest.mark.model
@pytest.mark.slow
def test_the_command_line_finds_it_by_pythonpath() -> None:
    """As the README shows it, beside plain decoding."""
    config = {
        "method": EXAMPLE,
        "num_speculative_tokens": 8,
        "phrases": ["I hope this message finds you well. I am writing to express my gratitude for"],
    }
    lines = [
        {"prompt": "Write a short email that thanks Anna for her help.", "proposer": name} for name in (EXAMPLE, "none")
    ]
    path = os.pathsep.join([str(EXAMPLES), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "specdec", "generate", "--json", "--max-tokens=32", "--prompts-file=-",
         "--speculative-config", json.dumps(config)],
        input="\n".join(map(json.dumps, lines)), capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    drafted, plain = (json.loads(line) for line in done.stdout.splitlines())
    assert drafted["outputs"] == plain["outputs"]
    assert drafted["speculation"]["num_accepted_tokens"] > 5
    assert plain["speculation"]["num_drafts"] == 0
