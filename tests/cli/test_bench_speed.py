"""`specdec bench latency`, `throughput` and `curve`, on toys: what they print, and what they refuse."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from specdec.config import EngineConfig
from specdec.engine import Engine
from specdec.eval.bench.fixed_drafts import METHOD
from tests.cli.fake import invoke, run
from tests.eval.helpers import toy_engine, toy_model
from tests.toys import byte_tokenizer, make_engine


@pytest.fixture
def tasks(tmp_path: Path) -> str:
    (tmp_path / "one.jsonl").write_text('{"prompt": "abcabcabc"}\n{"prompt": "defdef"}\n')
    return str(tmp_path)


def built(configs: list[EngineConfig]) -> Callable[[EngineConfig, object], Engine]:
    """Builds a toy with the configuration's proposers, which it notes down."""

    def build(config: EngineConfig, progress: object) -> Engine:
        configs.append(config)
        if not config.speculative:
            return toy_engine(proposer="none")
        (entry,) = config.speculative
        return make_engine(
            toy_model(),
            proposer=entry.method,
            k=entry.num_speculative_tokens,
            settings=entry.settings,
            tokenizer=byte_tokenizer(),
            max_num_batched_tokens=config.max_num_batched_tokens,
        )

    return build


def shown(*args: str) -> tuple[str, list[EngineConfig]]:
    configs: list[EngineConfig] = []
    code, out, err = run(["bench", *args, "--quiet"], built(configs))
    assert (code, err) == (0, "")
    return out, configs


def test_latency_shows_plain_decoding_and_the_proposer_by_length(tasks: str) -> None:
    args = ("latency", "--tasks-dir", tasks, "--prompt-lengths", "5,9", "--rounds", "2", "--max-tokens", "8", "-k", "3")
    out, (config,) = shown(*args)
    assert [(entry.method, entry.num_speculative_tokens) for entry in config.speculative] == [("auto", 3)]
    rows = [line.split() for line in out.splitlines()]
    assert [row[:3] for row in rows[2:6:2]] == [["5", "plain", rows[2][2]], ["9", "plain", rows[4][2]]]
    assert [row[:3] for row in rows[3:7:2]] == [["5", "auto", "3"], ["9", "auto", "3"]]
    (line,) = shown(*args, "--json")[0].splitlines()
    result = json.loads(line)
    assert (result["max_tokens"], result["num_rounds"], len(result["points"])) == (8, 2, 4)
    assert {"median", "low", "high"} == set(result["points"][0]["first_token_ms"])


def test_throughput_shows_rates_by_batch_size(tasks: str) -> None:
    args = ("throughput", "--tasks-dir", tasks, "--batch-sizes", "1,3", "--rounds", "1", "--max-tokens", "6")
    out, configs = shown(*args, "--prompt-length", "7", "--proposer", "none")
    assert configs[0].speculative == ()
    assert [line.split()[:2] for line in out.splitlines()[2:4]] == [["1", "plain"], ["3", "plain"]]
    (line,) = shown(*args, "--prompt-length", "7", "--json")[0].splitlines()
    points = json.loads(line)["points"]
    assert [(each["batch_size"], each["proposer"]) for each in points] == [
        (1, "none"),
        (1, "auto"),
        (3, "none"),
        (3, "auto"),
    ]


def test_the_curve_ends_with_a_line_of_rows_and_times() -> None:
    args = ("curve", "--rows", "3,2", "--context", "20", "--rounds", "2", "--read-mib", "1")
    out, (config,) = shown(*args)
    assert [(entry.method, entry.num_speculative_tokens) for entry in config.speculative] == [(METHOD, 2)]
    lines = out.splitlines()
    assert lines[1].split()[:3] == ["rows", "step", "ms"]
    assert [line.split()[0] for line in lines[2:5]] == ["1", "2", "3"]
    result = json.loads(shown(*args, "--json")[0].splitlines()[-1])
    assert [set(each) for each in result["curve"]] == [{"rows", "ms"}] * 3
    assert [each["rows"] for each in result["curve"]] == [1, 2, 3]
    assert [each["ms"] for each in result["curve"]] == [each["step_ms"]["median"] for each in result["points"]]
    assert result["read_gigabytes_per_s"] > 0


def test_the_curve_goes_up_to_the_limit_that_it_names() -> None:
    out, _ = shown("curve", "--rows", "33", "--context", "20", "--rounds", "1", "--read-mib", "1")
    assert [line.split()[0] for line in out.splitlines()[2:4]] == ["1", "33"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("latency", "--prompt-lengths", "5,x"), "--prompt-lengths must be integers with commas between them"),
        (("latency", "--prompt-lengths", "0"), "--prompt-lengths must be at least 1; got 0"),
        (("latency", "--task", "nosuch"), "unknown task 'nosuch'"),
        (("latency", "--proposer", "nosuch"), "unknown proposer 'nosuch'"),
        (("throughput", "--batch-sizes", "65"), "--batch-sizes 65 is more than the engine's max_num_seqs (64)"),
        (("curve", "--rows", "34"), "--rows must be between 1 and 33; got 34"),
        (("curve", "--dtype", "int3"), "unknown dtype 'int3'"),
    ],
)
def test_bad_input_is_one_line(args: tuple[str, ...], said: str) -> None:
    done = invoke("bench", *args)
    assert done.exit_code == 2
    assert done.error.startswith(said)
    assert done.engine is None


def test_what_the_model_cannot_hold_is_said_once_it_is_there(tasks: str) -> None:
    code, _, err = run(["bench", "latency", "--tasks-dir", tasks, "--prompt-lengths", "250", "--quiet"], built([]))
    assert code == 2
    assert err.startswith("specdec: error: a prompt must have 1 to 192 tokens")
