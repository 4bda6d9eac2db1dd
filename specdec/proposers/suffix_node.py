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

    `followers` is None where all `total` occurrences have the one follower `best`, as is common. `best` is None while
    it has to be looked for.
    """

    __slots__ = ("best", "children", "depth", "followers", "newest", "total")

    def __init__(self, depth: int, newest: int) -> None:
        self.depth = depth
        self.newest = newest
        self.total = 0
        self.best: int | None = None
        self.followers: dict[int, int] | None = None
        self.children: dict[int, int | Node] = {}

    @property
    def num_bytes(self) -> int:
        return NODE_BYTES + (0 if self.followers is None else TABLE_BYTES + FOLLOWER_BYTES * len(self.followers))

    def count_of(self, token: int) -> int:
        return self.total if self.followers is None else self.followers[token]

    def most_frequent(self) -> int:
        """The most frequent follower; of equally frequent ones the smallest."""
        if self.best is None:
            assert self.followers is not None
            most = max(self.followers.values())
            self.best = min(token for token, count in self.followers.items() if count == most)
        return self.best

    def count(self, token: int) -> int:
        """One more occurrence; by how many bytes this grew."""
        self.total += 1
        followers, best = self.followers, self.best
        if followers is None:
            if token == best:
                return 0
            assert best is not None
            followers = self.followers = {best: self.total - 1, token: 1}
            grown = TABLE_BYTES + 2 * FOLLOWER_BYTES
        elif token in followers:
            followers[token] += 1
            grown = 0
        else:
            followers[token] = 1
            grown = FOLLOWER_BYTES
        if best is not None and best != token:
            lead = followers[token] - followers[best]
            if lead > 0 or (lead == 0 and token < best):
                self.best = token
        return grown

    def uncount(self, token: int) -> int:
        """One occurrence less, of at least two; by how many bytes this shrank."""
        self.total -= 1
        followers = self.followers
        if followers is None:
            return 0
        if token == self.best:
            self.best = None
        followers[token] -= 1
        if followers[token]:
            return 0
        del followers[token]
        if len(followers) > 1:
            return FOLLOWER_BYTES
        (self.best,) = followers
        self.followers = None
        return TABLE_BYTES + 2 * FOLLOWER_BYTES


def newest_position(child: int | Node) -> int:
    """The newest position of a table's entry."""
    return child if isinstance(child, int) else child.newest
