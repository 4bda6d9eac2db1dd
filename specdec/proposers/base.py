"""What a proposer is.

A proposer guesses; it never decides. The contract: `propose` answers one draft per sequence, never longer than asked,
possibly empty, deterministic given the seed, and leaves the sequences alone. If `draft_probs` is given, each token was
sampled from exactly that row. Whatever a proposer derives from a sequence, it catches up from where it last was to the
sequence's end (D1), so it may be asked at any step, or not.

A proposer may keep KV of its own, in caches of the target's blocks (D3). Then it is asked at every step, for prompt
chunks too, with length 0 where no draft is wanted. It computes a sequence's tokens from `num_draft_computed_tokens` on:
all committed ones where it drafts, else up to `num_computed_tokens`. It may write at any of these positions and, where
it drafts, after them as far as the block table goes; who shares a block at an earlier one holds the same tokens there.
What it computed of drafted tokens is kept only if it says so (`Draft.has_kv`).

What a proposer `wants` of the target's last step comes with the question: the states and logits of the positions that
the step computed, for each of its sequences. They are gone with the next step: what is learned from them depends on the
steps at which the proposer was asked.

An engine with the proposer `auto` asks those that it chooses from, steps apart, and once at its start for a draft of a
made-up sequence, to time it; then that sequence is forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

from specdec.core.sequence import Sequence
from specdec.types import EMPTY_DRAFT, MAX_SPECULATIVE_TOKENS, Draft

if TYPE_CHECKING:  # the command line checks settings, and must not wait for torch
    import torch

    from specdec.kernels import Kernels
    from specdec.models.eagle import EagleHead
    from specdec.models.medusa import MedusaHead
    from specdec.step.kv_cache import KVCache
    from specdec.step.model import Model
    from specdec.tokenizer import Tokenizer


@dataclass(frozen=True)
class Wants:
    """What a proposer needs of the target's steps, and of the blocks."""

    hidden: bool = False
    """States after the final norm."""
    aux_layers: tuple[int, ...] = ()
    """Layers whose inputs it needs; the number of layers stands for the last one's output."""
    logits: bool = False
    """The raw logits of verified positions."""
    num_slots: int | None = None
    """Where it has KV: the slots after the last committed token that a draft takes there; None: as many as a chain."""

    @property
    def states(self) -> bool:
        """Whether it needs anything of the target's steps."""
        return self.hidden or bool(self.aux_layers) or self.logits

    def plus(self, other: Wants) -> Wants:
        """What both need of the target's steps."""
        layers = tuple(sorted({*self.aux_layers, *other.aux_layers}))
        return Wants(self.hidden or other.hidden, layers, self.logits or other.logits)


NOTHING = Wants()


@dataclass(frozen=True)
class TargetStates:
    """What the target's last step left of one sequence, as far as it is wanted.

    It computed n committed positions from `start` on: what was scheduled and the accepted path, nothing rejected.
    """

    start: int
    num_tokens: int
    hidden: torch.Tensor | None = None  # [n, hidden]
    aux: Mapping[int, torch.Tensor] = field(default_factory=dict)  # by layer [n, hidden]
    judged: tuple[int, ...] = ()
    """The last committed token and the draft's nodes, rejected ones too, where the step verified; L of them."""
    logits: torch.Tensor | None = None  # [L, vocab]   after each token of `judged`, before any sampling transform
    path: tuple[int, ...] = ()
    """The accepted nodes: row 0 of `logits` is the last committed token's, row i + 1 node i's."""

    @property
    def end(self) -> int:
        """One past the last position."""
        return self.start + self.num_tokens


@dataclass(frozen=True)
class ProposalInput:
    """What one step offers a proposer beside the sequences."""

    lengths: Many[int]
    """For each sequence, the most draft tokens that are wanted; of a tree, its depth."""
    states: Many[TargetStates | None] = ()
    """For each sequence, what the target's step left of it; empty if the proposer wants nothing."""


@dataclass(frozen=True)
class DraftModel:
    """A loaded model that is to draft, and what must be known of it."""

    model: Model
    vocab_size: int
    """How many logits it has; the target may have more or fewer."""
    max_model_len: int
    weight_bytes: int = 0
    """Beyond the target's own."""


Drafter: TypeAlias = "DraftModel | EagleHead | MedusaHead"
"""What some proposers draft with: loaded before they are built."""


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
    num_speculative_tokens: int = MAX_SPECULATIVE_TOKENS
    """The longest draft, in a tree the deepest, that is ever wanted."""
    method: str = "none"
    """The name under which it is loaded, and which its drafts bear."""
    draft_model: Drafter | None = None
    """Where the method has one."""
    tokenizer: Tokenizer | None = None
    """The target's, if the engine has one."""


class Proposer(Protocol):
    """See the module's text for the contract."""

    @property
    def kv_caches(self) -> Many[KVCache]:
        """KV of its own, by the target's block ids; the runner copies blocks and moves accepted paths there too."""
        ...

    @property
    def wants(self) -> Wants:
        """What it needs of the target's steps."""
        ...

    def propose(self, sequences: Many[Sequence], inp: ProposalInput) -> Many[Draft | None]:
        """One draft per sequence, each at most `inp.lengths[i]` long; None if its own KV could not follow this one."""
        ...

    def forget(self, sequence: Sequence) -> None:
        """Drop whatever is kept for a sequence; it will not be seen again. Unknown sequences are ignored."""
        ...


class Limited(Protocol):
    """What a proposer may offer besides: the tokens that it can draft, where the target has others too. Evaluations ask
    for them, to tell what the others cost."""

    @property
    def sayable_token_ids(self) -> torch.Tensor | None:
        """The target's ids of these tokens, int64 [n]; None: all of them."""
        ...


class Hinting(Protocol):
    """What a proposer may offer besides: how much it has to go by, told before it drafts.

    The proposer `auto` decides by it who drafts, and learns what drafts of each hint are worth. A hint depends on what
    a draft depends on, and on nothing that is drawn; giving one changes no draft.
    """

    def hint(self, sequence: Sequence) -> int:
        """0: it would draft nothing, by what it has learned so far; else a class of its own, such as the length of a
        match, from 1 to 7 (more counts as 7)."""
        ...


class NoProposer:
    """Plain decoding: the empty draft."""

    kv_caches: tuple[KVCache, ...] = ()
    wants = NOTHING

    def __init__(self, settings: NoSettings, context: ProposerContext | None = None) -> None:
        pass

    def propose(self, sequences: Many[Sequence], inp: ProposalInput) -> list[Draft]:
        return [EMPTY_DRAFT] * len(sequences)

    def forget(self, sequence: Sequence) -> None:
        pass


@dataclass(frozen=True)
class NoSettings:
    """`none` has no settings."""

    def num_nodes(self, num_speculative_tokens: int) -> int:
        return 0


class Settings(Protocol):
    """What every method's settings can tell before the proposer is built."""

    def num_nodes(self, num_speculative_tokens: int) -> int:
        """The most nodes of a draft of this depth: of a chain, its length."""
        ...
