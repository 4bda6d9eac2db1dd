"""The target's features that a head of its own KV goes on from (DESIGN.md, D3).

An entry of such a head pairs the feature of one position with the token of the next. What the last step computed comes
with the question; what came just before it is kept here: for each sequence the feature of the last position, and for
each block that of its last token, so that after a prefix hit nothing has to be computed again.
"""

from __future__ import annotations

import torch

from specdec.core.scheduler import ScheduledRow
from specdec.core.sequence import Sequence
from specdec.proposers.base import TargetStates


class FeatureStore:
    """Features, [F] each."""

    def __init__(self, num_blocks: int, block_size: int, size: int, dtype: torch.dtype, device: torch.device) -> None:
        self.block_size = block_size
        self.boundaries = torch.empty(num_blocks, size, dtype=dtype, device=device)
        self._last: dict[tuple[str, int], tuple[int, torch.Tensor]] = {}  # by sample: a position and its feature

    def of_row(self, row: ScheduledRow, states: TargetStates, features: torch.Tensor) -> torch.Tensor | None:
        """Features [count, F] of the positions before those of a head's span, None if they are lost.

        `features` [n, F] are those of the step's positions, from `states.start` on.
        """
        first, end = row.start - 1 - states.start, row.end - 1 - states.start
        if first >= 0:
            return features[first:end]
        before = self.before(row.sequence, row.start)
        if first < -1 or before is None:
            return None
        return torch.cat((before[None], features[:end]))

    def before(self, sequence: Sequence, position: int) -> torch.Tensor | None:
        """The feature at `position - 1`, which an earlier step computed, or another sequence that filled the block."""
        last = self._last.get(sequence.key)
        if last is not None and last[0] == position - 1:
            return last[1]
        blocks, rest = divmod(position, self.block_size)
        if rest or not 0 < blocks <= sequence.num_hashed_blocks:
            return None  # nobody says that the block's feature is there
        return self.boundaries[sequence.block_table[blocks - 1]]

    def keep(self, sequence: Sequence, states: TargetStates, features: torch.Tensor) -> None:
        """Keep what later steps go on from: of this sequence, its blocks, and the samples that wait for its prompt."""
        size = self.block_size
        for position in range(states.start + (-states.start - 1) % size, states.end, size):
            self.boundaries[sequence.block_table[position // size]] = features[position - states.start]
        if sequence.forks:
            self._keep_for_forks(sequence, states, features)
        self._last[sequence.key] = states.end - 1, features[-1].clone()

    def _keep_for_forks(self, sequence: Sequence, states: TargetStates, features: torch.Tensor) -> None:
        """The other samples go on at the prompt's last token."""
        position = sequence.num_prompt_tokens - 2
        if states.start <= position < states.end:
            feature: torch.Tensor | None = features[position - states.start].clone()
        else:
            feature = self.before(sequence, states.start) if position == states.start - 1 else None
        if feature is not None:
            for fork in sequence.forks:
                self._last[fork.key] = position, feature

    def forget(self, sequence: Sequence) -> None:
        self._last.pop(sequence.key, None)
