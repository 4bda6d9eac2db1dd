"""What a proposer is.

A proposer guesses; it never decides. The contract: `propose` answers one draft per sequence, never longer than asked,
possibly empty, deterministic given the seed, and leaves the sequences alone. If `draft_probs` is given, each token was
sampled from exactly that row. Whatever a proposer derives from a sequence, it catches up from where it last was to the
sequence's end (D1), so it may be asked at any step, or not.

A proposer may keep KV of its own, in caches of the target's blocks (D3). Then it is asked at every step, for prompt
chunks too, with length 0 where no draft is wanted. It computes a sequence's tokens from `num_draft_computed_tokens` on:
all committed and drafted ones but the last where it drafts, else up to `num_computed_tokens`. It may write at any of
these positions; the slots are there, and who shares a block at an earlier one holds the same tokens there.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from specdec.core.sequence import Sequence
from specdec.types import EMPTY_DRAFT, Draft

if TYPE_CHECKING:  # the command line checks settings, and must not wait for torch
    import torch

    from specdec.kernels import Kernels
    from specdec.step.kv_cache import KVCache
    from specdec.step.model import Model
    from specdec.tokenizer import Tokenizer


@dataclass(frozen=True)
class ProposalInput:
    """What one step offers a proposer beside the sequences."""

    lengths: Many[int]
    """For each sequence, the most draft tokens that are wanted."""


@dataclass(frozen=True)
class DraftModel:
    """A loaded model that is to draft, and what must be known of it."""

    model: Model
    vocab_size: int
    """How many logits it has; the target may have more or fewer."""
    max_model_len: int
    weight_bytes: int = 0
    """Beyond the target's own."""


@dataclass(frozen=True)
class ProposerContext:
    """The engine that a proposer is built for."""

    vocab_size: int
    """The target's: what ids and laws of drafts are for."""
    num_blocks: int
    block_size: int
    max_num_batched_tokens: int
    verifier: str
    kernels: Kernels
    device: torch.device
    draft_model: DraftModel | None = None
    """Where the method has one."""
    tokenizer: Tokenizer | None = None
    """The target's, if the engine has one."""


class Proposer(Protocol):
    """See the module's text for the contract."""

    @property
    def kv_caches(self) -> Many[KVCache]:
        """KV of its own, by the target's block ids; the runner copies blocks there too."""
        ...

    def propose(self, sequences: Many[Sequence], inp: ProposalInput) -> list[Draft]:
        """One draft per sequence, each at most `inp.lengths[i]` long."""
        ...

    def forget(self, sequence: Sequence) -> None:
        """Drop whatever is kept for a sequence; it will not be seen again. Unknown sequences are ignored."""
        ...


class NoProposer:
    """Plain decoding: the empty draft."""

    kv_caches: tuple[KVCache, ...] = ()

    def __init__(self, settings: NoSettings, context: ProposerContext | None = None) -> None:
        pass

    def propose(self, sequences: Many[Sequence], inp: ProposalInput) -> list[Draft]:
        return [EMPTY_DRAFT] * len(sequences)

    def forget(self, sequence: Sequence) -> None:
        pass


@dataclass(frozen=True)
class NoSettings:
    """`none` has no settings."""
