"""What a proposer is, and the one table of those that exist.

A proposer guesses; it never decides. The contract: `propose` answers one draft per sequence, never longer than asked,
possibly empty, deterministic given the seed, and leaves the sequences alone. If `draft_probs` is given, each token was
sampled from exactly that row. Whatever a proposer derives from a sequence, it catches up from where it last was to the
sequence's end (D1), so it may be asked at any step, or not.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass, fields
from importlib import import_module
from typing import Any, Protocol

from specdec.config import SpeculativeConfig, unknown_name
from specdec.core.sequence import Sequence
from specdec.types import EMPTY_DRAFT, Draft


@dataclass(frozen=True)
class ProposalInput:
    """What one step offers a proposer beside the sequences."""

    lengths: Many[int]
    """For each sequence, the most draft tokens that are wanted."""


class Proposer(Protocol):
    """See the module's text for the contract."""

    def propose(self, sequences: Many[Sequence], inp: ProposalInput) -> list[Draft]:
        """One draft per sequence, each at most `inp.lengths[i]` long."""
        ...

    def forget(self, sequence: Sequence) -> None:
        """Drop whatever is kept for a sequence; it will not be seen again. Unknown sequences are ignored."""
        ...


class NoProposer:
    """Plain decoding: the empty draft."""

    def __init__(self, settings: NoSettings) -> None:
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


def build_proposer(config: SpeculativeConfig) -> Proposer:
    """The proposer that `config` describes."""
    settings = check_settings(config)
    module, _, class_name = PROPOSERS[config.method]
    proposer: Proposer = getattr(import_module(module), class_name)(settings)
    return proposer
