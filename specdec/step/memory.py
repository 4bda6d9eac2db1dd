"""Where the bytes go: everything that must fit beside the KV pool is counted before the pool is sized."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specdec.step.kv_cache import KVLayout

_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def format_bytes(count: int) -> str:
    """For people: 163840 -> "160.0 KiB"."""
    for size, unit in _UNITS:
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count} B"


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes of an engine. The KV pool gets what `budget_bytes` leaves, and no more than all sequences could use."""

    budget_bytes: int | None
    """None where the pool's size was given."""
    weight_bytes: int
    draft_bytes: int
    activation_bytes: int
    logits_bytes: int
    kv_bytes_per_token: int
    """Of every model: they share the block tables."""
    block_size: int
    num_blocks: int
    state_bytes_per_block: int = 0
    """What draft heads keep of each block's last token."""

    @property
    def kv_bytes(self) -> int:
        return self.num_blocks * (self.block_size * self.kv_bytes_per_token + self.state_bytes_per_block)

    @property
    def total_bytes(self) -> int:
        return self.weight_bytes + self.draft_bytes + self.activation_bytes + self.logits_bytes + self.kv_bytes

    def describe(self) -> str:
        """The sum, a line each."""
        tokens = self.num_blocks * self.block_size
        parts = [
            ("weights", self.weight_bytes, ""),
            ("draft model", self.draft_bytes, ""),
            ("activations", self.activation_bytes, " at most"),
            ("logits", self.logits_bytes, " for the rows of every sequence: its last token and its draft"),
            (
                "KV pool",
                self.kv_bytes,
                f" = {self.num_blocks:,} blocks of {self.block_size} tokens, "
                f"{self.kv_bytes_per_token:,} B a token ({tokens:,} tokens; touched as they are used)",
            ),
            ("total", self.total_bytes, "" if self.budget_bytes is None else f" of {format_bytes(self.budget_bytes)}"),
        ]
        return "\n".join(f"memory: {name:<12} {format_bytes(size):>11}{note}" for name, size, note in parts)


def plan_memory(
    layouts: Sequence[KVLayout],
    *,
    block_size: int,
    state_bytes_per_block: int = 0,
    available_bytes: int,
    budget_bytes: int,
    kv_cache_tokens: int | None,
    max_useful_tokens: int,
    weight_bytes: int,
    draft_bytes: int,
    activation_bytes: int,
    logits_bytes: int,
) -> MemoryPlan:
    """Size the KV pool: `kv_cache_tokens` if given, else what is left of the budget, capped at what can be used.

    A token takes a slot in each of `layouts`: the target's and those of proposers with KV of their own; draft heads
    keep `state_bytes_per_block` beside each block. `available_bytes` are free on the machine; `budget_bytes` may be
    taken, weights included. ValueError if not even two blocks fit.
    """
    bytes_per_token = sum(layout.bytes_per_token for layout in layouts)
    bytes_per_block = bytes_per_token * block_size + state_bytes_per_block
    useful = max(2, -(-max_useful_tokens // block_size))
    if kv_cache_tokens is not None:
        num_blocks = kv_cache_tokens // block_size
        needed = num_blocks * bytes_per_block
        if needed > available_bytes:
            raise ValueError(
                f"kv_cache_tokens ({kv_cache_tokens}) needs {format_bytes(needed)} of memory, "
                f"and {format_bytes(available_bytes)} are free"
            )
    else:
        rest = budget_bytes - weight_bytes - draft_bytes - activation_bytes - logits_bytes
        num_blocks = min(useful, max(0, rest) // bytes_per_block)
    if num_blocks < 2:
        fixed = weight_bytes + draft_bytes + activation_bytes + logits_bytes
        raise ValueError(
            f"no memory is left for two blocks of KV cache: {format_bytes(budget_bytes)} are allowed and "
            f"{format_bytes(fixed)} taken; raise gpu_memory_utilization, or lower max_num_seqs, "
            "max_num_batched_tokens or block_size"
        )
    return MemoryPlan(
        budget_bytes=None if kv_cache_tokens is not None else budget_bytes,
        weight_bytes=weight_bytes,
        draft_bytes=draft_bytes,
        activation_bytes=activation_bytes,
        logits_bytes=logits_bytes,
        kv_bytes_per_token=bytes_per_token,
        block_size=block_size,
        num_blocks=num_blocks,
        state_bytes_per_block=state_bytes_per_block,
    )


def available_host_memory() -> int:
    """Bytes that this process may still take: the kernel's estimate, and the control group's limit if there is one."""
    candidates = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        if "MemAvailable" in fields:
            candidates.append(int(fields["MemAvailable"].split()[0]) * 1024)
    limit, used = (Path("/sys/fs/cgroup") / name for name in ("memory.max", "memory.current"))
    if limit.exists() and used.exists() and (text := limit.read_text().strip()).isdigit():
        candidates.append(max(0, int(text) - int(used.read_text())))
    return min(candidates)
