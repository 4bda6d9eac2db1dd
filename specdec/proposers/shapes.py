"""Shapes of draft trees: which ranks of candidates hang under which nodes, before any token is known.

A node says "the rank-th likeliest continuation of my parent's". What proposers of trees share is here: fixed shapes
from a budget or a file, and the settings that name one. It knows nothing of tokens, and needs no torch.
"""

from __future__ import annotations

import heapq
import json
import math
import os
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from specdec.config import unknown_name
from specdec.types import MAX_DRAFT_NODES, MAX_SPECULATIVE_TOKENS

TREES = ("chain", "breadth", "ranked", "confidence")
"""The trees that have a name. All but the last, which is of the proposer's own making, are fixed shapes."""

RANK_PROBS = tuple(0.5 * (rank + 1) ** -1.7 for rank in range(MAX_DRAFT_NODES))
"""How likely the continuation of a given rank is, roughly: a power law, as measured on recycled candidates."""

RankPath = tuple[int, ...]
"""The ranks on the way from the last committed token to a node, itself included."""


@dataclass(frozen=True)
class TreeShape:
    """Nodes in breadth-first order: by depth, then in their parents' order, then by rank.

    `parents[i]` is the index of node i's parent, -1 for a child of the last committed token; node i is the
    `ranks[i]`-th likeliest child of its parent, 0 the first.
    """

    parents: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        assert len(self.parents) == len(self.ranks) <= MAX_DRAFT_NODES
        assert all(-1 <= parent < node for node, parent in enumerate(self.parents))
        order = list(zip(self.parents, self.ranks, strict=True))
        assert order == sorted(set(order)), "nodes stand in breadth-first order, and siblings have different ranks"

    @property
    def num_nodes(self) -> int:
        return len(self.parents)

    @property
    def num_ranks(self) -> int:
        """How many candidates of a token the shape can use."""
        return max(self.ranks, default=-1) + 1

    @property
    def is_chain(self) -> bool:
        """Whether no node has a sibling."""
        return self.parents == tuple(range(-1, self.num_nodes - 1))

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """For each node the length of the path to it, itself included."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent < 0 else depths[parent] + 1)
        return tuple(depths)

    @property
    def depth(self) -> int:
        return self.depths[-1] if self.depths else 0

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Child nodes in order, of the last committed token first and then of each node."""
        children: list[list[int]] = [[] for _ in range(self.num_nodes + 1)]
        for node, parent in enumerate(self.parents):
            children[parent + 1].append(node)
        return tuple(map(tuple, children))

    def children_of(self, node: int) -> tuple[int, ...]:
        """The child nodes of a node, or of the last committed token for -1."""
        return self.children[node + 1]

    @cached_property
    def paths(self) -> tuple[RankPath, ...]:
        """For each node its rank path."""
        paths: list[RankPath] = []
        for parent, rank in zip(self.parents, self.ranks, strict=True):
            paths.append((rank,) if parent < 0 else (*paths[parent], rank))
        return tuple(paths)

    def limited(self, depth: int) -> TreeShape:
        """The nodes that lie no deeper than `depth`."""
        count = sum(own <= depth for own in self.depths)
        return self if count == self.num_nodes else TreeShape(self.parents[:count], self.ranks[:count])

    @staticmethod
    def of_paths(paths: Iterable[RankPath]) -> TreeShape:
        """From the rank paths of all nodes, in any order; each but its own end must be there, and each only once."""
        ordered = sorted(paths, key=lambda path: (len(path), path))
        places = {path: node for node, path in enumerate(ordered)} | {(): -1}
        return TreeShape(tuple(places[path[:-1]] for path in ordered), tuple(path[-1] for path in ordered))


def chain(length: int) -> TreeShape:
    """The likeliest continuation of each node, `length` times."""
    return TreeShape(tuple(range(-1, length - 1)), (0,) * length)


def breadth_first(width: int, num_nodes: int, depth: int) -> TreeShape:
    """`width` children for each node in breadth-first order, until there are `num_nodes` or all are `depth` deep."""
    paths: list[RankPath] = []
    waiting: deque[RankPath] = deque([()])
    while waiting and len(paths) < num_nodes and len(waiting[0]) < depth:
        parent = waiting.popleft()
        children = [(*parent, rank) for rank in range(min(width, num_nodes - len(paths)))]
        paths += children
        waiting += children
    return TreeShape.of_paths(paths)


def likeliest(num_nodes: int, rank_probs: Sequence[float], depth: int) -> TreeShape:
    """The `num_nodes` nodes, none deeper than `depth`, with the largest products of their paths' `rank_probs`.

    These are in (0, 1], by rank. Of equal products the shorter path is taken, then the one of smaller ranks.
    """
    assert all(0 < prob <= 1 for prob in rank_probs)

    def entry(path: RankPath) -> tuple[float, int, RankPath]:
        # Sorted, so that paths of the same ranks in another order are equally likely to the last bit.
        return -math.prod(rank_probs[rank] for rank in sorted(path)), len(path), path

    heap = [entry((rank,)) for rank in range(len(rank_probs))] if depth > 0 else []
    heapq.heapify(heap)
    paths: list[RankPath] = []
    while heap and len(paths) < num_nodes:
        _, length, path = heapq.heappop(heap)
        paths.append(path)
        if length < depth:
            for rank in range(len(rank_probs)):
                heapq.heappush(heap, entry((*path, rank)))
    return TreeShape.of_paths(paths)


def from_ranks(paths: object) -> TreeShape:
    """From a list of rank paths in any order, the format of published Medusa trees: [[0], [0, 0], [1], ...].

    ValueError if it is no such list, or no tree that can be verified.
    """
    if not isinstance(paths, list | tuple) or not paths:
        raise ValueError(f"a tree is a list of rank paths, such as [[0], [0, 0], [1]]; got {_shortened(paths)}")
    if len(paths) > MAX_DRAFT_NODES:
        raise ValueError(f"a tree has at most {MAX_DRAFT_NODES} nodes; got {len(paths)}")
    known: dict[RankPath, None] = {}
    for path in map(_checked_path, paths):
        if path in known:
            raise ValueError(f"the rank path {list(path)} is there twice")
        known[path] = None
    for path in known:
        if len(path) > 1 and path[:-1] not in known:
            raise ValueError(f"the rank path {list(path)} needs {list(path[:-1])}, which is not there")
    return TreeShape.of_paths(known)


def _checked_path(path: object) -> RankPath:
    if not isinstance(path, list | tuple) or not path or not all(type(rank) is int for rank in path):
        raise ValueError(f"a rank path is a list of ranks from 0 on, such as [0, 2]; got {_shortened(path)}")
    if len(path) > MAX_SPECULATIVE_TOKENS:
        raise ValueError(f"a tree is at most {MAX_SPECULATIVE_TOKENS} deep; got a rank path of length {len(path)}")
    if min(path) < 0 or max(path) >= MAX_DRAFT_NODES:
        raise ValueError(f"ranks are between 0 and {MAX_DRAFT_NODES - 1}; got {_shortened(path)}")
    return tuple(path)


def _shortened(value: object, most: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= most else text[: most - 3] + "..."


def read_shape(path: str | Path) -> TreeShape:
    """From a JSON file with a list of rank paths; ValueError that names the file if there is no such list in it."""
    try:
        value: Any = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot read the tree file {str(path)!r}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the tree file {str(path)!r} is not JSON: {error}") from None
    try:
        return from_ranks(value)
    except ValueError as error:
        raise ValueError(f"the tree file {str(path)!r} holds no tree: {error}") from None


@dataclass(frozen=True)
class TreeChoice:
    """The shape of a proposer's trees, as settings name it.

    `tree` is "chain"; "breadth", where each node in turn gets `tree_width` children; "ranked", the likeliest nodes
    of ranks below `tree_width`; "confidence", for proposers that choose the nodes as they draft; or the path of a
    JSON file of rank paths. All but a chain and a file, which have their own sizes, have up to `tree_nodes` nodes.
    ValueError for values out of range and for a file that cannot be used.
    """

    tree: str = "chain"
    tree_nodes: int = 16
    tree_width: int = 4

    def __post_init__(self) -> None:
        if not isinstance(self.tree, str) or not self.tree:
            raise ValueError(f"tree must be one of {', '.join(TREES)}, or the path of a JSON file; got {self.tree!r}")
        for name, value in (("tree_nodes", self.tree_nodes), ("tree_width", self.tree_width)):
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_DRAFT_NODES:
                raise ValueError(f"{name} must be an integer between 1 and {MAX_DRAFT_NODES}; got {value!r}")
        if self.tree not in TREES:
            if not os.path.exists(self.tree):
                raise ValueError(unknown_name("tree", self.tree, (*TREES, "the path of a JSON file")))
            read_shape(self.tree)

    @cached_property
    def _file_shape(self) -> TreeShape:
        return read_shape(self.tree)

    def shape(self, num_speculative_tokens: int, rank_probs: Sequence[float] = RANK_PROBS) -> TreeShape:
        """The shape for drafts of this depth; "confidence" has none. `rank_probs` are what "ranked" goes by."""
        match self.tree:
            case "chain":
                return chain(num_speculative_tokens)
            case "breadth":
                return breadth_first(self.tree_width, self.tree_nodes, num_speculative_tokens)
            case "ranked":
                return likeliest(self.tree_nodes, rank_probs[: self.tree_width], num_speculative_tokens)
            case "confidence":
                raise ValueError("a tree by confidence has no fixed shape")
        return self._file_shape.limited(num_speculative_tokens)

    def num_nodes(self, num_speculative_tokens: int) -> int:
        """The most nodes of a draft of this depth."""
        if self.tree == "confidence":
            return self.tree_nodes if num_speculative_tokens else 0
        return self.shape(num_speculative_tokens).num_nodes
