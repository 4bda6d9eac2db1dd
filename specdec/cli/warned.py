"""A proposer's warnings as a person at the terminal is told them: a line of their own, and each kind once."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from specdec.cli.errors import say
from specdec.types import ProposerWarning


@contextmanager
def proposer_warnings(*, hold: bool = False) -> Iterator[None]:
    """Say the warnings of the `with` block; with `hold` at its end, where a line may be half written before."""
    told: dict[tuple[str, ...], str] = {}

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if not isinstance(message, ProposerWarning):
            plain(message, category, filename, lineno, file, line)
        elif message.kind not in told:
            told[message.kind] = f"warning: {message}"
            if not hold:
                say(told[message.kind])

    with warnings.catch_warnings():
        warnings.simplefilter("always", ProposerWarning)
        plain, warnings.showwarning = warnings.showwarning, show
        try:
            yield
        finally:
            for text in told.values() if hold else ():
                say(text)
