"""Top candidates of the target: found in rows of logits, and kept by the token that they follow."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from collections.abc import Sequence as Many

import numpy as np
import torch

FOLD = 3_072
GROUPS = 384
"""A long row is folded to `FOLD` maxima and these to `GROUPS`, which bound what its best entries can be from below."""


def top_candidates(asked: Many[tuple[torch.Tensor, Many[int]]], width: int) -> list[list[int]]:
    """The `width` best token ids of some rows of each logits [L, vocab], one list a row: the best first, and on a CPU
    of equal ones the smallest. A row that has no order (NaN) may give fewer."""
    if not asked:
        return []
    if asked[0][0].device.type != "cpu":
        found: list[list[int]] = torch.cat([logits[[*rows]] for logits, rows in asked]).topk(width).indices.tolist()
        return found
    best = []
    for logits, rows in asked:
        if logits.dtype in (torch.float32, torch.float64):
            wide = logits.detach().numpy()
            best += [_best(wide[row], width) for row in rows]
        else:
            best += [_best(logits[row].float().numpy(), width) for row in rows]
    return best


def _best(row: np.ndarray, width: int) -> list[int]:
    """Those of one row. 8 of 49,152 take about 15 microseconds; `torch.topk` takes 60, `argpartition` 300."""
    if len(row) <= 2 * FOLD:
        floor = _floor(row.copy(), width)
        return _ordered(row, (row >= floor).nonzero()[0], floor, width)
    num_layers, rest = divmod(len(row), FOLD)
    maxima = np.maximum.reduce(row[: num_layers * FOLD].reshape(num_layers, FOLD))
    if rest:
        np.maximum(maxima[:rest], row[-rest:], out=maxima[:rest])
    floor = _floor(np.maximum.reduce(maxima.reshape(-1, GROUPS)), width)
    columns = (maxima >= floor).nonzero()[0]
    token_ids = (columns + np.arange(0, len(row), FOLD)[:, None]).ravel()
    return _ordered(row, token_ids[token_ids < len(row)] if rest else token_ids, floor, width)


def _floor(values: np.ndarray, width: int) -> np.floating:
    """The `width`-th largest value; the others lose their order."""
    values.partition(len(values) - width)
    floor: np.floating = values[-width]
    return floor


def _ordered(row: np.ndarray, token_ids: np.ndarray, floor: np.floating, width: int) -> list[int]:
    """The best of some token ids, in increasing order, that have no logit below `floor` among the best."""
    logits = row[token_ids]
    high = (logits >= floor).nonzero()[0]
    best: list[int] = token_ids[high[(-logits[high]).argsort(kind="stable")[:width]]].tolist()
    return best


class PastCandidates:
    """A table [vocab, width] for each of up to `num_tables` cache salts, allocated once; the salt that was used least
    recently gives way to a new one."""

    def __init__(self, num_tables: int, vocab_size: int, width: int) -> None:
        # Entries are token ids + 1: then fresh pages of zeros, which cost nothing until they are written, say "none".
        self._tables = np.zeros((num_tables, vocab_size, width), dtype=np.int32)
        self._places: OrderedDict[str | None, int] = OrderedDict()

    @property
    def num_bytes(self) -> int:
        return self._tables.nbytes

    def find(self, salt: str | None, token_id: int) -> list[int]:
        """The candidates after a token, the best first; empty if it was never seen. The salt counts as used."""
        place = self._places.get(salt)
        if place is None:
            return []
        self._places.move_to_end(salt)
        row = self._tables[place, token_id]
        found: list[int] = (row - 1).tolist() if row[0] else []
        return found

    def keep(self, salt: str | None, candidates: Mapping[int, Many[int]]) -> None:
        """Put candidates by token into the salt's table, in place of older ones; the salt counts as used."""
        if not candidates or not len(self._tables):
            return
        if salt not in self._places:
            self._places[salt] = self._free_table()
        self._places.move_to_end(salt)
        self._tables[self._places[salt], [*candidates]] = np.array([*candidates.values()]) + 1

    def _free_table(self) -> int:
        if len(self._places) < len(self._tables):
            return len(self._places)
        _, place = self._places.popitem(last=False)
        self._tables[place] = 0
        return place
