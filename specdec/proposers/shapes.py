"""Tree shapes (provisional)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class TreeShape:
    parents: tuple[int, ...]

    @cached_property
    def _children(self) -> tuple[tuple[int, ...], ...]:
        return tuple(
            tuple(i for i, parent in enumerate(self.parents) if parent == node) for node in range(-1, len(self.parents))
        )

    def children_of(self, node: int) -> tuple[int, ...]:
        return self._children[node + 1]

    @property
    def is_chain(self) -> bool:
        return self.parents == tuple(range(-1, len(self.parents) - 1))


@dataclass(frozen=True)
class TreeChoice:
    tree: str = "chain"
    tree_nodes: int = 16
    tree_width: int = 4

    def num_nodes(self, num_speculative_tokens: int) -> int:
        return num_speculative_tokens if self.tree == "chain" else self.tree_nodes

    def shape(self, num_speculative_tokens: int) -> TreeShape:
        if self.tree == "chain":
            return TreeShape(tuple(range(-1, num_speculative_tokens - 1)))
        parents: list[int] = []
        depths = {-1: 0}
        for node in range(-1, self.tree_nodes):
            for _ in range(self.tree_width):
                if len(parents) < self.tree_nodes and depths[node] < num_speculative_tokens:
                    depths[len(parents)] = depths[node] + 1
                    parents.append(node)
        return TreeShape(tuple(parents))
