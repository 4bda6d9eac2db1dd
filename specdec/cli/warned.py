"""A proposer's warnings as a person at the terminal is told them: a line of their own, and each kind once."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from specdec.cli.errors import say
from specdec.types import ProposerWarning

Show = Callable[[Warning | str, type[Warning], str, int, TextIO | None, str | None], None]
"""`warnings.showwarning`."""


class _Teller:
    """What shows warnings in a block: a proposer's own way, others as `plain` does."""

    def __init__(self, plain: Show, hold: bool) -> None:
        self._plain = plain
        self._hold = hold
        self._held: list[str] = []
        self._told: set[tuple[str, ...]] = plain._told if isinstance(plain, _Teller) else set()

    def __call__(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if not isinstance(message, ProposerWarning):
            self._plain(message, category, filename, lineno, file, line)
        elif message.kind not in self._told:
            self._told.add(message.kind)
            self._held.append(f"warning: {message}")
            if not self._hold:
                self.release()

    def release(self) -> None:
        """Say what is held."""
        for text in self._held:
            say(text)
        self._held.clear()


@contextmanager
def proposer_warnings(*, hold: bool = False) -> Iterator[None]:
    """Say the warnings of the `with` block; with `hold` at its end, where a line may be half written before.

    A block within another says nothing that the other has said, as when a proposer failed while its engine was built.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("always", ProposerWarning)
        teller = _Teller(warnings.showwarning, hold)
        warnings.showwarning = teller
        try:
            yield
        finally:
            teller.release()
