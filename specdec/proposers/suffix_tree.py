"""What followed each context in a set of texts, counted: the suffix tree behind the `suffix` proposer.

A *context* is a run of up to `depth - 1` tokens; its *followers* are the tokens that came right after its occurrences.
A text enters token by token and each token is one *position*, filed under the tokens before it, the nearest first. So
a position is complete when it enters, a text may grow at any time, and leaving is entering backwards. All suffixes
of a text lie on one path from the root.

Chains without a branch are one edge: a context that occurred once is a bare position in the table of its parent, and
the other nodes are the contexts where two occurrences part. There are fewer of them than positions, however much the
texts repeat themselves (a plain trie has `depth` nodes a token for a text that was seen before). The tree does not
depend on the order in which texts came and went.

It knows tokens and counts, and nothing of requests.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from collections.abc import Sequence as Many
from dataclasses import dataclass

from specdec.proposers.suffix_node import (
    BYTES_PER_TOKEN,
    POSITION_BYTES,
    TEXT_BYTES,
    TOKEN_BYTES,
    TREE_BYTES,
    Node,
    newest_position,
)

OFFSET_BITS = 24
OFFSET_MASK = (1 << OFFSET_BITS) - 1
"""A position is one integer: the text's number, then the offset in it."""

BEFORE = -1
"""Stands before the first token of every text, as often as needed: no context of tokens matches it."""

ROUNDING = 1e-9
"""More than the error of a score in floating point."""


@dataclass(frozen=True)
class Guess:
    """A continuation, the sum of its tokens' probabilities, and the newest text that holds what was matched."""

    token_ids: tuple[int, ...]
    score: float
    text: int


@dataclass(frozen=True)
class Limits:
    """How far a guess may go. `rooms[m]` bounds it after a match of m tokens, m from 0 to the longest context."""

    rooms: Many[int]
    length: int
    min_token_prob: float


class SuffixTree:
    """Counts of the followers of every context of up to `depth - 1` tokens; `num_bytes` is its size in memory."""

    def __init__(self, depth: int) -> None:
        self.num_bytes = TREE_BYTES
        self._longest = depth - 1
        self._texts: dict[int, array[int]] = {}
        self._root: dict[int, int | Node] = {}

    def __len__(self) -> int:
        """The number of texts."""
        return len(self._texts)

    def size(self, text: int) -> int:
        """The number of tokens of a text; 0 if it is not there."""
        tokens = self._texts.get(text)
        return 0 if tokens is None else len(tokens) - self._longest

    def expected_bytes(self, num_tokens: int) -> int:
        """More than a text, new or growing, will add by so many tokens, as a rule."""
        return TEXT_BYTES + TOKEN_BYTES * self._longest + BYTES_PER_TOKEN * num_tokens

    def extend(self, text: int, token_ids: Iterable[int]) -> None:
        """Append to the text of that number, counting its tokens as followers of those before them.

        Only the newest text can grow, and a new one has the largest number yet.
        """
        assert not self._texts or text >= next(reversed(self._texts))
        tokens = self._texts.get(text)
        if tokens is None:
            tokens = self._texts[text] = array("i", [BEFORE]) * self._longest
            self.num_bytes += TEXT_BYTES + TOKEN_BYTES * self._longest
        begin = len(tokens)
        tokens.extend(token_ids)
        assert len(tokens) <= OFFSET_MASK
        self.num_bytes += 2 * TOKEN_BYTES * (len(tokens) - begin)  # an array keeps spare room
        for offset in range(max(begin, self._longest + 1), len(tokens)):
            self._enter(tokens, text << OFFSET_BITS | offset)

    def remove(self, text: int) -> None:
        """Take a text out again; the tree is as if it had never been there."""
        tokens = self._texts[text]
        for offset in range(self._longest + 1, len(tokens)):
            self._leave(tokens, text << OFFSET_BITS | offset)
        del self._texts[text]
        self.num_bytes -= TEXT_BYTES + TOKEN_BYTES * (2 * len(tokens) - self._longest)

    def match_length(self, recent: Many[int]) -> int:
        """The length of the longest suffix of a context, given newest token first, that occurs with a follower."""
        return len(self._holders(recent))

    def guess(self, recent: Many[int], limits: Limits, best_score: float = 0.0) -> Guess | None:
        """The best continuation of a context, given newest token first, if its score is above `best_score`.

        One is made for each length of the context's suffix that occurs with a follower; each token is the most
        frequent follower so far, of equally frequent ones the smallest. Equal scores: that of the longer suffix.
        """
        path = _Path(self._holders(recent))
        best, best_size = None, self._longest + 1  # an equal score that was given stays the best
        for length, size in _candidates(path.holders, limits):
            if length < best_score or (length == best_score and size < best_size):
                break  # no probability is above 1, and what comes later is no longer
            tokens, score = self._continue(path, recent, size, length, limits.min_token_prob, best_score)
            if score > best_score or (score == best_score and size > best_size):
                best, best_score, best_size = tokens, score, size
        if best is None:
            return None
        return Guess(tuple(best), best_score, newest_position(path.holders[best_size - 1]) >> OFFSET_BITS)

    def _holders(self, recent: Many[int]) -> list[int | Node]:
        """For each length of suffix of a context that occurs with a follower: where its occurrences are."""
        holders: list[int | Node] = []
        size, most = 0, min(len(recent), self._longest)
        child = self._root.get(recent[0]) if most else None
        while child is not None:
            size += 1
            holders.append(child)
            if not isinstance(child, Node) or child.depth > size:
                end = most if isinstance(child, int) else min(child.depth, most)
                position = newest_position(child)
                tokens, before = self._texts[position >> OFFSET_BITS], (position & OFFSET_MASK) - 1
                while size < end and tokens[before - size] == recent[size]:
                    size += 1
                    holders.append(child)
                if size < end or isinstance(child, int):
                    break
            if size == most:
                break
            key = recent[size]
            child = child.recent_child if key == child.recent_key else child.children.get(key)
        return holders

    def _continue(
        self, path: _Path, recent: Many[int], size: int, length: int, min_token_prob: float, best_score: float
    ) -> tuple[list[int], float]:
        """Up to `length` tokens after the suffix of `size` tokens, and their score; cut short where that is no use."""
        drafted: list[int] = []
        score, prob, room = 0.0, 1.0, length
        while size <= len(path.holders):
            holder = path.holders[size - 1]
            if not isinstance(holder, Node):
                offset = holder & OFFSET_MASK
                copied = self._texts[holder >> OFFSET_BITS][offset : offset + room]
                drafted += copied
                for _ in copied:
                    score += prob
                break
            token = holder.best
            if token is None:
                token = holder.most_frequent()
            if holder.others is not None:
                prob *= holder.best_count / holder.total
                if prob < min_token_prob or score + prob * room < best_score - ROUNDING:
                    break
            drafted.append(token)
            score += prob
            room -= 1
            if not room:
                break
            size += 1
            path = path.after.get(token) or self._extend_path(path, recent, drafted)
        return drafted, score

    def _extend_path(self, path: _Path, recent: Many[int], drafted: list[int]) -> _Path:
        """The path of the context that a draft makes longer, kept for the other suffixes that draft the same."""
        longer = path.after[drafted[-1]] = _Path(self._holders([*reversed(drafted), *recent]))
        return longer

    def _enter(self, tokens: array[int], position: int) -> None:
        """File a position under its context: into the tables of all nodes on its path, and a place at the end."""
        offset = position & OFFSET_MASK
        follower = tokens[offset]
        parent: Node | None = None
        depth, longest = 0, self._longest
        while True:
            key = tokens[offset - 1 - depth] if depth < longest else position
            if parent is None:
                child = self._root.get(key)
            else:
                child = parent.recent_child if key == parent.recent_key else parent.children.get(key)
            if not isinstance(child, Node) or child.depth > depth + 1:  # others have no edge to part
                entered = self._entered(tokens, child, depth, position)
                if entered is not child:
                    break
                assert isinstance(child, Node)
            if follower == child.best:  # as `count` does; most steps end here
                child.total += 1
                child.best_count += 1
            else:
                self.num_bytes += child.count(follower)
            child.newest = position
            if parent is not None and key != parent.recent_key:
                parent.recent_key, parent.recent_child = key, child
            parent, depth = child, child.depth
        if parent is None:
            self._root[key] = entered
        else:
            parent.children[key] = entered
            parent.recent_key, parent.recent_child = key, entered

    def _entered(self, tokens: array[int], child: int | Node | None, depth: int, position: int) -> int | Node:
        """What stands in a child's place once a position has come to it: the child itself where it goes on below."""
        if child is None:
            self.num_bytes += POSITION_BYTES
            return position
        end = child.depth if isinstance(child, Node) else self._longest
        if depth + 1 < end:
            shared = self._shared(tokens, position & OFFSET_MASK, child, depth + 1, end)
            if shared < end:
                return self._parted(child, shared, position)
        return child if isinstance(child, Node) else self._parted(child, end, position)

    def _shared(self, tokens: array[int], offset: int, child: int | Node, shared: int, end: int) -> int:
        """How many tokens of context, from `shared` to `end`, a position has in common with those of an edge."""
        position = newest_position(child)
        other, before = self._texts[position >> OFFSET_BITS], (position & OFFSET_MASK) - 1
        while shared < end and other[before - shared] == tokens[offset - 1 - shared]:
            shared += 1
        return shared

    def _parted(self, child: int | Node, depth: int, position: int) -> Node:
        """A node where a new position leaves an edge, or, at full depth, joins an equal one."""
        node = Node(depth, position)
        if isinstance(child, int):
            node.best, node.best_count, node.total = self._token(child), 1, 1
        else:
            node.take_followers(child)
        node.children = {self._key(newest_position(child), depth): child, self._key(position, depth): position}
        self.num_bytes += POSITION_BYTES + node.num_bytes + node.count(self._token(position))
        return node

    def _token(self, position: int) -> int:
        return self._texts[position >> OFFSET_BITS][position & OFFSET_MASK]

    def _key(self, position: int, depth: int) -> int:
        """What tells a position from others of the same context of `depth` tokens: one more token, or itself."""
        return self._token(position - 1 - depth) if depth < self._longest else position

    def _leave(self, tokens: array[int], position: int) -> None:
        """Undo `_enter`."""
        offset = position & OFFSET_MASK
        follower = tokens[offset]
        children, depth = self._root, 0
        path = []
        while True:
            key = tokens[offset - 1 - depth] if depth < self._longest else position
            child = children[key]
            if isinstance(child, int):
                break
            path.append((children, key, child))
            child.recent_key = child.recent_child = None
            children, depth = child.children, child.depth
        assert child == position
        del children[key]
        self.num_bytes -= POSITION_BYTES
        for holder, key, node in reversed(path):
            if len(node.children) == 1:
                self.num_bytes -= node.num_bytes
                (holder[key],) = node.children.values()
                continue
            self.num_bytes -= node.uncount(follower)
            if node.newest == position:
                node.newest = max(map(newest_position, node.children.values()))


class _Path:
    """`holders[m - 1]` has the occurrences of a context's suffix of m tokens; `after` leads on, by the next token."""

    __slots__ = ("after", "holders")

    def __init__(self, holders: list[int | Node]) -> None:
        self.holders = holders
        self.after: dict[int, _Path] = {}


def _candidates(holders: list[int | Node], limits: Limits) -> list[tuple[int, int]]:
    """(most tokens, suffix length) worth trying, most tokens first, then the longer suffix.

    Suffixes with the same occurrences have the same continuation: of these only the one with the most room counts.
    """
    found: list[tuple[int, int]] = []
    last = None
    for size in range(len(holders), 0, -1):
        length = min(limits.length, limits.rooms[size])
        if holders[size - 1] is not last:
            found.append((length, size))
        elif length > found[-1][0]:
            found[-1] = length, size
        last = holders[size - 1]
    found.sort(reverse=True)
    return found
