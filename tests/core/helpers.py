"""Requests and sequences without an engine."""

from specdec.core.block_manager import BlockManager
from specdec.core.scheduler import Schedule, Scheduler
from specdec.core.sequence import Sequence
from specdec.types import Request, SamplingParams, Verdict


def make_sequence(
    prompt: list[int],
    *,
    arrival: int = 0,
    index: int = 0,
    priority: int = 0,
    cache_salt: str | None = None,
    adapter: str | None = None,
    draft_kv: str | None = None,
    k: int = 0,
    stop_token_ids: tuple[int, ...] = (),
    eos: tuple[int, ...] = (),
    **params: object,
) -> Sequence:
    request = Request(
        request_id=f"r{arrival}",
        prompt_token_ids=tuple(prompt),
        params=SamplingParams(**{"max_tokens": 1000, "detokenize": False, **params}),  # type: ignore[arg-type]
        seed=0,
        arrival=arrival,
        priority=priority,
        cache_salt=cache_salt,
        adapter=adapter,
        draft_kv=draft_kv,
        num_speculative_tokens=k,
        stop_token_ids=frozenset((*stop_token_ids, *eos)),
        eos_token_ids=frozenset(eos),
    )
    return Sequence(request, index, list(prompt))


def make_scheduler(
    num_blocks: int = 16,
    block_size: int = 4,
    *,
    max_num_seqs: int = 4,
    max_num_batched_tokens: int = 32,
    max_model_len: int | None = None,
    caching: bool = True,
) -> Scheduler:
    return Scheduler(
        BlockManager(num_blocks, block_size, caching),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len or num_blocks * block_size,
    )


def step(scheduler: Scheduler, token: int = 1, accepted: int = 0) -> Schedule:
    """One step in which every row accepts `accepted` draft tokens and then emits `token`."""
    schedule = scheduler.schedule()
    verdicts = []
    for row in schedule.rows:
        kept = min(accepted, row.num_draft_tokens)
        new = (*row.draft.token_ids[:kept], token)
        verdicts.append(Verdict(new, tuple(range(kept))) if row.reaches_end else Verdict())
    scheduler.commit(schedule, verdicts)
    scheduler.check_integrity()
    return schedule
