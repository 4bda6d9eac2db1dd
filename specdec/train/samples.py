"""What training reads: tokens of the target's answers, and its states at them. Where they come from, and whether states
lie on disk or are computed anew, is not known here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

import numpy as np
import torch


class TokenSample(Protocol):
    """A prompt and the target's answer to it."""

    @property
    def token_ids(self) -> np.ndarray:
        """int64 [n]: prompt and answer."""
        ...

    @property
    def num_prompt_tokens(self) -> int: ...


class Samples(Protocol):
    """Samples by index."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> TokenSample: ...


class StateSource(Protocol):
    """The target's states at the tokens of a sample."""

    def states(self, index: int) -> torch.Tensor:
        """[n, (A + 1) * H]: in each row the inputs of the A auxiliary layers in order, then the state after the final
        norm, all at that row's token."""
        ...


class _Places:
    """Which of several lists an index is in, one after the other, and where there."""

    def __init__(self, lists: Sequence[Samples]) -> None:
        self.ends = [*accumulate(map(len, lists))]

    def of(self, index: int) -> tuple[int, int]:
        if not 0 <= index < self.ends[-1]:
            raise IndexError(f"sample {index} of {self.ends[-1]}")
        number = bisect_right(self.ends, index)
        return number, index - (self.ends[number - 1] if number else 0)


class _Joined:
    def __init__(self, lists: Sequence[Samples]) -> None:
        self._lists, self._places = lists, _Places(lists)

    def __len__(self) -> int:
        return self._places.ends[-1]

    def __getitem__(self, index: int, /) -> TokenSample:
        number, own = self._places.of(index)
        return self._lists[number][own]


class _JoinedStates:
    def __init__(self, lists: Sequence[Samples], sources: Sequence[StateSource]) -> None:
        self._sources, self._places = sources, _Places(lists)

    def states(self, index: int) -> torch.Tensor:
        number, own = self._places.of(index)
        return self._sources[number].states(own)


def joined(lists: Sequence[Samples]) -> Samples:
    """All samples of one or more lists, one after the other."""
    return lists[0] if len(lists) == 1 else _Joined(lists)


def joined_states(lists: Sequence[Samples], sources: Sequence[StateSource]) -> StateSource:
    """The states of `joined(lists)`, each list with its source."""
    return sources[0] if len(lists) == 1 else _JoinedStates(lists, sources)


@dataclass(frozen=True)
class Item:
    """One sample as a trainee gets it."""

    token_ids: torch.Tensor  # int64 [n]
    num_prompt_tokens: int
    states: torch.Tensor  # [n, (A + 1) * H]


def read_item(samples: Samples, states: StateSource, index: int) -> Item:
    """A sample with its states. ValueError where their lengths differ: states of another data set."""
    sample = samples[index]
    tokens = torch.from_numpy(np.asarray(sample.token_ids, dtype=np.int64))
    found = states.states(index)
    if found.shape[0] != len(tokens):
        raise ValueError(f"sample {index} has {len(tokens)} tokens and states of {found.shape[0]}")
    return Item(tokens, sample.num_prompt_tokens, found)
