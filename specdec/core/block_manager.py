"""Who owns which KV block: allocation, sharing, the prefix cache, rollback. It hands out ids and never sees a tensor.

A block is in exactly one state: free (holds nothing worth keeping), cached (unused, but its content is known by hash),
or in use by one or more sequences. Full blocks of committed, computed tokens are registered under a chained hash; two
sequences that computed the same block end up sharing one. Because a sequence holds every ancestor of a block it holds,
and gives its blocks back last one first, the least recently used cached block never has a cached child: leaves go
before roots.

The target and a draft model keep their KV at the same slots (D3). A block is registered once both have computed it, and
requests whose KV has different owners do not share.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict, deque
from collections.abc import Iterable

from specdec.core.sequence import Sequence

BlockCopy = tuple[int, int]
"""(source, destination) block ids."""


def hash_block(parent: bytes, token_ids: Iterable[int]) -> bytes:
    """SHA-256 over the parent's hash and the block's tokens: nobody can make another prompt collide with it."""
    return hashlib.sha256(parent + array("q", token_ids).tobytes()).digest()


def root_hash(adapter: str | None, cache_salt: str | None, draft_kv: str | None = None) -> bytes:
    """The parent of first blocks: what separates prompts that must not share."""
    return hashlib.sha256(repr((adapter, cache_salt, draft_kv)).encode()).digest()


class BlockManager:
    """Blocks of `block_size` token slots; see the module's text for the states of a block."""

    def __init__(self, num_blocks: int, block_size: int, enable_prefix_caching: bool = True) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self._free: deque[int] = deque(range(num_blocks))
        self._cached: OrderedDict[int, None] = OrderedDict()  # unused blocks with known content, oldest first
        self._ref_counts = [0] * num_blocks
        self._hashes: list[bytes | None] = [None] * num_blocks
        self._parents: dict[bytes, bytes] = {}  # registered hash -> its parent's
        self._by_hash: dict[bytes, int] = {}

    @property
    def num_free_blocks(self) -> int:
        """Blocks that an allocation may take."""
        return len(self._free) + len(self._cached)

    @property
    def usage(self) -> float:
        """The share of blocks in use, 0 to 1."""
        return 1 - self.num_free_blocks / self.num_blocks

    def match_prefix(self, sequence: Sequence) -> None:
        """Give a sequence without blocks the cached blocks of its beginning; at least one token stays to compute."""
        assert not sequence.block_table
        assert sequence.num_computed_tokens == 0
        wanted = (sequence.num_tokens - 1) // self.block_size
        for hash_ in self._hash_chain(sequence, wanted):
            block = self._by_hash.get(hash_)
            if block is None:
                break
            self._take(block)
            sequence.block_table.append(block)
        sequence.num_hashed_blocks = len(sequence.block_table)
        sequence.num_computed_tokens = len(sequence.block_table) * self.block_size
        if sequence.request.draft_kv is not None:
            sequence.num_draft_computed_tokens = sequence.num_computed_tokens

    def num_blocks_to_grow(self, sequence: Sequence, end: int) -> int:
        """New blocks that writing positions [num_computed_tokens, end) takes, copies included."""
        table = sequence.block_table
        first = sequence.num_computed_tokens // self.block_size
        last = -(-end // self.block_size)
        replaced = sum(self._is_shared(block) for block in table[first:last])
        return replaced + max(0, last - len(table))

    def grow(self, sequence: Sequence, end: int) -> list[BlockCopy] | None:
        """Make positions [num_computed_tokens, end) writable; the copies this needs, or None (nothing changed)."""
        if self.num_blocks_to_grow(sequence, end) > self.num_free_blocks:
            return None
        table = sequence.block_table
        first = sequence.num_computed_tokens // self.block_size
        last = -(-end // self.block_size)
        copies = []
        for i in range(first, min(last, len(table))):
            if self._is_shared(table[i]):
                source, table[i] = table[i], self._allocate()
                self._release(source)
                if i * self.block_size < sequence.num_computed_tokens:
                    copies.append((source, table[i]))
        sequence.num_hashed_blocks = min(sequence.num_hashed_blocks, first)
        while len(table) < last:
            table.append(self._allocate())
        return copies

    def shrink(self, sequence: Sequence) -> None:
        """Take back the blocks at the end of a table in which nothing is computed: a draft was to use them."""
        computed = max(sequence.num_computed_tokens, sequence.num_draft_computed_tokens)
        used = -(-computed // self.block_size)
        while len(sequence.block_table) > used:
            self._release(sequence.block_table.pop())

    def commit(self, sequence: Sequence) -> None:
        """Register the full blocks of complete tokens, or share those that are registered already."""
        if not self.enable_prefix_caching:
            return
        full = sequence.num_complete_tokens // self.block_size
        if full <= sequence.num_hashed_blocks:
            return
        hashes = self._hash_chain(sequence, full)
        for i in range(sequence.num_hashed_blocks, full):
            known, own = self._by_hash.get(hashes[i]), sequence.block_table[i]
            if known is None:
                # In this order: `restart` relies on the parent of every block that has a hash.
                self._parents[hashes[i]] = hashes[i - 1] if i else self._root(sequence)
                self._hashes[own] = hashes[i]
                self._by_hash[hashes[i]] = own
            elif known != own:
                self._take(known)
                self._release(own)
                sequence.block_table[i] = known
        sequence.num_hashed_blocks = full

    def fork(self, parent: Sequence, child: Sequence, num_tokens: int) -> None:
        """Let `child` share the blocks of the parent's first `num_tokens` computed tokens."""
        assert not child.block_table
        assert parent.num_computed_tokens >= num_tokens
        child.block_table = parent.block_table[: -(-num_tokens // self.block_size)]
        for block in child.block_table:
            self._take(block)
        child.num_computed_tokens = num_tokens
        child.num_draft_computed_tokens = min(parent.num_draft_computed_tokens, num_tokens)
        child.num_hashed_blocks = min(parent.num_hashed_blocks, num_tokens // self.block_size)

    def free(self, sequence: Sequence) -> None:
        """Take all of a sequence's blocks back; what is registered stays cached until it is needed."""
        for block in reversed(sequence.block_table):
            self._release(block)
        sequence.block_table = []
        sequence.num_hashed_blocks = 0
        sequence.num_computed_tokens = 0
        sequence.num_draft_computed_tokens = 0

    def reset_prefix_cache(self) -> bool:
        """Forget all cached content. False (and nothing changed) while any block is in use."""
        if self.num_free_blocks != self.num_blocks:
            return False
        for block in self._cached:
            self._hashes[block] = None
        self._free.extend(self._cached)
        self._cached.clear()
        self._by_hash.clear()
        self._parents.clear()
        return True

    def restart(self) -> None:
        """Nobody holds a block any more; what is registered stays cached.

        All is derived from the blocks' hashes and their parents, so the rest may be in any state: an interrupt may have
        left it halfway. Which block was used last is forgotten.
        """
        registered = {hash_: block for block, hash_ in enumerate(self._hashes) if hash_ is not None}
        roots_first: dict[bytes, None] = {}
        for leaf in registered:
            path, hash_ = [], leaf
            while hash_ in registered and hash_ not in roots_first:
                path.append(hash_)
                hash_ = self._parents[hash_]
            roots_first.update(dict.fromkeys(reversed(path)))
        self._ref_counts = [0] * self.num_blocks
        self._by_hash = registered
        self._parents = {hash_: self._parents[hash_] for hash_ in registered}
        self._cached = OrderedDict((registered[hash_], None) for hash_ in reversed(roots_first))
        self._free = deque(block for block, hash_ in enumerate(self._hashes) if hash_ is None)

    def _root(self, sequence: Sequence) -> bytes:
        request = sequence.request
        return root_hash(request.adapter, request.cache_salt, request.draft_kv)

    def _hash_chain(self, sequence: Sequence, num_blocks: int) -> list[bytes]:
        """Hashes of the sequence's first `num_blocks` blocks, which must be full; kept on the sequence."""
        hashes, size = sequence.block_hashes, self.block_size
        for i in range(len(hashes), num_blocks):
            parent = hashes[i - 1] if i else self._root(sequence)
            hashes.append(hash_block(parent, sequence.token_ids[i * size : (i + 1) * size]))
        return hashes[:num_blocks]

    def _is_shared(self, block: int) -> bool:
        """Whether writing into the block would change what another sequence, or the prefix cache, relies on."""
        return self._ref_counts[block] > 1 or self._hashes[block] is not None

    def _allocate(self) -> int:
        if self._free:
            block = self._free.popleft()
        else:
            block, _ = self._cached.popitem(last=False)
            hash_ = self._hashes[block]
            assert hash_ is not None
            self._hashes[block] = None
            del self._by_hash[hash_], self._parents[hash_]
        self._ref_counts[block] = 1
        return block

    def _take(self, block: int) -> None:
        if self._ref_counts[block] == 0:
            del self._cached[block]
        self._ref_counts[block] += 1

    def _release(self, block: int) -> None:
        self._ref_counts[block] -= 1
        assert self._ref_counts[block] >= 0
        if self._ref_counts[block] == 0:
            if self._hashes[block] is None:
                self._free.append(block)
            else:
                self._cached[block] = None

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """Assert everything that must hold between steps, given all sequences that may own blocks."""
        owners = [0] * self.num_blocks
        for sequence in sequences:
            for i, block in enumerate(sequence.block_table):
                owners[block] += 1
                if i < sequence.num_hashed_blocks:
                    assert (i + 1) * self.block_size <= sequence.num_complete_tokens, "an incomplete block is hashed"
                    chain = self._hash_chain(sequence, i + 1)
                    assert self._hashes[block] == chain[i], "a block's hash is not its content's"
                elif self._hashes[block] is not None:
                    self._check_unregistered(sequence, i)
            assert sequence.num_computed_tokens <= len(sequence.block_table) * self.block_size
        assert owners == self._ref_counts, "reference counts do not match the block tables"
        states = [*self._free, *self._cached, *(b for b in range(self.num_blocks) if owners[b])]
        assert sorted(states) == list(range(self.num_blocks)), "a block leaked, or is in two states"
        assert all(self._hashes[block] is None for block in self._free)
        registered = {h: b for b, h in enumerate(self._hashes) if h is not None}
        assert registered == self._by_hash
        assert registered.keys() == self._parents.keys()
        self._check_eviction_order()

    def _check_unregistered(self, sequence: Sequence, i: int) -> None:
        """Block i of a fork was registered by another owner of it."""
        full = sequence.num_computed_tokens // self.block_size
        if i < full:  # the fork's draft will write there what is there already
            assert self._hashes[sequence.block_table[i]] == self._hash_chain(sequence, full)[i]
        else:  # its parent has filled it: it is copied before the fork writes
            assert i == full, "a registered block may be written"

    def _check_eviction_order(self) -> None:
        age = {self._hashes[block]: i for i, block in enumerate(self._cached)}
        for hash_, parent in self._parents.items():
            if hash_ in age and parent in age:
                assert age[hash_] < age[parent], "a root would be evicted before its leaf"
            elif hash_ not in age:
                assert parent not in age, "a block in use has an ancestor that is not"
