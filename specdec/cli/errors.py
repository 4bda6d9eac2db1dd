"""What the commands say when they cannot go on: one line on standard error, and an exit code.

0 all went well; 1 a request failed while running, or the output could not be written; 2 the input was bad; 130 stopped
by Ctrl-C; 141 the reader of the output went away (`specdec ... | head`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

REQUEST_FAILED = OUTPUT_FAILED = 1
BAD_INPUT = 2
INTERRUPTED = 130
BROKEN_PIPE = 141


class BadInput(Exception):
    """Something the user gave is wrong; the message says what, and what would be right."""


@contextmanager
def bad_input(origin: str = "") -> Iterator[None]:
    """Turn a ValueError or OSError of the body into `BadInput`, led by `origin` (a file and line, or nothing)."""
    try:
        yield
    except RecursionError as error:
        raise BadInput(led_by(origin, "the input is nested too deeply")) from error
    except (ValueError, OSError) as error:
        raise BadInput(led_by(origin, _one_line(error))) from error


def led_by(origin: str, message: str) -> str:
    """`message` as one about `origin`, which may be nothing."""
    return f"{origin}: {message}" if origin else message


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return led_by(str(error.filename or ""), error.strerror)
    # Python's own advice on long numbers is for programs, not for the command line.
    text = str(error).replace("; use sys.set_int_max_str_digits() to increase the limit", "")
    return " ".join(text.split())


def say(message: str) -> None:
    """A remark for the person at the terminal, apart from the answers: `specdec: ...` on standard error."""
    tell(f"specdec: {message}\n")


def tell(text: str) -> None:
    """Write `text` to standard error as it is. Where that is closed or fails, remarks are lost, and never answers."""
    if sys.stderr is None:
        return
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        silence(sys.stderr)


def silence(stream: TextIO) -> None:
    """Send what is still buffered nowhere, so that the interpreter's own flush at exit stays quiet."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    except (OSError, ValueError):
        return
