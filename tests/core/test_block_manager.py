"""Blocks: sharing by content, copy on write, eviction, and what must never be shared."""

import pytest

from specdec.core.block_manager import BlockManager, hash_block, root_hash
from tests.core.helpers import make_scheduler, make_sequence, step


def computed(manager: BlockManager, prompt: list[int], **options):
    """A sequence whose whole prompt is computed and committed."""
    sequence = make_sequence(prompt, **options)
    if manager.enable_prefix_caching:
        manager.match_prefix(sequence)
    assert manager.grow(sequence, len(prompt)) is not None
    sequence.num_computed_tokens = len(prompt)
    manager.commit(sequence)
    return sequence


def test_blocks_grow_one_at_a_time() -> None:
    manager = BlockManager(8, 4)
    sequence = make_sequence([1] * 5)
    assert manager.grow(sequence, 3) == []
    assert len(sequence.block_table) == 1
    sequence.num_computed_tokens = 3
    manager.grow(sequence, 5)
    assert len(sequence.block_table) == 2
    assert manager.num_free_blocks == 6


def test_a_pool_too_small_changes_nothing() -> None:
    manager = BlockManager(2, 4)
    sequence = make_sequence([1] * 12)
    assert manager.grow(sequence, 12) is None
    assert sequence.block_table == []
    assert manager.num_free_blocks == 2


def test_a_hit_leaves_one_token_to_compute() -> None:
    manager = BlockManager(8, 4)
    first = computed(manager, [1, 2, 3, 4, 5, 6, 7, 8])
    second = make_sequence([1, 2, 3, 4, 5, 6, 7, 8], arrival=1)
    manager.match_prefix(second)
    assert second.num_computed_tokens == 4
    assert second.block_table == first.block_table[:1]


@pytest.mark.parametrize("other", [{"cache_salt": "s"}, {"adapter": "a"}, {"draft_kv": "d"}])
def test_salt_adapter_and_owners_of_kv_separate(other: dict) -> None:
    manager = BlockManager(8, 4)
    computed(manager, [1] * 8)
    stranger = make_sequence([1] * 8, arrival=1, **other)
    manager.match_prefix(stranger)
    assert stranger.block_table == []
    assert root_hash("a", None) != root_hash(None, "a")


def test_the_hash_covers_parent_and_tokens_and_cannot_be_confused() -> None:
    root = root_hash(None, None)
    assert hash_block(root, [1, 2]) != hash_block(root, [2, 1])
    assert hash_block(hash_block(root, [1]), [2]) != hash_block(hash_block(root, [2]), [1])
    assert hash_block(root, [1, 256]) != hash_block(root, [257, 0])
    assert len(hash_block(root, [1])) == 32


def test_the_same_block_computed_twice_becomes_one() -> None:
    manager = BlockManager(8, 4)
    one, two = make_sequence([1] * 6), make_sequence([1] * 6, arrival=1)
    for sequence in (one, two):
        manager.grow(sequence, 6)
        sequence.num_computed_tokens = 6
    manager.commit(one)
    manager.commit(two)
    assert one.block_table[0] == two.block_table[0]
    assert one.block_table[1] != two.block_table[1]
    assert manager.num_free_blocks == 5
    manager.check_integrity([one, two])


def test_writing_into_a_shared_block_copies_it() -> None:
    manager = BlockManager(8, 4)
    parent, child = computed(manager, [1] * 6), make_sequence([1] * 6, index=1)
    manager.fork(parent, child, 5)
    assert child.block_table == parent.block_table
    copies = manager.grow(child, 6)
    assert copies == [(parent.block_table[1], child.block_table[1])]
    assert child.block_table[0] == parent.block_table[0]
    manager.check_integrity([parent, child])


def test_a_cached_block_is_never_written_even_by_its_only_owner() -> None:
    manager = BlockManager(8, 4)
    parent, child = computed(manager, [1] * 8), make_sequence([1] * 8, index=1)
    manager.fork(parent, child, 7)
    manager.free(parent)
    registered = child.block_table[1]
    assert manager.grow(child, 8) == [(registered, child.block_table[1])]
    assert child.block_table[1] != registered
    manager.check_integrity([child])


def test_eviction_is_least_recently_used_and_takes_leaves_first() -> None:
    manager = BlockManager(4, 2)
    old = computed(manager, [1, 1, 1, 1])
    root, leaf = old.block_table
    manager.free(old)
    manager.free(computed(manager, [2, 2], arrival=1))
    new = make_sequence([3] * 4, arrival=2)
    manager.grow(new, 4)
    assert leaf in new.block_table
    assert root not in new.block_table
    manager.check_integrity([new])
    again = make_sequence([1, 1, 1, 1], arrival=3)
    manager.match_prefix(again)
    assert again.block_table == [root]


def test_unverified_tokens_are_never_hashed() -> None:
    manager = BlockManager(8, 4)
    sequence = make_sequence([1, 2, 3])
    manager.grow(sequence, 8)
    sequence.num_computed_tokens = 8  # five draft positions were computed beyond the three committed tokens
    manager.commit(sequence)
    assert sequence.num_hashed_blocks == 0


def test_reset_waits_for_the_last_owner() -> None:
    manager = BlockManager(4, 2)
    sequence = computed(manager, [1] * 4)
    assert not manager.reset_prefix_cache()
    manager.free(sequence)
    assert manager.reset_prefix_cache()
    again = make_sequence([1] * 4, arrival=1)
    manager.match_prefix(again)
    assert again.block_table == []


def test_without_prefix_caching_nothing_is_registered() -> None:
    manager = BlockManager(4, 2, enable_prefix_caching=False)
    manager.free(computed(manager, [1] * 4))
    again = make_sequence([1] * 4, arrival=1)
    manager.match_prefix(again)
    assert again.block_table == []


def test_a_long_cached_prompt_computes_only_what_is_new() -> None:
    """4,000 cached tokens and 50 new ones cost at most 66."""
    scheduler = make_scheduler(num_blocks=600, block_size=16, max_num_batched_tokens=512)
    prompt = [i % 97 for i in range(4000)]
    scheduler.add(make_sequence(prompt, max_tokens=1))
    while scheduler.has_unfinished():
        step(scheduler)
    scheduler.add(make_sequence([*prompt, *range(50)], arrival=1, max_tokens=1))
    num_computed = 0
    while scheduler.has_unfinished():
        num_computed += sum(row.num_scheduled_tokens for row in step(scheduler).rows)
    assert 50 <= num_computed <= 66
    assert scheduler.num_prefix_hits == 4000
    assert scheduler.num_prefix_queries == 8050


@pytest.mark.parametrize("fault", ["leak", "twice", "hash", "order"])
def test_check_integrity_can_fail(fault: str) -> None:
    manager = BlockManager(6, 2)
    sequence = computed(manager, [1] * 4)
    other = computed(manager, [2] * 4, arrival=1)
    manager.free(other)
    manager.check_integrity([sequence])
    if fault == "leak":
        sequence.block_table.pop()
    elif fault == "twice":
        manager._free.append(sequence.block_table[0])
    elif fault == "hash":
        sequence.token_ids[0] = 9
        sequence.block_hashes.clear()
    else:
        manager._cached.move_to_end(next(iter(manager._cached)))
    with pytest.raises(AssertionError):
        manager.check_integrity([sequence])


def test_a_block_is_registered_once_its_draft_kv_is_there_too() -> None:
    manager = BlockManager(8, 4)
    sequence = computed(manager, [1] * 10, draft_kv="d")
    assert sequence.num_hashed_blocks == 0
    sequence.num_draft_computed_tokens = 7
    manager.commit(sequence)
    assert sequence.num_hashed_blocks == 1
    sequence.num_draft_computed_tokens = 12  # with drafted tokens
    manager.commit(sequence)
    assert sequence.num_hashed_blocks == 2
    again = make_sequence([1] * 10, arrival=1, draft_kv="d")
    manager.match_prefix(again)
    assert again.num_computed_tokens == again.num_draft_computed_tokens == 8
    manager.free(again)
    assert again.num_draft_computed_tokens == 0


@pytest.mark.parametrize(("drafted", "shared"), [(3, 3), (9, 5)])
def test_a_fork_has_as_much_draft_kv_as_its_parent_or_it_shares(drafted: int, shared: int) -> None:
    manager = BlockManager(8, 4)
    parent, child = computed(manager, [1] * 6, draft_kv="d"), make_sequence([1] * 6, index=1, draft_kv="d")
    parent.num_draft_computed_tokens = drafted
    manager.fork(parent, child, 5)
    assert child.num_draft_computed_tokens == shared


def test_blocks_that_hold_nothing_are_given_back() -> None:
    manager = BlockManager(8, 4)
    sequence = computed(manager, [1] * 6, draft_kv="d")
    manager.grow(sequence, 16)
    sequence.num_draft_computed_tokens = 9
    manager.shrink(sequence)
    assert len(sequence.block_table) == 3
    sequence.num_draft_computed_tokens = 5
    manager.shrink(sequence)
    assert len(sequence.block_table) == 2
    manager.check_integrity([sequence])
