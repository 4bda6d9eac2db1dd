"""Committed tokens: read as any list, changed by `specdec.core` alone."""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Callable

import numpy as np
import pytest
import torch

from specdec.core.committed import CommittedTokens, commit, cut

CHANGES: dict[str, Callable[[list[int]], object]] = {
    "append": lambda ids: ids.append(1),
    "extend": lambda ids: ids.extend([1, 2]),
    "insert": lambda ids: ids.insert(0, 1),
    "remove": lambda ids: ids.remove(3),
    "pop": lambda ids: ids.pop(),
    "clear": lambda ids: ids.clear(),
    "sort": lambda ids: ids.sort(),
    "reverse": lambda ids: ids.reverse(),
    "overwrite": lambda ids: ids.__setitem__(0, 9),
    "overwrite a slice": lambda ids: ids.__setitem__(slice(0, 2), [9]),
    "delete": lambda ids: ids.__delitem__(0),
    "+=": lambda ids: ids.__iadd__([1]),
    "*=": lambda ids: ids.__imul__(2),
    "shuffle": lambda ids: random.Random(0).shuffle(ids),
}


def test_every_method_that_changes_a_list_is_tried() -> None:
    reading = {
        "copy",
        "count",
        "index",
        "__add__",
        "__mul__",
        "__rmul__",
        "__getitem__",
        "__contains__",
        "__reversed__",
    }
    own = {name for name, value in vars(list).items() if callable(value)} - set(vars(object)) - reading
    changing = own - {"__len__", "__iter__", "__class_getitem__", "__sizeof__"}
    assert changing <= set(vars(CommittedTokens))


@pytest.mark.parametrize("how", CHANGES)
def test_nobody_else_changes_them(how: str) -> None:
    ids = CommittedTokens([5, 3, 4])
    with pytest.raises(TypeError, match="read-only; change a copy of them"):
        CHANGES[how](ids)
    assert ids == [5, 3, 4]


def test_they_are_read_as_a_list_and_copies_are_free() -> None:
    ids = CommittedTokens([5, 3, 4])
    assert torch.tensor(ids).tolist() == np.array(ids).tolist() == [5, 3, 4]
    for own in (
        ids[:],
        ids.copy(),
        list(ids),
        ids + [],  # noqa: RUF005 - it is this that is tried
        copy.copy(ids),
        copy.deepcopy(ids),
        pickle.loads(pickle.dumps(ids)),
    ):
        assert type(own) is list
        assert own == ids
        own.append(1)
    assert len(ids) == 3


def test_the_core_commits_and_cuts() -> None:
    ids = CommittedTokens([5, 3])
    commit(ids, (7, 8))
    assert ids == [5, 3, 7, 8]
    cut(ids, 3)
    assert ids == [5, 3, 7]
