"""The command line's root: its subcommands, its version, and the one place where failures become exit codes."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from specdec import __version__
from specdec.cli.bench import bench
from specdec.cli.errors import BROKEN_PIPE, INTERRUPTED, say
from specdec.cli.generate import BuildEngine, generate
from specdec.cli.models import models


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    click.echo(f"specdec {__version__}")
    ctx.exit()


commands = click.Group(
    "specdec",
    commands=[generate, models, bench],
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_print_version,
            help="Print the version and exit.",
        )
    ],
    help="An inference engine for language models in which every step verifies a draft.",
    epilog="`specdec COMMAND --help` tells each command's options and their defaults.",
    no_args_is_help=True,
)


def main(args: Sequence[str] | None = None, *, build_engine: BuildEngine | None = None) -> NoReturn:
    """Run the command line and exit with its code.

    `args` None takes the process's own. `build_engine` replaces how `generate` makes its engine from the checked
    configuration: a program that wraps another engine, or a test, gives its own.
    """
    sys.exit(_exit_code(list(sys.argv[1:] if args is None else args), build_engine))


def _exit_code(args: list[str], build_engine: BuildEngine | None) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a character must not end the run.
            stream.reconfigure(errors="replace")
    try:
        with commands.make_context("specdec", args, obj=build_engine) as ctx:
            commands.invoke(ctx)
        sys.stdout.flush()
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        say(f"error: {error.format_message()}{_where_to_look(error)}")
        return error.exit_code
    except KeyboardInterrupt:
        say("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        _silence_stdout()
        return BROKEN_PIPE
    return 0


def _where_to_look(error: click.ClickException) -> str:
    """Usage errors point at the help of the command that was meant."""
    if isinstance(error, click.UsageError) and error.ctx is not None:
        return f" (see `{error.ctx.command_path} --help`)"
    return ""


def _silence_stdout() -> None:
    """Send what is still buffered nowhere, so that the interpreter's own flush at exit stays quiet."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        return
