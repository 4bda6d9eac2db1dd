"""The KV that an engine relies on, read from its caches, and the same computed afresh.

Position by position, for the target and for the proposer that keeps KV of its own: what counts as computed must be what
an engine of the same kind computes that is given the committed tokens as one prompt.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass

import torch

from specdec.core.sequence import Sequence
from specdec.engine import Engine
from specdec.step.kv_cache import KVCache
from specdec.types import SamplingParams, SpeculationParams

TARGET = "the target"

FRESH = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, detokenize=False)
"""Allows for drafts, so that a proposer computes its KV too."""


@dataclass(frozen=True)
class Entries:
    """Keys and values of a cache's positions from 0 on: float [num_layers, 2, count, G * D]."""

    owner: str
    values: torch.Tensor

    @property
    def count(self) -> int:
        return self.values.shape[2]


@dataclass(frozen=True)
class Snapshot:
    """What was relied on for one sequence at one moment."""

    entries: tuple[Entries, ...]
    num_preemptions: int

    @property
    def count(self) -> int:
        """The most positions of any owner."""
        return max(entry.count for entry in self.entries)


@dataclass(frozen=True)
class Difference:
    """The largest of a snapshot: by how much a vector differs, relative to its length; infinite where only one of the
    two was computed at all."""

    owner: str
    position: int
    layer: int
    what: str
    relative: float


def take(engine: Engine, sequence: Sequence) -> Snapshot:
    """A copy of everything that counts as computed for a sequence that has blocks."""
    computed = [(TARGET, engine.runner.kv, sequence.num_computed_tokens)]
    method = sequence.request.draft_kv or sequence.request.proposer
    proposer = engine.runner.proposers.get(method)
    for cache in proposer.kv_caches if proposer is not None else ():
        own = sequence.num_draft_computed_tokens if sequence.request.draft_kv == method else 0
        computed.append((f"the proposer {method}", cache, min(own, sequence.num_tokens)))
    entries = [Entries(owner, _read(cache, sequence, count)) for owner, cache, count in computed]
    return Snapshot(tuple(entries), sequence.num_preemptions)


def _read(cache: KVCache, sequence: Sequence, count: int) -> torch.Tensor:
    """Float [num_layers, 2, count, G * D]; NaN for what counts as computed and has no slot."""
    size = cache.block_size
    with_slot = min(count, len(sequence.block_table) * size)
    positions = torch.arange(with_slot, device=cache.keys[0].device)
    table = torch.tensor(sequence.block_table, dtype=torch.int64, device=positions.device)
    slots = table[positions // size] * size + positions % size
    layers = [torch.stack(cache.read(layer, slots)).flatten(2) for layer in range(cache.layout.num_layers)]
    return torch.nn.functional.pad(torch.stack(layers), (0, 0, 0, count - with_slot), value=math.nan)


def poison(engine: Engine) -> None:
    """Fill every cache with NaN, so that what was never computed shows."""
    caches = [cache for proposer in engine.runner.proposers.values() for cache in proposer.kv_caches]
    for kv in (engine.runner.kv, *caches):
        kv.poison()


def recompute(engine: Engine, token_ids: Many[int], owner: str | None = None) -> Snapshot | str:
    """What an engine that is given the tokens as one prompt relies on then; why it failed, if it did. `owner` is the
    proposer with KV whose turn it is, lest `auto` choose another; None takes the engine's first."""
    poison(engine)
    engine.add_request("fresh", list(token_ids), FRESH, speculation=SpeculationParams(owner))
    while not (running := engine.scheduler.running) or running[0].num_uncomputed_tokens != 1:
        for output in engine.step():
            if output.finished:
                return output.outputs[0].error or "it ended at once"
    snapshot = take(engine, running[0])
    engine.abort("fresh")
    assert snapshot.entries[0].count == len(token_ids)
    return snapshot


def compare(ours: Snapshot, fresh: Snapshot) -> Iterator[Difference]:
    """The largest difference of each owner, over the positions that both have."""
    for own, other in zip(ours.entries, fresh.entries, strict=True):
        count = min(own.count, other.count)
        if count:
            yield _largest(own.owner, own.values[:, :, :count].double(), other.values[:, :, :count].double())


def _largest(owner: str, ours: torch.Tensor, fresh: torch.Tensor) -> Difference:
    """Of vectors [num_layers, 2, count, G * D]. NaN is what was never computed; where `fresh` is so, it need not be."""
    size = torch.maximum(ours.nan_to_num().norm(dim=-1), fresh.nan_to_num().norm(dim=-1))
    distance = torch.where(fresh.isnan(), 0.0, (ours - fresh).abs().nan_to_num(nan=math.inf)).norm(dim=-1)
    relative = torch.where(distance == 0, 0.0, distance / size)  # [num_layers, 2, count]
    # The first position that is clearly wrong is the cause; those that follow, and deeper layers, show its effect.
    by_position = relative.amax(dim=(0, 1))
    position = int((by_position >= by_position.max() / 2).nonzero()[0])
    layer, what = divmod(int(relative[:, :, position].argmax()), 2)
    return Difference(owner, position, layer, ("key", "value")[what], float(relative[layer, what, position]))
