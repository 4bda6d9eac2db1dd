"""What the commands say when they cannot go on: one line on standard error, and an exit code.

0 all went well; 1 a request failed while running; 2 the input was bad; 130 stopped by Ctrl-C; 141 the reader of the
output went away (`specdec ... | head`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

REQUEST_FAILED = 1
BAD_INPUT = 2
INTERRUPTED = 130
BROKEN_PIPE = 141


class BadInput(click.ClickException):
    """Something the user gave is wrong; the message says what, and what would be right."""

    exit_code = BAD_INPUT


@contextmanager
def bad_input(origin: str = "") -> Iterator[None]:
    """Turn a ValueError or OSError of the body into `BadInput`, led by `origin` (a file and line, or nothing)."""
    try:
        yield
    except BrokenPipeError:
        raise
    except (ValueError, OSError) as error:
        raise BadInput(f"{origin}: {_one_line(error)}" if origin else _one_line(error)) from error


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split())


def say(message: str) -> None:
    """A remark for the person at the terminal, apart from the answers: `specdec: ...` on standard error."""
    click.echo(f"specdec: {message}", err=True)
