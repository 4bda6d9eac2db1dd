"""One budget for prompts, decodes and drafts; order, preemption, forks, and what a commit counts."""

import pytest

from specdec.core.block_manager import hash_block
from specdec.core.recovery import mark, recover
from specdec.core.sequence import Status
from specdec.types import Draft, Verdict
from tests.core.helpers import make_scheduler, make_sequence, step


def spans(schedule) -> dict[str, tuple[int, int, int]]:
    return {
        row.sequence.request.request_id: (row.start, row.num_scheduled_tokens, row.num_draft_tokens)
        for row in schedule.rows
    }


def test_a_long_prompt_is_cut_into_chunks_and_decodes_go_on() -> None:
    scheduler = make_scheduler(num_blocks=64, max_num_batched_tokens=10)
    scheduler.add(make_sequence([1] * 3, arrival=0))
    step(scheduler)
    scheduler.add(make_sequence([2] * 30, arrival=1))
    seen = [spans(step(scheduler)) for _ in range(4)]
    assert [s["r1"][1] for s in seen] == [9, 9, 9, 3]
    assert all(s["r0"][1] == 1 for s in seen)


def test_a_chunk_that_stops_early_takes_no_logits() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=8)
    scheduler.add(make_sequence([1] * 12))
    first = scheduler.schedule()
    assert [row.num_logits for row in first.rows] == [0]
    scheduler.commit(first, [Verdict()])
    second = scheduler.schedule()
    assert [row.num_logits for row in second.rows] == [1]


def test_drafts_are_trimmed_before_a_running_sequence_is_left_out() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=6, max_num_seqs=4)
    for arrival in range(4):
        scheduler.add(make_sequence([1], arrival=arrival))
    step(scheduler)
    for sequence in scheduler.running:
        sequence.draft = Draft((1, 1, 1), proposer="x")
    assert spans(step(scheduler)) == {"r0": (1, 3, 2), "r1": (1, 1, 0), "r2": (1, 1, 0), "r3": (1, 1, 0)}


def test_drafts_are_trimmed_before_anyone_is_preempted() -> None:
    scheduler = make_scheduler(num_blocks=2, block_size=2, max_num_seqs=2, caching=False)
    for arrival in range(2):
        scheduler.add(make_sequence([1], arrival=arrival))
    step(scheduler)
    for sequence in scheduler.running:
        sequence.draft = Draft((1, 1, 1), proposer="x")
    assert spans(step(scheduler)) == {"r0": (1, 1, 0), "r1": (1, 1, 0)}
    assert scheduler.num_preemptions == 0


def test_the_least_urgent_sequence_is_preempted_and_recomputed() -> None:
    scheduler = make_scheduler(num_blocks=4, block_size=2, max_num_seqs=3, caching=False)
    for arrival, priority in ((0, 1), (1, 0), (2, 0)):
        scheduler.add(make_sequence([1, 1], arrival=arrival, priority=priority))
    step(scheduler)
    victim = max(scheduler.running, key=lambda s: s.order)
    assert victim.request.request_id == "r0"
    schedule = step(scheduler)
    assert schedule.preempted == (victim,)
    assert victim.status is Status.WAITING
    assert (victim.num_computed_tokens, victim.block_table, victim.draft) == (0, [], Draft())
    assert set(spans(schedule)) == {"r1", "r2"}


def test_waiting_goes_by_priority_then_arrival() -> None:
    scheduler = make_scheduler(max_num_seqs=1)
    for arrival, priority in ((0, 1), (1, 0), (2, 0)):
        scheduler.add(make_sequence([1], arrival=arrival, priority=priority, max_tokens=1))
    order = []
    while scheduler.has_unfinished():
        order += spans(step(scheduler))
    assert order == ["r1", "r2", "r0"]


def test_the_counter_formula_holds_for_chunk_decode_and_draft() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=4)
    sequence = make_sequence([1] * 6)
    scheduler.add(sequence)
    step(scheduler)
    assert (sequence.num_computed_tokens, sequence.num_tokens) == (4, 6)
    step(scheduler)
    assert (sequence.num_computed_tokens, sequence.num_tokens) == (6, 7)
    sequence.draft = Draft((2, 3, 4), proposer="x")
    step(scheduler, token=9, accepted=2)
    assert (sequence.num_computed_tokens, sequence.num_tokens) == (9, 10)
    assert sequence.token_ids[-3:] == [2, 3, 9]
    assert sequence.provenance == ["bonus", "x", "x", "recovered"]
    assert (sequence.stats.num_drafts, sequence.stats.num_draft_tokens) == (1, 3)
    assert sequence.stats.accepted_per_position == [1, 1]


@pytest.mark.parametrize("cut", [0, 1, 2, 3])
def test_nothing_after_an_accepted_end_is_kept_or_counted(cut: int) -> None:
    scheduler = make_scheduler()
    sequence = make_sequence([1], eos=(7,))
    scheduler.add(sequence)
    step(scheduler)
    draft = [2, 2, 2, 2]
    draft[cut] = 7
    sequence.draft = Draft(tuple(draft), proposer="x")
    step(scheduler, token=3, accepted=4)
    assert sequence.output_token_ids == [1, *[2] * cut, 7]
    assert sequence.finish_reason == "stop"
    assert sequence.stats.num_accepted_tokens == sequence.stats.num_draft_tokens == cut + 1
    assert sequence.provenance == ["bonus", *["x"] * (cut + 1)]


def test_drafts_respect_every_length_limit() -> None:
    scheduler = make_scheduler(num_blocks=4, block_size=4, max_model_len=10)
    sequence = make_sequence([1] * 6, max_tokens=100)
    scheduler.add(sequence)
    step(scheduler)
    sequence.draft = Draft((1,) * 8, proposer="x")
    assert spans(scheduler.schedule()) == {"r0": (6, 3, 2)}  # tokens 7, 8 drafted, one more emitted: 10
    assert make_sequence([1], max_tokens=3).max_draft_length(100) == 2


def test_samples_share_the_prompt_and_copy_on_write() -> None:
    scheduler = make_scheduler(num_blocks=32)
    samples = [make_sequence([1, 2, 3, 4, 5, 6], index=i, n=3, temperature=1.0, max_tokens=3) for i in range(3)]
    samples[0].forks = samples[1:]
    scheduler.add(samples[0])
    first = step(scheduler)
    assert sum(row.num_scheduled_tokens for row in first.rows) == 6
    second = scheduler.schedule()
    assert [row.num_scheduled_tokens for row in second.rows] == [1, 1, 1]
    assert len({sample.block_table[0] for sample in samples}) == 1
    assert len({sample.block_table[1] for sample in samples}) == 3
    assert len(second.block_copies) == 2  # the last owner may write in place
    scheduler.commit(second, [Verdict((1,))] * 3)
    while scheduler.has_unfinished():
        step(scheduler)
    assert all(sample.finish_reason == "length" for sample in samples)
    assert scheduler.blocks.num_free_blocks == 32


def test_nothing_is_drafted_while_other_samples_wait_for_the_prompt() -> None:
    """A chunk that leaves one prompt token: what the samples will share must end with the prompt."""
    scheduler = make_scheduler(max_num_batched_tokens=9)
    samples = [make_sequence(list(range(10)), index=i, n=2, temperature=1.0) for i in range(2)]
    samples[0].forks = samples[1:]
    scheduler.add(samples[0])
    step(scheduler)
    samples[0].draft = Draft((1, 2, 3, 4), proposer="x")
    assert spans(step(scheduler)) == {"r0": (9, 1, 0)}
    assert samples[0].max_draft_length(100) > 0


def test_a_sample_that_ends_with_its_first_token_still_frees_the_others() -> None:
    scheduler = make_scheduler()
    samples = [make_sequence([1] * 8, index=i, n=2, temperature=1.0, max_tokens=1) for i in range(2)]
    samples[0].forks = samples[1:]
    scheduler.add(samples[0])
    while scheduler.has_unfinished():
        step(scheduler)
    assert [len(sample.output_token_ids) for sample in samples] == [1, 1]


def test_an_error_ends_one_row_and_the_others_go_on() -> None:
    scheduler = make_scheduler()
    sequences = [make_sequence([1], arrival=i, max_tokens=2) for i in range(2)]
    for sequence in sequences:
        scheduler.add(sequence)
    schedule = scheduler.schedule()
    scheduler.commit(schedule, [Verdict(error="bad logits"), Verdict((1,))])
    step(scheduler)
    assert (sequences[0].finish_reason, sequences[0].error) == ("error", "bad logits")
    assert sequences[1].finish_reason == "length"


def test_a_failing_prompt_takes_the_samples_that_wait_for_it() -> None:
    scheduler = make_scheduler()
    samples = [make_sequence([1], index=i, n=2, temperature=1.0) for i in range(2)]
    samples[0].forks = samples[1:]
    scheduler.add(samples[0])
    scheduler.commit(scheduler.schedule(), [Verdict(error="bad")])
    assert [sample.finish_reason for sample in samples] == ["error", "error"]
    assert not scheduler.has_unfinished()


def test_abort_ends_every_sample() -> None:
    scheduler = make_scheduler()
    samples = [make_sequence([1] * 3, index=i, n=2, temperature=1.0) for i in range(2)]
    samples[0].forks = samples[1:]
    scheduler.add(samples[0])
    assert scheduler.abort("r0") == samples
    assert [sample.finish_reason for sample in samples] == ["abort", "abort"]
    assert scheduler.abort("r0") == []
    assert scheduler.blocks.num_free_blocks == scheduler.blocks.num_blocks


def test_a_request_that_cannot_start_yet_is_counted_once() -> None:
    scheduler = make_scheduler(num_blocks=4, block_size=2, max_num_seqs=2)
    scheduler.add(make_sequence([1] * 5, max_tokens=3))
    step(scheduler)
    scheduler.add(make_sequence([2] * 5, arrival=1, max_tokens=1))
    while scheduler.has_unfinished():
        step(scheduler)
    assert scheduler.num_prefix_queries == 10


TREE = Draft((5, 6, 7, 8, 9), parents=(-1, -1, 1, 2, 1), proposer="x")


@pytest.mark.parametrize(
    ("path", "origins"),
    [
        ((), ["recovered"]),
        ((0,), ["x", "bonus"]),
        ((1,), ["x", "recovered"]),
        ((1, 4), ["x", "x", "bonus"]),
        ((1, 2, 3), ["x", "x", "x", "bonus"]),
    ],
)
def test_a_token_behind_a_path_is_a_bonus_only_at_a_leaf(path: tuple[int, ...], origins: list[str]) -> None:
    scheduler = make_scheduler()
    sequence = make_sequence([1, 1])
    scheduler.add(sequence)
    step(scheduler)
    sequence.draft = TREE
    schedule = scheduler.schedule()
    scheduler.commit(schedule, [Verdict((*(TREE.token_ids[node] for node in path), 3), path)])
    assert sequence.provenance[1:] == origins
    assert sequence.num_computed_tokens == sequence.num_tokens - 1 == 3 + len(path)
    assert (sequence.stats.num_draft_tokens, sequence.stats.num_accepted_tokens) == (5, len(path))
    assert sequence.stats.accepted_per_position == [1] * len(path)
    scheduler.check_integrity()


def test_a_stop_inside_a_path_counts_the_nodes_down_to_its_depth() -> None:
    scheduler = make_scheduler()
    sequence = make_sequence([1, 1], eos=(7,))
    scheduler.add(sequence)
    step(scheduler)
    sequence.draft = TREE
    scheduler.commit(scheduler.schedule(), [Verdict((6, 7, 8, 3), (1, 2, 3))])
    assert sequence.output_token_ids == [1, 6, 7]
    assert (sequence.stats.num_draft_tokens, sequence.stats.num_accepted_tokens) == (4, 2)


def test_trees_are_limited_in_depth_by_length_and_in_nodes_by_the_budget() -> None:
    scheduler = make_scheduler(max_num_seqs=1, max_num_batched_tokens=5)
    sequence = make_sequence([1, 1], max_tokens=4)
    scheduler.add(sequence)
    step(scheduler)
    wide = Draft((5, 6, 7, 8, 9, 2), parents=(-1, -1, -1, 0, 3, 3), proposer="x")
    sequence.draft = wide
    (row,) = scheduler.schedule().rows
    assert row.draft == wide.trimmed(4)
    roomy = make_scheduler()
    sequence = make_sequence([1, 1], max_tokens=4)
    roomy.add(sequence)
    step(roomy)
    sequence.draft = Draft(tuple(range(20)), (-1,) * 18 + (0, 18), proposer="x")
    (row,) = roomy.schedule().rows
    assert len(row.draft) == 19, "more nodes than the two tokens that may be kept, but no deeper path"


def test_a_draft_with_kv_gets_the_slots_it_will_write() -> None:
    """After a whole draft was accepted it writes at its last token, the bonus, and all but the last of k new ones."""
    scheduler = make_scheduler(num_blocks=16, block_size=1, max_num_batched_tokens=4)
    sequence = make_sequence([1] * 6, draft_kv="d", k=3)
    scheduler.add(sequence)
    step(scheduler)
    assert len(sequence.block_table) == 4  # a chunk looks ahead of nothing
    scheduler.set_drafts([sequence], [Draft()])
    step(scheduler)
    assert (sequence.num_tokens, len(sequence.block_table)) == (7, 9)
    assert scheduler.draft_length(sequence) == 3
    scheduler.set_drafts([sequence], [Draft((1, 1, 1), proposer="d", has_kv=True)])
    assert sequence.num_draft_computed_tokens == 9
    step(scheduler, accepted=3)
    assert (sequence.num_tokens, sequence.num_draft_computed_tokens, len(sequence.block_table)) == (11, 9, 13)
    assert scheduler.draft_length(sequence) == 3


@pytest.mark.parametrize(("accepted", "valid"), [(0, 7), (1, 8), (2, 9), (3, 9)])
def test_draft_kv_is_valid_up_to_the_last_accepted_token_that_it_computed(accepted: int, valid: int) -> None:
    scheduler = make_scheduler()
    sequence = make_sequence([1] * 6, draft_kv="d", k=3)
    scheduler.add(sequence)
    step(scheduler)
    scheduler.set_drafts([sequence], [Draft((1, 1, 1), proposer="d", has_kv=True)])
    step(scheduler, accepted=accepted)
    assert sequence.num_draft_computed_tokens == valid
    scheduler.set_drafts([sequence], [None])
    assert sequence.num_draft_computed_tokens == valid


def test_slots_for_the_next_draft_are_given_up_before_anyone_is_preempted() -> None:
    scheduler = make_scheduler(num_blocks=6, block_size=1, max_num_seqs=2, caching=False)
    sequences = [make_sequence([1], arrival=i, draft_kv="d", k=4) for i in range(2)]
    for sequence in sequences:
        scheduler.add(sequence)
    step(scheduler)
    assert [scheduler.draft_length(sequence) for sequence in sequences] == [3, 0]
    step(scheduler)
    step(scheduler)
    assert scheduler.num_preemptions == 0
    assert [len(sequence.block_table) for sequence in sequences] == [3, 3]
    assert [scheduler.draft_length(sequence) for sequence in sequences] == [0, 0]


def test_samples_wait_until_the_draft_has_computed_their_prompt() -> None:
    scheduler = make_scheduler()
    samples = [make_sequence([1] * 6, index=i, n=2, temperature=1.0, draft_kv="d", k=2) for i in range(2)]
    samples[0].forks = samples[1:]
    scheduler.add(samples[0])
    step(scheduler)
    assert not scheduler.waiting
    scheduler.set_drafts(samples[:1], [Draft((1, 1), proposer="d", has_kv=True)])
    assert scheduler.waiting == samples[1:]
    assert samples[1].num_draft_computed_tokens == samples[1].num_computed_tokens == 5


@pytest.mark.parametrize("interrupted", [False, True])
def test_samples_do_not_wait_for_a_draft_that_fails(interrupted: bool) -> None:
    scheduler = make_scheduler()
    samples = [make_sequence([1] * 6, index=i, n=2, temperature=1.0, draft_kv="d", k=2) for i in range(2)]
    samples[0].forks = samples[1:]
    scheduler.add(samples[0])
    step(scheduler)
    if interrupted:
        step(scheduler)
    else:
        scheduler.set_drafts(samples[:1], [None])
    assert scheduler.waiting == samples[1:]
    assert samples[1].num_draft_computed_tokens == 0


def test_a_step_that_is_undone_leaves_no_hash_of_its_tokens() -> None:
    """What takes their place may be others: a block must not be shared under what was taken back."""
    scheduler = make_scheduler(block_size=2)
    sequence = make_sequence([1, 2, 3], k=3)
    scheduler.add(sequence)
    step(scheduler, token=4)
    sequence.draft = Draft((9, 9, 9))
    before = mark(sequence)
    step(scheduler, accepted=3)
    assert sequence.token_ids == [1, 2, 3, 4, 9, 9, 9, 1]
    recover(scheduler, [sequence], [before], lambda sequence: None)
    assert sequence.token_ids == [1, 2, 3, 4]
    for _ in range(3):
        step(scheduler, token=8)
    assert sequence.token_ids == [1, 2, 3, 4, 8, 8, 8]
    assert sequence.block_hashes[2] == hash_block(sequence.block_hashes[1], [8, 8])
