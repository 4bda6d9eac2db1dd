"""The engine is whole, or it is being changed: what is cut off in between is made whole before anybody goes on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager


class Change(AbstractContextManager[None]):
    """A `with` block in which an engine changes. If it does not come to its end, for an exception or for a signal that
    arrives anywhere in it, `recover` is called: at once, and if that is cut off too, by the next block."""

    def __init__(self, recover: Callable[[], None]) -> None:
        self._recover = recover
        self._is_whole = True

    def __enter__(self) -> None:
        if not self._is_whole:
            self._recover()
        self._is_whole = False

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self._recover()
        self._is_whole = True
