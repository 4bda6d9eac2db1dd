"""Which KV entries a tree's verdict moves: the accepted path lies scattered among the nodes that were rejected.

Node i of a draft is written i slots after the last committed token, wherever it stands in the tree. Once its path is
committed, its entry belongs at its depth. Keys carry the rotation of their position, which is the depth already.
"""

from __future__ import annotations

from collections.abc import Sequence

from specdec.core.scheduler import ScheduledRow
from specdec.types import Verdict


def path_moves(rows: Sequence[ScheduledRow], verdicts: Sequence[Verdict], block_size: int) -> list[tuple[int, int]]:
    """(source, destination) slots of every accepted node that does not lie in place; none for chains."""
    moves = []
    for row, verdict in zip(rows, verdicts, strict=True):
        for place, node in enumerate(verdict.accepted_path):
            if node != place:
                table, first = row.sequence.block_table, row.num_tokens
                moves.append((_slot(table, first + node, block_size), _slot(table, first + place, block_size)))
    return moves


def _slot(block_table: Sequence[int], index: int, block_size: int) -> int:
    return block_table[index // block_size] * block_size + index % block_size
