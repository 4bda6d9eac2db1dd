"""What a proposer is, and the one table of those that exist.

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
from dataclasses import dataclass, fields
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from specdec.config import SpeculativeConfig, unknown_name
from specdec.core.sequence import Sequence
from specdec.types import EMPTY_DRAFT, Draft

if TYPE_CHECKING:  # the command line reads the table below, and must not wait for torch
    import torch

    from specdec.kernels import Kernels
    from specdec.step.kv_cache import KVCache
    from specdec.step.model import Model


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


PROPOSERS = {
    "none": ("specdec.proposers.base", "NoSettings", "NoProposer"),
    "draft": ("specdec.proposers.draft_model", "DraftModelSettings", "DraftModelProposer"),
    "ngram": ("specdec.proposers.ngram", "NgramSettings", "NgramProposer"),
    "suffix": ("specdec.proposers.suffix", "SuffixSettings", "SuffixProposer"),
}
"""Method name -> module, settings dataclass, proposer class; imported when first asked for."""


def check_settings(config: SpeculativeConfig) -> Any:
    """The method's own settings object, or a ValueError naming what is wrong and the nearest right name."""
    if config.method not in PROPOSERS:
        raise ValueError(unknown_name("proposer", config.method, PROPOSERS))
    module, settings_name, _ = PROPOSERS[config.method]
    settings_class = getattr(import_module(module), settings_name)
    names = [f.name for f in fields(settings_class)]
    for key in config.settings:
        if key not in names:
            valid = ["method", "num_speculative_tokens", "rejection_sample_method", "verifier", *names]
            raise ValueError(unknown_name(f"key of speculative_config for {config.method!r}:", key, valid))
    return settings_class(**config.settings)


def build_proposer(config: SpeculativeConfig, context: ProposerContext | None = None) -> Proposer:
    """The proposer that `config` describes, for the engine of `context`; one without a model needs no context."""
    settings = check_settings(config)
    module, _, class_name = PROPOSERS[config.method]
    proposer: Proposer = getattr(import_module(module), class_name)(settings, context)
    return proposer
