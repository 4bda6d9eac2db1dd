"""A node of the suffix tree: what followed one context, and where the contexts go that are longer by a token.

It counts, and says what its own memory is; what its keys and positions mean is the tree's business.
"""

from __future__ import annotations

NODE_BYTES = 400
TABLE_BYTES = 264
FOLLOWER_BYTES = 64
"""What a node, its table of followers and an entry of that take, rounded up; a test holds them against the real."""


class Node:
    """A context of two or more occurrences that differ in the token before it (or, at full depth, in nothing).

    `best` is its most frequent follower, of equally frequent ones the smallest, and `best_count` how often it follows;
    `others` counts the rest, None where there are none, as is common. So what is asked for and counted most is read
    and written in one place. `best` is None while it has to be looked for, and then it is among the others.
    """

    __slots__ = ("best", "best_count", "children", "depth", "newest", "others", "total")

    def __init__(self, depth: int, newest: int) -> None:
        self.depth = depth
        self.newest = newest
        self.total = 0
        self.best: int | None = None
        self.best_count = 0
        self.others: dict[int, int] | None = None
        self.children: dict[int, int | Node] = {}

    @property
    def num_bytes(self) -> int:
        if self.others is None:
            return NODE_BYTES
        return NODE_BYTES + TABLE_BYTES + FOLLOWER_BYTES * (len(self.others) + (self.best is not None))

    def take_followers(self, node: Node) -> None:
        """Begin with the followers of another node."""
        self.total, self.best, self.best_count = node.total, node.best, node.best_count
        self.others = None if node.others is None else dict(node.others)

    def most_frequent(self) -> int:
        """The most frequent follower; of equally frequent ones the smallest."""
        if self.best is None:
            assert self.others is not None
            most = max(self.others.values())
            self.best = min(token for token, count in self.others.items() if count == most)
            self.best_count = self.others.pop(self.best)
        return self.best

    def count(self, token: int) -> int:
        """One more occurrence; by how many bytes this grew."""
        self.total += 1
        if token == self.best:
            self.best_count += 1
            return 0
        if self.others is None:
            grown, self.others = TABLE_BYTES + 2 * FOLLOWER_BYTES, {}
        else:
            grown = 0 if token in self.others else FOLLOWER_BYTES
        count = self.others[token] = self.others.get(token, 0) + 1
        if self.best is not None and (count, -token) > (self.best_count, -self.best):
            self.others[self.best] = self.best_count
            self.best, self.best_count = token, self.others.pop(token)
        return grown

    def uncount(self, token: int) -> int:
        """One occurrence less, of at least two; by how many bytes this shrank."""
        self.total -= 1
        if self.others is None:
            self.best_count -= 1
            return 0
        if token == self.best:
            self.others[token], self.best, self.best_count = self.best_count, None, 0
        self.others[token] -= 1
        if self.others[token]:
            return 0
        del self.others[token]
        if len(self.others) + (self.best is not None) > 1:
            return FOLLOWER_BYTES
        self.most_frequent()
        self.others = None
        return TABLE_BYTES + 2 * FOLLOWER_BYTES


def newest_position(child: int | Node) -> int:
    """The newest position of a table's entry."""
    return child if isinstance(child, int) else child.newest
