"""`specdec bench peers`: other engines on the same prompts, each in a process of its own, in turns with specdec."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

import click

from specdec.cli.bench_options import (
    Values,
    counts,
    engine_groups,
    integer,
    names,
    number_list,
    output_options,
    task_options,
)
from specdec.cli.bench_speed import Tell, speed_command
from specdec.cli.generate import BuildEngine
from specdec.config import EngineConfig
from specdec.eval.peers.compare import Task, compare
from specdec.eval.peers.contestants import MODULES, Contestant, own, peer
from specdec.eval.peers.standings import standings, standings_table

SHORTEST_ANSWER = 16


def peers_text(values: Values, config: EngineConfig, build: BuildEngine, tell: Tell) -> str:
    """The whole command. No engine is built here: specdec runs in processes of its own, as everybody does."""
    sizes = counts("--batch-sizes", values["batch_sizes"])
    model, prompts = model_and_prompts(values, config, tell)
    contestants = who(values, config, model)
    task = Task(
        prompts=prompts,
        max_tokens=values["max_tokens"],
        batch_sizes=sizes,
        num_rounds=values["rounds"],
        num_threads=values["peer_threads"] or default_threads(),
        timeout_s=values["timeout"],
    )
    entries = compare(contestants, task, tell)
    num_own = len(contestants) - len(values["peer"])
    if not entries[0].taken:
        raise ValueError(f"{entries[0].contestant.label} {'; '.join(entries[0].faults) or 'answered nothing'}")
    result = standings(config.model, task, entries, num_own)
    return json.dumps(asdict(result)) if values["json"] else standings_table(result)


def model_and_prompts(values: Values, config: EngineConfig, tell: Tell) -> tuple[Path, tuple[tuple[int, ...], ...]]:
    """Where the model lies, and the prompts as its tokenizer has them: what everybody is given."""
    from specdec.engine.checkpoints import open_model
    from specdec.eval.prompts import choose, token_ids
    from specdec.eval.tasks import load_tasks
    from specdec.models.hub import resolve

    chosen = choose(load_tasks(names(values["task"]), values["tasks_dir"]), values["limit"] or None)
    _, tokenizer = open_model(config.model, tell)
    return resolve(config.model, tell), tuple(tuple(token_ids(prompt, tokenizer)) for prompt in chosen)


def who(values: Values, config: EngineConfig, model: Path) -> list[Contestant]:
    """specdec plainly and with its first proposer, and then the peers."""
    found = [own("specdec", replace(config, speculative=()))]
    if config.speculative:
        first = config.speculative[0]
        found.append(own(f"specdec {first.method}", replace(config, speculative=(first,))))
    venvs = pairs("--peer", values["peer"])
    models = pairs("--peer-model", values["peer_model"], venvs)
    options: dict[str, dict[str, str]] = {}
    for (label, name), text in option_pairs(values["peer_option"], venvs).items():
        options.setdefault(label, {})[name] = text
    for label, venv in venvs.items():
        own_model = models.get(label, models.get(label.partition(":")[0], str(model)))
        found.append(peer(label, Path(venv).expanduser(), own_model, options.get(label, {})))
    return found


def pairs(option: str, given: tuple[str, ...], known: dict[str, str] | None = None) -> dict[str, str]:
    """NAME=VALUE, each name once; `known` are the names that peers have."""
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (equals and name and value):
            raise ValueError(f"{option} must be NAME=PATH; got {text!r}")
        if name in found:
            raise ValueError(f"{option} has {name} twice; tell two of a kind apart as in {name}:2=PATH")
        if known is not None and name not in known and name not in {each.partition(":")[0] for each in known}:
            raise ValueError(f"{option} is for {name}, which no --peer names")
        found[name] = value
    return found


def option_pairs(given: tuple[str, ...], known: dict[str, str]) -> dict[tuple[str, str], str]:
    """NAME/OPTION=TEXT by name and option."""
    found = {}
    for text in given:
        left, equals, value = text.partition("=")
        label, slash, name = left.rpartition("/")
        if not (equals and slash and label and name):
            raise ValueError(f"--peer-option must be NAME/OPTION=TEXT, as in transformers/dtype=bfloat16; got {text!r}")
        if label not in known:
            raise ValueError(f"--peer-option is for {label}, which no --peer names")
        found[label, name] = value
    return found


def default_threads() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _peer_options() -> tuple[click.Option, ...]:
    return (
        click.Option(
            ["--peer"],
            metavar="NAME=VENV",
            multiple=True,
            help=f"A peer and the virtual environment that it is installed in; may be repeated. {', '.join(MODULES)}, "
            "or a Python file of your own with the same functions as those in specdec/eval/peers. NAME:WORD=VENV is "
            "the same peer once more, for other options.",
        ),
        click.Option(
            ["--peer-model"],
            metavar="NAME=PATH",
            multiple=True,
            help="The model as this peer needs it; may be repeated. Without, it is given what specdec is given.",
        ),
        click.Option(
            ["--peer-option"],
            metavar="NAME/OPTION=TEXT",
            multiple=True,
            help="An option of a peer; may be repeated. dtype (transformers, vllm), prompt_lookup=K (transformers, "
            "llama-cpp, openvino-genai), speculative_config, enforce_eager, kv_cache_gb (vllm), inference_precision "
            "(openvino-genai), precision, how to call that of the weights (openvino-genai, onnxruntime-genai), "
            "pad_token_id (onnxruntime-genai).",
        ),
        click.Option(
            ["--peer-threads"],
            type=click.IntRange(min=1),
            metavar="N",
            show_default="the processors there are",
            help="Threads of every engine, specdec's own too.",
        ),
        integer("--timeout", 600, "Seconds that a peer may take to start, and for a group of prompts."),
    )


peers = speed_command(
    "peers",
    "Other engines beside specdec, on the same prompts.",
    "Run other engines on the same prompts, threads and numbers of tokens, greedy, each in a process of its own and in "
    "turns with specdec (plainly, and with its first proposer). decode is the rate after the first tokens, total has "
    "the prompts' time in it; start is from starting the process to the end of a first short answer; the last columns "
    "are specdec's decoding rate over each one's. Answers go on after the end-of-sequence token. A peer that is not "
    "there or dies is a line, and no failure.",
    peers_text,
    {
        **engine_groups("Model", "Speculation", "Engine"),
        "Peers": _peer_options(),
        "Measuring": (
            *task_options(),
            integer("--limit", 1, "Prompts of each task, evenly over its categories; 0: all.", low=0),
            number_list("--batch-sizes", "B[,B2]", "1", "Prompts that are answered together."),
            integer("--max-tokens", 128, "Tokens of an answer.", low=SHORTEST_ANSWER),
            integer("--rounds", 1, "Times to give everybody each prompt."),
        ),
        "Output": output_options(),
    },
)
