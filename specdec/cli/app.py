"""The command line's root: its subcommands, its version, and the one place where failures become exit codes."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

import click

from specdec import __version__
from specdec.cli.errors import BAD_INPUT, BROKEN_PIPE, OUTPUT_FAILED, BadInput, say, silence, tell
from specdec.cli.lazy import LazyGroup
from specdec.cli.warned import proposer_warnings

if TYPE_CHECKING:
    from specdec.cli.generate import BuildEngine


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    click.echo(f"specdec {__version__}")
    ctx.exit()


COMMANDS = {
    "generate": ("specdec.cli.generate", "generate"),
    "eval": ("specdec.cli.eval", "evaluate_group"),
    "verify": ("specdec.cli.verify", "verify"),
    "models": ("specdec.cli.models", "models"),
    "bench": ("specdec.cli.bench", "bench"),
    "convert": ("specdec.cli.convert", "convert"),
    "train": ("specdec.cli.train", "train"),
}
"""Each command's module and its name there; imported when it is asked for."""


commands = LazyGroup(
    "specdec",
    COMMANDS,
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


def exit_code(args: list[str], build_engine: BuildEngine | None) -> int:
    """Run the command that `args` name; whatever goes wrong has been said on standard error. Ctrl-C is the caller's."""
    if sys.stdout is None:
        say("error: cannot write the output: standard output is closed")
        return OUTPUT_FAILED
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a character must not end the run.
            stream.reconfigure(errors="replace")
    try:
        with proposer_warnings(), commands.make_context("specdec", args, obj=build_engine) as ctx:
            commands.invoke(ctx)
        sys.stdout.flush()
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        tell(f"{error.format_message()}\n")
        return error.exit_code
    except click.ClickException as error:
        say(f"error: {error.format_message()}{_where_to_look(error)}")
        return error.exit_code
    except BadInput as error:
        say(f"error: {error}")
        return BAD_INPUT
    except OSError as error:
        # Whatever is read is read under `bad_input`: this was a write to standard output.
        silence(sys.stdout)
        if isinstance(error, BrokenPipeError):
            return BROKEN_PIPE
        say(f"error: cannot write the output: {error.strerror or error}")
        return OUTPUT_FAILED
    return 0


def _where_to_look(error: click.ClickException) -> str:
    """Usage errors point at the help of the command that was meant."""
    if isinstance(error, click.UsageError) and error.ctx is not None:
        return f" (see `{error.ctx.command_path} --help`)"
    return ""
