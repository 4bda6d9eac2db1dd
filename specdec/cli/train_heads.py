"""`specdec train eagle3`, `medusa`, `draft`: read and check everything, then train, look, and keep the best."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from specdec.cli.bench_options import flag, stop_after
from specdec.cli.bench_speed import telling
from specdec.cli.errors import INTERRUPTED, bad_input
from specdec.cli.eval import command_line
from specdec.cli.generate import GroupedCommand
from specdec.cli.parsing import parse_yaml
from specdec.cli.progress import bar
from specdec.cli.run import interruptible
from specdec.cli.start import import_engine
from specdec.config import MAX_THREADS, EngineConfig
from specdec.train.recipe import DEFAULTS, TrainConfig, changed, read_recipe

if TYPE_CHECKING:
    from specdec.train.held_out import Acceptance
    from specdec.train.loop import Outcome, Progress
    from specdec.train.trainees.base import Trainee

RECIPE_OPTIONS = {
    "epochs": ("run", "Passes over the data."),
    "step_tokens": ("run", "Tokens of a micro-batch, about."),
    "seed": ("run", "Chooses the order of the data and what starts as noise."),
    "dtype": ("run", "Of the products: bfloat16, float32, or auto: bfloat16 where it is fast."),
    "device": ("run", "cpu, cuda, or auto: a GPU if there is one."),
    "learning_rate": ("optimiser", "At its highest."),
}
"""Options that stand for a key of the recipe: its section and help."""

_SAYABLE = "Tokens that it can guess: the target's most frequent."
_COMPARED = "Tokens that laws are compared over: the target's most frequent."
OWN_OPTIONS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "eagle3": {
        "unrolls": ("eagle3", "How many tokens in a row the head learns to guess, 1 to 7."),
        "draft_vocab_size": ("eagle3", _SAYABLE),
    },
    "medusa": {
        "num_heads": ("medusa", "Heads, and so the most tokens that they guess."),
        "draft_vocab_size": ("medusa", _SAYABLE),
    },
    "draft": {
        "num_layers": ("draft", "The target's first layers that it consists of."),
        "loss_vocab_size": ("draft", _COMPARED),
    },
}
"""The same of one trainee alone."""

HELP = {
    "eagle3": (
        "Train an EAGLE-3 head.",
        "Train an EAGLE-3 head on the target's own answers and states: a layer that guesses the next tokens from what "
        "the target computed.",
    ),
    "medusa": (
        "Train Medusa heads.",
        "Train Medusa heads on the target's own answers and states: each guesses one more token ahead from the "
        "target's last state.",
    ),
    "draft": (
        "Train a small draft model.",
        "Train the target's first layers to say what all of it says: a draft model, as a Hugging Face directory.",
    ),
}
"""By trainee: short and long."""

EPILOG = """\b
DIR holds head/ (the best head so far, which --draft-model takes), last.pt and
best.pt with a .json beside each that says what they are made of, and curve.svg.
The same command goes on where it was stopped or killed, to the same bits as a
run in one sitting. --config FILE holds every hyperparameter; options win over it.

\b
Exit codes: 0 all well, the time being over included; 2 bad input; 130 stopped
by Ctrl-C, what was done being kept.
"""


def recipe_options(trainee: str) -> Mapping[str, tuple[str, str]]:
    """All of a trainee's."""
    return {**RECIPE_OPTIONS, **OWN_OPTIONS[trainee]}


def _recipe_option(trainee: str, name: str, meaning: tuple[str, str]) -> click.Option:
    section, help = meaning
    default = getattr(getattr(DEFAULTS[trainee], section), name)
    flag_name, kind = "--" + name.replace("_", "-"), type(default)
    metavar = {int: "N", float: "X", str: "NAME"}[kind]
    return click.Option([flag_name], type=kind, metavar=metavar, help=f"{help}  [default: {default}]")


def _path(*names: str, help: str, required: bool = False, folder: bool = False, multiple: bool = False) -> click.Option:
    kind = click.Path(exists=not folder, file_okay=not folder, dir_okay=folder, path_type=Path)
    metavar = "DIR" if folder else "FILE"
    return click.Option(names, type=kind, metavar=metavar, required=required, help=help, multiple=multiple)


def _groups(trainee: str) -> dict[str, tuple[click.Option, ...]]:
    """Heading -> options, in the order of `--help`."""
    model = click.Option(
        ["--model"],
        metavar="MODEL",
        default=EngineConfig.model,
        show_default=True,
        help="The target: what made the data.",
    )
    threads = click.Option(
        ["--threads"],
        type=click.IntRange(1, MAX_THREADS),
        metavar="N",
        show_default="torch's own, one a core",
        help="Threads of the products. Where a core is busy with something else, fewer are faster.",
    )
    return {
        "Data": (
            model,
            _path(
                "--data",
                help="Training data, from `specdec train data`. May be repeated.",
                required=True,
                folder=True,
                multiple=True,
            ),
            _path("--output", "-o", help="Where the head and its checkpoints go.", required=True, folder=True),
            _path(
                "--start-from",
                help="Begin with the weights of another run's checkpoint. Its vocabulary is kept; a larger one adds to "
                "it.",
            ),
        ),
        "Recipe": (
            _path("--config", help="A YAML file with the recipe."),
            *(_recipe_option(trainee, name, meaning) for name, meaning in recipe_options(trainee).items()),
            stop_after("Write a checkpoint and stop then; the same command goes on."),
            threads,
        ),
        "Output": (
            flag("--json", "One JSON object on one line at the end."),
            flag("--quiet", "No progress on standard error."),
        ),
    }


def _command(trainee: str) -> GroupedCommand:
    groups = _groups(trainee)
    short, long = HELP[trainee]
    command = GroupedCommand(
        trainee,
        params=[option for options in groups.values() for option in options],
        callback=_callback,
        short_help=short,
        help=long,
        epilog=EPILOG,
    )
    command.groups = groups
    return command


@click.pass_context
def _callback(ctx: click.Context, /, **values: Any) -> None:
    given = {name for name in values if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    assert ctx.info_name is not None
    ctx.exit(run_training(ctx.info_name, values, given, command_line(ctx, given)))


def recipe(trainee: str, path: Path | None, options: Mapping[str, Any]) -> TrainConfig:
    """The file's recipe with what the command line says. ValueError names the file or the option."""
    config = DEFAULTS[trainee]
    if path is not None:
        try:
            values = parse_yaml(path.read_bytes())
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        if not isinstance(values, Mapping):
            raise ValueError(f"{path}: expected sections such as `run:` with keys and values")
        config = read_recipe(values, str(path), trainee)
    for name, (section, _) in recipe_options(trainee).items():
        if options[name] is not None:
            config = changed(config, {section: {name: options[name]}}, f"--{name.replace('_', '-')}")
    return config


def run_training(name: str, options: Mapping[str, Any], given: set[str], command: str) -> int:
    """The whole command; returns the exit code."""
    with bad_input(), telling(options["quiet"]) as tell, interruptible() as stopped:
        config = recipe(name, options["config"], options)
        if options["output"].resolve() in [directory.resolve() for directory in options["data"]]:
            raise ValueError(f"{options['output']} holds the data: give --output another directory")
        import_engine()
        import torch

        if options["threads"] is not None:
            torch.set_num_threads(options["threads"])
        from specdec.train.loop import Loop, Sitting
        from specdec.train.setting import eagle3, open_setting
        from specdec.train.setting_small import draft, medusa

        engine = EngineConfig(model=options["model"], dtype="bfloat16")
        layers = config.eagle3.aux_layers if name == "eagle3" else ()
        setting = open_setting(options["data"], engine, config, layers, tell)
        trainees: Mapping[str, Callable[..., Trainee[Any, Any]]] = {"eagle3": eagle3, "medusa": medusa, "draft": draft}
        trainee = trainees[name](setting, config, options["start_from"], tell)
        minutes = options["stop_after"]
        sitting = Sitting(
            directory=options["output"],
            command=command,
            stop_after=None if minutes is None else 60 * minutes,
            tell=lambda progress: tell(progress_text(progress)),
            stopped=stopped,
        )
        outcome = Loop(trainee, setting.data, config, setting.identity, sitting, options["start_from"]).run()
    _report(outcome, options["output"], options["json"])
    return INTERRUPTED if outcome.ended == "stopped" else 0


def progress_text(progress: Progress) -> str:
    """One line: how far, how fast, the loss, and the held-out acceptance by position."""
    done = f"{bar(progress.step / progress.num_steps)} step {progress.step}/{progress.num_steps}"
    losses = " ".join(f"{each:.2f}" for each in progress.divergences)
    held_out = "" if progress.acceptance is None else f", held-out {_shares(progress.acceptance)}"
    return f"{done}, {progress.tokens_per_second:,.0f} tokens/s, KL {losses}{held_out}"


def _shares(found: Acceptance) -> str:
    shares = " ".join(f"{each:.2f}" for each in found.conditional)
    return f"acceptance {shares}, mean length {found.mean_length:.2f}"


def _report(outcome: Outcome, output: Path, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(asdict(outcome)))
        return
    ended = {
        "finished": "trained to the end",
        "time": "the time is over; the same command goes on",
        "stopped": "stopped by Ctrl-C; the same command goes on",
    }[outcome.ended]
    click.echo(f"step {outcome.step} of {outcome.num_steps}, {outcome.tokens:,} tokens seen; {ended}")
    if outcome.best is not None:
        where = "held-out" if outcome.num_held_out else "no sample is held out; on some it was trained on,"
        click.echo(f"{output / 'head'}: {where} {_shares(outcome.best)} with drafts of 4")


eagle3 = _command("eagle3")
medusa = _command("medusa")
draft = _command("draft")
