"""The surface of the command line is frozen: commands, options and defaults change only together with this table."""

from __future__ import annotations

import resource
import subprocess
import sys
from dataclasses import fields

import click
import pytest

from specdec.cli.app import commands
from specdec.cli.eval import acceptance
from specdec.cli.eval_options import AcceptanceOptions
from specdec.cli.generate import generate
from specdec.cli.options import GenerateOptions
from specdec.cli.train_data import data
from specdec.cli.train_data_options import DataOptions

FLAG = "flag"
OPTIONS = {
    "specdec": {"--version": FLAG},
    "specdec generate": {
        "[PROMPT]...": None,
        "--prompts-file": None,
        "--raw": FLAG,
        "--system": None,
        "--model": "smollm2-135m",
        "--config": None,
        "--dtype": "auto",
        "--quantization": "none",
        "--kv-cache-dtype": "auto",
        "--threads": None,
        "--kernels": "auto",
        "--max-model-len": None,
        "--proposer": "auto",
        "--num-speculative-tokens -k": 4,
        "--draft-model": None,
        "--draft-layers": None,
        "--tree": None,
        "--tree-nodes": None,
        "--tree-width": None,
        "--verifier": "auto",
        "--speculative-config": None,
        "--temperature": 0.0,
        "--top-p": 1.0,
        "--top-k": 0,
        "--min-p": 0.0,
        "--seed": None,
        "--max-tokens": 256,
        "--stop": "repeatable",
        "--ignore-eos": FLAG,
        "--n": 1,
        "--max-num-seqs": 64,
        "--max-num-batched-tokens": 2048,
        "--block-size": 16,
        "--kv-cache-tokens": None,
        "--no-prefix-caching": FLAG,
        "--color": FLAG,
        "--explain-speculation": FLAG,
        "--json": FLAG,
        "--quiet": FLAG,
        "-v": FLAG,
    },
    "specdec verify": {
        "[PROMPT]...": None,
        "--prompts-file": None,
        "--raw": FLAG,
        "--model": "smollm2-135m",
        "--config": None,
        "--dtype": "auto",
        "--quantization": "none",
        "--kv-cache-dtype": "auto",
        "--threads": None,
        "--kernels": "auto",
        "--max-model-len": None,
        "--proposer": "ngram",
        "--num-speculative-tokens -k": 4,
        "--draft-model": None,
        "--draft-layers": None,
        "--tree": None,
        "--tree-nodes": None,
        "--tree-width": None,
        "--verifier": "auto",
        "--speculative-config": None,
        "--temperature": 0.0,
        "--seed": 0,
        "--max-tokens": 32,
        "--draws": 512,
        "--json": FLAG,
        "--quiet": FLAG,
    },
    "specdec eval": {},
    "specdec eval acceptance": {
        "--model": "smollm2-135m",
        "--config": None,
        "--dtype": "auto",
        "--quantization": "none",
        "--kv-cache-dtype": "auto",
        "--threads": None,
        "--kernels": "auto",
        "--proposer": "ngram",
        "--num-speculative-tokens -k": "4",
        "--draft-model": None,
        "--draft-layers": None,
        "--tree": None,
        "--tree-nodes": None,
        "--tree-width": None,
        "--verifier": "auto",
        "--speculative-config": None,
        "--task": "all",
        "--tasks-dir": None,
        "--limit": 5,
        "--temperature": "0",
        "--max-tokens": 128,
        "--seed": 0,
        "--concurrency": 16,
        "--oracle": FLAG,
        "--timing-prompts": 8,
        "--batch-sizes": "1,4,16",
        "--json": None,
        "--html": None,
        "--baseline": None,
        "--record-baseline": None,
        "--quiet": FLAG,
    },
    "specdec eval quality": {
        "--model": "smollm2-135m",
        "--config": None,
        "--threads": None,
        "--kernels": "auto",
        "--max-model-len": None,
        "--precision": "float32,float32/bfloat16,float32/int8,bfloat16,bfloat16/int8,int8,int4,gguf",
        "--text": "repeatable",
        "--task": "all",
        "--tasks-dir": None,
        "--limit": 2,
        "--context": 512,
        "--max-positions": 4096,
        "--json": None,
        "--quiet": FLAG,
    },
    "specdec models": {"--json": FLAG},
    "specdec train": {},
    "specdec train data": {
        "--output -o": None,
        "--prompts": "repeatable",
        "--self-written": 0,
        "--documents": "repeatable",
        "--raw": FLAG,
        "--exclude": "repeatable",
        "--exclude-words": 13,
        "--temperatures": "0,0.7,1",
        "--weights": None,
        "--samples-per-prompt": 1,
        "--most-per-source": None,
        "--max-tokens": 256,
        "--seed": 0,
        "--cache-states": "0",
        "--aux-layers": None,
        "--stop-after": None,
        "--max-total-tokens": None,
        "--shard-jobs": 128,
        "--model": "smollm2-135m",
        "--config": None,
        "--dtype": "bfloat16",
        "--quantization": "none",
        "--kv-cache-dtype": "auto",
        "--threads": None,
        "--kernels": "auto",
        "--max-model-len": 2048,
        "--proposer": "none",
        "--num-speculative-tokens -k": 4,
        "--draft-model": None,
        "--draft-layers": None,
        "--tree": None,
        "--tree-nodes": None,
        "--tree-width": None,
        "--speculative-config": None,
        "--max-num-seqs": 64,
        "--max-num-batched-tokens": 2048,
        "--block-size": 16,
        "--kv-cache-tokens": None,
        "--no-prefix-caching": FLAG,
        "--json": FLAG,
        "--quiet": FLAG,
    },
    "specdec train eagle3": {
        "--model": "smollm2-135m",
        "--data": "repeatable",
        "--output -o": None,
        "--start-from": None,
        "--config": None,
        "--epochs": None,
        "--step-tokens": None,
        "--seed": None,
        "--dtype": None,
        "--device": None,
        "--learning-rate": None,
        "--unrolls": None,
        "--draft-vocab-size": None,
        "--stop-after": None,
        "--threads": None,
        "--json": FLAG,
        "--quiet": FLAG,
    },
    "specdec bench": {},
    "specdec bench overhead": {"--json": FLAG},
    "specdec bench tree": {"--model": "smollm2-135m", "--tree-nodes": 16, "--json": FLAG},
    "specdec bench latency": {
        "--model": "smollm2-135m",
        "--config": None,
        "--dtype": "auto",
        "--quantization": "none",
        "--kv-cache-dtype": "auto",
        "--threads": None,
        "--kernels": "auto",
        "--max-model-len": None,
        "--proposer": "auto",
        "--num-speculative-tokens -k": 4,
        "--draft-model": None,
        "--draft-layers": None,
        "--tree": None,
        "--tree-nodes": None,
        "--tree-width": None,
        "--verifier": "auto",
        "--speculative-config": None,
        "--max-num-seqs": 64,
        "--max-num-batched-tokens": 2048,
        "--block-size": 16,
        "--kv-cache-tokens": None,
        "--no-prefix-caching": FLAG,
        "--prompt-lengths": "16,128,512,1024",
        "--task": "all",
        "--tasks-dir": None,
        "--max-tokens": 64,
        "--rounds": 5,
        "--json": FLAG,
        "--quiet": FLAG,
    },
    "specdec bench throughput": {
        "--model": "smollm2-135m",
        "--config": None,
        "--dtype": "auto",
        "--quantization": "none",
        "--kv-cache-dtype": "auto",
        "--threads": None,
        "--kernels": "auto",
        "--max-model-len": None,
        "--proposer": "auto",
        "--num-speculative-tokens -k": 4,
        "--draft-model": None,
        "--draft-layers": None,
        "--tree": None,
        "--tree-nodes": None,
        "--tree-width": None,
        "--verifier": "auto",
        "--speculative-config": None,
        "--max-num-seqs": 64,
        "--max-num-batched-tokens": 2048,
        "--block-size": 16,
        "--kv-cache-tokens": None,
        "--no-prefix-caching": FLAG,
        "--batch-sizes": "1,2,4,8,16,32,64",
        "--prompt-length": 128,
        "--task": "all",
        "--tasks-dir": None,
        "--max-tokens": 64,
        "--rounds": 3,
        "--json": FLAG,
        "--quiet": FLAG,
    },
    "specdec bench curve": {
        "--model": "smollm2-135m",
        "--config": None,
        "--dtype": "auto",
        "--quantization": "none",
        "--kv-cache-dtype": "auto",
        "--threads": None,
        "--kernels": "auto",
        "--max-model-len": None,
        "--max-num-seqs": 64,
        "--max-num-batched-tokens": 2048,
        "--block-size": 16,
        "--kv-cache-tokens": None,
        "--no-prefix-caching": FLAG,
        "--rows": "1,2,3,4,5,6,8,12,16",
        "--context": 256,
        "--rounds": 20,
        "--read-mib": 512,
        "--json": FLAG,
        "--quiet": FLAG,
    },
    "specdec bench peers": {
        "--model": "smollm2-135m",
        "--config": None,
        "--dtype": "auto",
        "--quantization": "none",
        "--kv-cache-dtype": "auto",
        "--threads": None,
        "--kernels": "auto",
        "--max-model-len": None,
        "--proposer": "auto",
        "--num-speculative-tokens -k": 4,
        "--draft-model": None,
        "--draft-layers": None,
        "--tree": None,
        "--tree-nodes": None,
        "--tree-width": None,
        "--verifier": "auto",
        "--speculative-config": None,
        "--max-num-seqs": 64,
        "--max-num-batched-tokens": 2048,
        "--block-size": 16,
        "--kv-cache-tokens": None,
        "--no-prefix-caching": FLAG,
        "--peer": "repeatable",
        "--peer-model": "repeatable",
        "--peer-option": "repeatable",
        "--peer-threads": None,
        "--timeout": 600,
        "--task": "all",
        "--tasks-dir": None,
        "--limit": 1,
        "--batch-sizes": "1",
        "--max-tokens": 128,
        "--rounds": 1,
        "--json": FLAG,
        "--quiet": FLAG,
    },
    "specdec train medusa": {
        "--model": "smollm2-135m",
        "--data": "repeatable",
        "--output -o": None,
        "--start-from": None,
        "--config": None,
        "--epochs": None,
        "--step-tokens": None,
        "--seed": None,
        "--dtype": None,
        "--device": None,
        "--learning-rate": None,
        "--num-heads": None,
        "--draft-vocab-size": None,
        "--stop-after": None,
        "--threads": None,
        "--json": FLAG,
        "--quiet": FLAG,
    },
    "specdec train draft": {
        "--model": "smollm2-135m",
        "--data": "repeatable",
        "--output -o": None,
        "--start-from": None,
        "--config": None,
        "--epochs": None,
        "--step-tokens": None,
        "--seed": None,
        "--dtype": None,
        "--device": None,
        "--learning-rate": None,
        "--num-layers": None,
        "--loss-vocab-size": None,
        "--stop-after": None,
        "--threads": None,
        "--json": FLAG,
        "--quiet": FLAG,
    },
    "specdec convert": {
        "SOURCE": None,
        "TARGET": None,
        "--to": None,
        "--dtype": None,
        "--force": FLAG,
        "--quiet": FLAG,
    },
}
HEAVY = ("torch", "numpy", "transformers", "tokenizers", "gguf", "yaml", "importlib.metadata")


def surface(command: click.Command, name: str) -> dict[str, dict[str, object]]:
    found = {name: dict(map(describe, command.params))}
    context = click.Context(command)
    for each in command.list_commands(context) if isinstance(command, click.Group) else ():
        child = command.get_command(context, each)
        assert child is not None
        assert child.name == each
        found |= surface(child, f"{name} {each}")
    return found


def describe(param: click.Parameter) -> tuple[str, object]:
    if isinstance(param, click.Argument):
        return param.make_metavar(click.Context(click.Command("x"))), None
    assert isinstance(param, click.Option)
    kind = FLAG if param.is_flag else "repeatable" if param.multiple else None
    default = param.to_info_dict()["default"]
    assert not param.is_flag or default is False
    return " ".join(param.opts), kind or default


def test_options_and_defaults_are_the_table() -> None:
    assert surface(commands, "specdec") == OPTIONS


@pytest.mark.parametrize(
    ("command", "options"), [(generate, GenerateOptions), (acceptance, AcceptanceOptions), (data, DataOptions)]
)
def test_every_option_has_a_help_text_and_a_value_in_the_options_object(command: click.Command, options: type) -> None:
    assert [param.name for param in command.params] == [field.name for field in fields(options)]
    assert all(param.help for param in command.params if isinstance(param, click.Option))


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["--help"],
        ["generate", "--help"],
        ["verify", "--help"],
        ["eval", "--help"],
        ["eval", "acceptance", "--help"],
        ["models", "--help"],
        ["convert", "--help"],
        ["train", "medusa", "--help"],
        ["bench", "--help"],
        ["bench", "latency", "--help"],
        ["bench", "curve", "--help"],
        ["bench", "peers", "--help"],
        ["train", "--help"],
        ["train", "data", "--help"],
        ["train", "eagle3", "--help"],
    ],
)
def test_help_imports_nothing_heavy(args: list[str]) -> None:
    done = python(
        "import sys\nfrom specdec.cli import main\n"
        f"try:\n    main({args})\nexcept SystemExit as exit:\n    code = exit.code\n"
        f"loaded = [name for name in {HEAVY} if name in sys.modules]\n"
        "assert not loaded, loaded\nsys.exit(code)"
    )
    assert done.returncode == (0 if args else 2), done.stderr
    assert "Usage: specdec" in done.stdout + done.stderr


@pytest.mark.parametrize(
    "args", [["--help"], ["generate", "--help"], ["verify", "--help"], ["eval", "acceptance", "--help"]]
)
def test_help_answers_in_time(args: list[str]) -> None:
    """Under 0.3 s of the processor's time, which hardly depends on what else the machine does; the best of three."""
    times = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "specdec", *args], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    assert min(times) < 0.3
