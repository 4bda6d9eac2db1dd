"""Samples as the entries and chains of an EAGLE head, packed without padding. Indices alone; no weights.

An entry at position p (from 1 on) pairs the token there with the target's feature at p - 1. A chain starts at an entry:
unroll 0 computes it from the true feature, unroll j the entry j positions later from the output of unroll j - 1. At
inference a chain exists only while the draft can say the target's tokens, so a chain ends before the first that is not
in the draft's vocabulary; and a row whose next token is not, which no draft could get right, has no loss. Over samples
of the target this weighs each position with the target's probability of the draft's vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from specdec.train.samples import Item


@dataclass(frozen=True)
class Unroll:
    """The rows of one unroll, sample by sample, in order of their chains' starts."""

    at: torch.Tensor  # int64 [R_j]   which of the active entries a row computes
    parents: torch.Tensor  # int64 [R_j]   the chain's row in the unroll before; meaningless in unroll 0
    last_entries: (
        torch.Tensor
    )  # int64 [R_j]   the chain's first entry, counted in its sample: what true entries it sees
    counts: tuple[int, ...]
    """Rows of each sample."""


@dataclass(frozen=True)
class PackedChains:
    """E entries and R active ones (those whose next token is trained on) of some samples."""

    token_ids: torch.Tensor  # int64 [E]
    positions: torch.Tensor  # int64 [E]
    features: torch.Tensor  # [E, A * Ht]   raw, of the position before
    entry_counts: tuple[int, ...]
    active: torch.Tensor  # int64 [R]   among the entries
    next_ids: torch.Tensor  # int64 [R]   the token after each active entry
    finals: torch.Tensor  # [R, Ht]   the target's states after the final norm, there
    unrolls: tuple[Unroll, ...]

    def to(self, device: torch.device) -> PackedChains:
        if device.type == "cpu":
            return self
        moved = (
            Unroll(each.at.to(device), each.parents.to(device), each.last_entries.to(device), each.counts)
            for each in self.unrolls
        )
        return PackedChains(
            self.token_ids.to(device),
            self.positions.to(device),
            self.features.to(device),
            self.entry_counts,
            self.active.to(device),
            self.next_ids.to(device),
            self.finals.to(device),
            tuple(moved),
        )


@dataclass(frozen=True)
class ChainRules:
    """Which entries and chains there are."""

    sayable: np.ndarray  # bool [V]   the draft's vocabulary
    num_unrolls: int
    answers_only: bool
    share: float
    """Of the starts whose chains go beyond unroll 0."""
    trains: bool
    """Rows whose next token the draft cannot say are left out; in measuring they are misses."""


def pack_chains(items: Sequence[Item], hidden_size: int, rules: ChainRules, seed: Sequence[int]) -> PackedChains:
    """`hidden_size` is the target's. Samples of fewer than 3 tokens have no entry with a token after it, and are left
    out; ValueError if none is left."""
    items = [item for item in items if len(item.token_ids) > 2]
    if not items:
        raise ValueError("no sample has the 3 tokens that training needs")
    # Entry e is position e + 1, and its next token position e + 2: that belongs to the answer from here on.
    firsts = [max(0, item.num_prompt_tokens - 2) if rules.answers_only else 0 for item in items]
    counts = tuple(len(item.token_ids) - 2 for item in items)
    lengths = [max(0, count - first) for count, first in zip(counts, firsts, strict=True)]
    starts = np.cumsum([0, *counts[:-1]])
    active = _ranges(starts + firsts, lengths)
    next_ids = torch.cat([item.token_ids[2 + first :] for item, first in zip(items, firsts, strict=True)])
    return PackedChains(
        token_ids=torch.cat([item.token_ids[1:-1] for item in items]),
        positions=torch.cat([torch.arange(1, count + 1) for count in counts]),
        features=torch.cat([item.states[:-2, :-hidden_size] for item in items]),
        entry_counts=counts,
        active=torch.from_numpy(active),
        next_ids=next_ids,
        finals=torch.cat(
            [item.states[1 + first : -1, -hidden_size:] for item, first in zip(items, firsts, strict=True)]
        ),
        unrolls=_unrolls(rules.sayable[next_ids.numpy()], active - np.repeat(starts, lengths), lengths, rules, seed),
    )


def _unrolls(
    sayable: np.ndarray, entries: np.ndarray, lengths: Sequence[int], rules: ChainRules, seed: Sequence[int]
) -> tuple[Unroll, ...]:
    """`sayable`, `entries` [R]: of each active entry, whether the draft can say the next token, and its place in its
    sample; `lengths`: active entries of each sample."""
    owners = np.repeat(np.arange(len(lengths)), lengths)
    left = np.repeat(np.cumsum(lengths), lengths) - np.arange(
        len(owners)
    )  # active entries from here to the sample's end
    starts = np.arange(len(owners))
    parents = starts
    unrolls = []
    for depth in range(rules.num_unrolls):
        if depth > 0:
            goes_on = sayable[starts + depth - 1] & (left[starts] > depth)
            if depth == 1 and rules.share < 1.0:
                goes_on &= np.random.default_rng(seed).random(len(starts)) < rules.share
            parents, starts = np.flatnonzero(goes_on), starts[goes_on]
        if rules.trains:
            said = sayable[starts + depth]
            parents, starts = parents[said] if depth else np.arange(int(said.sum())), starts[said]
        unrolls.append(
            Unroll(
                at=torch.from_numpy(starts + depth),
                parents=torch.from_numpy(parents),
                last_entries=torch.from_numpy(entries[starts]),
                counts=tuple(np.bincount(owners[starts], minlength=len(lengths)).tolist()),
            )
        )
    return tuple(unrolls)


def _ranges(starts: np.ndarray, lengths: Sequence[int]) -> np.ndarray:
    """start, start + 1, ... of each, one after the other."""
    return np.concatenate([np.arange(start, start + length) for start, length in zip(starts, lengths, strict=True)])
