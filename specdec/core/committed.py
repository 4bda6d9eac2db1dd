"""The committed tokens of a sequence: a list that only `commit` and `cut` change.

Whoever is handed a sequence reads them as they are, at any length and without a copy. What others do to the list to
change it fails there and then, so that no proposer's slip becomes a token that nobody verified. Slices and copies are
plain lists.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn


def _refuse(self: object, *_: object, **__: object) -> NoReturn:
    raise TypeError("the committed tokens of a sequence are read-only; change a copy of them, list(sequence.token_ids)")


class CommittedTokens(list[int]):
    """Read-only but for `commit` and `cut`."""

    __slots__ = ()

    append = extend = insert = remove = clear = sort = reverse = _refuse
    pop = _refuse
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse

    def __reduce_ex__(self, _protocol: object) -> tuple[type[list[int]], tuple[list[int]]]:
        """What is copied or pickled is a plain list."""
        return list, (self[:],)


def commit(token_ids: list[int], new: Iterable[int]) -> None:
    """Append verified tokens."""
    list.extend(token_ids, new)


def cut(token_ids: list[int], length: int) -> None:
    """Remove what stands after the first `length` tokens."""
    list.__delitem__(token_ids, slice(length, None))
