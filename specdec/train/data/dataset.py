"""Training data as training reads it: samples by number, and the target's states where they are kept.

See `specdec.train.data.shards` for the files. Nothing is held in memory but tokens.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch

from specdec.train.data.record import Record, read_record
from specdec.train.data.shards import ShardFile, find_shards, read_shard


@dataclass(frozen=True)
class Sample:
    """A conversation up to an answer, and the target's answer."""

    token_ids: np.ndarray  # int64 [n], prompt and answer with its end-of-sequence token if it ended by itself
    num_prompt_tokens: int
    source: str
    temperature: float


@dataclass(frozen=True)
class Dataset:
    """The samples of a directory, in the order of its shards."""

    directory: Path
    record: Record
    shards: Sequence[ShardFile]

    @property
    def provenance(self) -> Mapping[str, Any]:
        """What data.json says: `identity`, `states`, `counts` and `runs`."""
        record = self.record
        return {
            "identity": record.identity,
            "states": record.states,
            "counts": record.counts or {},
            "runs": list(record.runs),
        }

    @property
    def aux_layers(self) -> tuple[int, ...]:
        """Whose inputs are in the kept states; () if none are kept."""
        return tuple(self.record.states.get("aux_layers", ()))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, i: int) -> Sample:
        shard, row = self._locate(i)
        columns = shard.columns
        return Sample(
            token_ids=columns["tokens"][self._span(shard, row)].astype(np.int64),
            num_prompt_tokens=int(columns["prompt_lengths"][row]),
            source=shard.sources[int(columns["sources"][row])],
            temperature=round(float(columns["temperatures"][row]), 6),
        )

    def states(self, i: int) -> torch.Tensor | None:
        """The target's states of a sample's n tokens, bfloat16 [n, (A + 1) * hidden]: the inputs of the aux layers in
        order, then the state after the final norm. None where they are not kept.

        The last row is zero: the target never read the last token, and no token follows it that could be learned.
        """
        shard, row = self._locate(i)
        states = self._states[shard.paths.number] if shard.has_states else None
        return None if states is None else states[self._span(shard, row)]

    def num_tokens(self, i: int) -> int:
        """The length of a sample, without reading it."""
        shard, row = self._locate(i)
        starts = shard.columns["starts"]
        return int(starts[row + 1] - starts[row])

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(shard.num_samples for shard in self.shards))

    @cached_property
    def _states(self) -> dict[int, torch.Tensor | None]:
        """Mapped: what is not read takes no memory."""
        return {shard.paths.number: shard.states() for shard in self.shards}

    def _locate(self, i: int) -> tuple[ShardFile, int]:
        if not -len(self) <= i < len(self):
            raise IndexError(f"sample {i} of {len(self)}")
        i %= len(self)
        number = bisect_right(self._ends, i)
        return self.shards[number], i - (self._ends[number - 1] if number else 0)

    @staticmethod
    def _span(shard: ShardFile, row: int) -> slice:
        return slice(int(shard.columns["starts"][row]), int(shard.columns["starts"][row + 1]))


def open_dataset(directory: Path) -> Dataset:
    """The data in a directory; ValueError, in one line, if there is none or a file is damaged."""
    record = read_record(directory)
    if record is None:
        raise ValueError(
            f"{directory} holds no training data: it has no data.json; make some with `specdec train data`"
        )
    width = int(record.states.get("width", 0))
    shards = [read_shard(paths, width) for paths in find_shards(directory)]
    ends = [0, *(shard.jobs[1] for shard in shards)]
    for shard, end in zip(shards, ends, strict=False):
        if shard.jobs[0] != end:
            raise ValueError(f"{shard.paths.samples} does not follow the shard before it; is a file missing?")
    dataset = Dataset(directory, record, shards)
    if not len(dataset):
        raise ValueError(f"{directory} holds no samples yet; `specdec train data` makes some")
    return dataset
