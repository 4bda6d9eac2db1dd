"""The ragged batch: spans, slots, masks and logits rows, chains and trees."""

import torch

from specdec.core.scheduler import Schedule, ScheduledRow
from specdec.kernels import reference
from specdec.step.batch import Batch, DraftTokens
from specdec.step.kv_cache import KVCache, KVLayout
from specdec.step.paths import path_moves
from specdec.types import Draft, Verdict
from tests.core.helpers import make_sequence

CPU = torch.device("cpu")


def sequence(tokens: list[int], table: list[int], computed: int):
    made = make_sequence(tokens)
    made.block_table, made.num_computed_tokens = table, computed
    return made


def test_chunk_decode_and_draft_are_one_layout() -> None:
    chunk = ScheduledRow(sequence([10, 11, 12, 13, 14], [3, 1], 0), 0, 3)
    decode = ScheduledRow(sequence([20, 21], [2], 1), 1, 1)
    drafted = ScheduledRow(sequence([30, 31, 32], [5, 0], 2), 2, 3, Draft((40, 41)))
    batch = Batch.build(Schedule((chunk, decode, drafted)), 4, CPU)
    assert batch.token_ids.tolist() == [10, 11, 12, 21, 32, 40, 41]
    assert batch.positions.tolist() == [0, 1, 2, 1, 2, 3, 4]
    assert batch.slot_mapping.tolist() == [12, 13, 14, 9, 22, 23, 0]
    assert batch.query_start_loc.tolist() == [0, 3, 4, 7]
    assert batch.seq_lens.tolist() == [3, 2, 5]
    assert batch.committed_lens.tolist() == [3, 2, 3]
    assert batch.block_tables.tolist() == [[3, 1], [2, 0], [5, 0]]
    assert batch.ancestor_masks.tolist() == [0, 0, 0, 0, 0, 0b01, 0b11]
    assert batch.logits_indices.tolist() == [3, 4, 5, 6]
    assert batch.logits_start == (0, 0, 1, 4)


def test_a_tree_has_depths_for_positions_and_ancestors_for_masks() -> None:
    tree = Draft((1, 2, 3, 4), parents=(-1, -1, 0, 2))
    batch = Batch.build(Schedule((ScheduledRow(sequence([9], [0, 1], 0), 0, 5, tree),)), 4, CPU)
    assert batch.positions.tolist() == [0, 1, 1, 2, 3]
    assert batch.ancestor_masks.tolist() == [0, 0b0001, 0b0010, 0b0101, 0b1101]


def test_without_drafts_there_are_no_masks() -> None:
    batch = Batch.build(Schedule((ScheduledRow(sequence([9], [0], 0), 0, 1),)), 4, CPU)
    assert batch.ancestor_masks is None


def test_the_longest_draft_fills_the_mask() -> None:
    row = ScheduledRow(sequence([9], list(range(17)), 0), 0, 65, Draft((1,) * 64))
    masks = Batch.build(Schedule((row,)), 4, CPU).ancestor_masks
    assert masks[-1].item() == -1  # all 64 bits


def test_blocks_are_copied_as_if_at_once() -> None:
    kv = KVCache(KVLayout(2, 1, 1, torch.float32), 4, 2, CPU)
    for cache in (*kv.keys, *kv.values):
        cache[:] = torch.arange(4.0).view(4, 1, 1, 1)
    kv.copy_blocks([(0, 1), (1, 2)])
    for cache in (*kv.keys, *kv.values):
        assert cache[:, 0, 0, 0].tolist() == [0.0, 0.0, 1.0, 3.0]
    keys, values = kv.read(0, torch.tensor([4, 7]))
    assert keys.flatten().tolist() == values.flatten().tolist() == [1.0, 3.0]


def test_entries_are_moved_as_if_at_once() -> None:
    kv = KVCache(KVLayout(2, 1, 1, torch.float32), 2, 4, CPU)
    for cache in (*kv.keys, *kv.values):
        cache[:] = torch.arange(8.0).view(2, 4, 1, 1)
    kv.move(torch.tensor([2, 3, 7]), torch.tensor([1, 2, 3]), reference)
    for cache in (*kv.keys, *kv.values):
        assert cache.flatten().tolist() == [0.0, 2.0, 3.0, 7.0, 4.0, 5.0, 6.0, 7.0]


def test_only_what_does_not_lie_in_place_is_moved() -> None:
    tree = Draft((1, 2, 3, 4, 5), parents=(-1, 0, -1, 2, 3))
    rows = [
        ScheduledRow(sequence([9, 9], [4, 0, 7], 1), 1, 6, tree),
        ScheduledRow(sequence([9], [2, 3], 0), 0, 3, Draft((1, 2))),
        ScheduledRow(sequence([9, 9], [1], 0), 0, 1),
        ScheduledRow(sequence([9], [5, 6], 0), 0, 6, tree),
    ]
    verdicts = [Verdict((3, 4, 5, 0), (2, 3, 4)), Verdict((1, 2, 0), (0, 1)), Verdict(), Verdict((1, 2, 0), (0, 1))]
    assert path_moves(rows, verdicts, 3) == [(1, 14), (2, 0), (21, 1)]
    assert path_moves(rows[1:], verdicts[1:], 3) == []


def test_drafted_tokens_are_rows_of_their_own() -> None:
    batch = Batch.of_drafts(
        [DraftTokens([3, 5], 4, [11], [5], [5], None), DraftTokens([7], 2, [12], [2], [2], None)], 4, CPU
    )
    assert batch.token_ids.tolist() == [11, 12]
    assert batch.positions.tolist() == [5, 2]
    assert batch.block_tables.tolist() == [[3, 5], [7, 0]]
    assert batch.slot_mapping.tolist() == [5 * 4 + 1, 7 * 4 + 2]
    assert batch.seq_lens.tolist() == batch.committed_lens.tolist() == [6, 3]
    assert batch.query_start_loc.tolist() == [0, 1, 2]
    assert batch.logits_indices.tolist() == [0, 1]
    assert batch.ancestor_masks is None


def test_drafted_trees_go_where_their_masks_say() -> None:
    """Row 0 computes two siblings and row 1 one node under a node computed before."""
    batch = Batch.of_drafts(
        [
            DraftTokens([3, 5], 5, [11, 12], [5, 5], [5, 6], [1, 2]),
            DraftTokens([7], 2, [13], [3], [3], [(1 << 63) + 1]),
        ],
        4,
        CPU,
    )
    assert batch.slot_mapping.tolist() == [21, 22, 31]
    assert batch.query_start_loc.tolist() == [0, 2, 3]
    assert batch.seq_lens.tolist() == [7, 4]
    assert batch.committed_lens.tolist() == [5, 2]
    assert batch.ancestor_masks is not None
    assert batch.ancestor_masks.tolist() == [1, 2, 1 - (1 << 63)]
    assert batch.logits_start == (0, 2, 3)
