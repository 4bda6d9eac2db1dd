"""What the loop asks of a thing that trains; it knows of nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import torch
from torch import nn

from specdec.train.held_out import Tally
from specdec.train.samples import Item

Prepared = TypeVar("Prepared")
"""A trainee's own form of some samples: tensors on the CPU, made while the step before is computed."""
HeldOut = TypeVar("HeldOut")
"""The same with what measuring needs, kept for the whole run."""


@dataclass(frozen=True)
class StepLoss:
    """Of one micro-batch."""

    total: torch.Tensor
    """A number with a gradient: a mean over positions, so that steps of any size count alike."""
    divergences: torch.Tensor  # float32 [positions of the draft]   forward KL, without gradient
    num_rows: int
    """Positions that the first guess was trained at."""


class Trainee(Protocol[Prepared, HeldOut]):
    """A proposer while it trains.

    Everything it computes is a function of its parameters and the arguments: no generator, no counter. So a run that
    was interrupted goes on to the same bits.
    """

    @property
    def name(self) -> str:
        """ "eagle3", "medusa", ..."""
        ...

    @property
    def module(self) -> nn.Module:
        """Whose parameters train (those that require gradients) and are kept in checkpoints."""
        ...

    def prepare(self, items: Sequence[Item], seed: Sequence[int]) -> Prepared:
        """Called in a thread of its own; `seed` is the step's."""
        ...

    def loss(self, prepared: Prepared, acceptance_share: float) -> StepLoss:
        """`acceptance_share` as in `law_loss`."""
        ...

    def prepare_held_out(self, items: Sequence[Item]) -> HeldOut:
        """Once for each portion of the held-out samples."""
        ...

    def measure(self, held_out: HeldOut) -> Tally:
        """What drafts of the weights as they are come to; no gradients."""
        ...

    def write(self, directory: Path) -> None:
        """The weights as they are, as a directory that specdec loads."""
        ...
