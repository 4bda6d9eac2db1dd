"""What the proposers of trained heads share: their settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specdec.config import unknown_name
from specdec.proposers.growing import check_confidence_threshold, check_sample_method
from specdec.proposers.shapes import TreeChoice

_QUANTIZATIONS = ("none", "int8", "int4")


def _check_shares(name: str, values: object) -> None:
    if not isinstance(values, list | tuple) or not all(
        isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1 for value in values
    ):
        raise ValueError(f"{name} must be a list of shares, from 0 to 1 each; got {values!r}")


@dataclass(frozen=True)
class HeadSettings:
    """A trained head: `model` is its directory or file, a hub name or a built-in head's; None: the one that is built in
    for the target. `draft_vocab`, a file with a list of token ids, keeps only those in the output matrix of a head that
    has them all.

    `quantization` is the head's own; None: int8 where the target's weights are quantised, else the codes that its file
    has.

    With `draft_sample_method` "probabilistic" (vLLM's key) a request that samples is drafted by sampling from the
    head's law; "greedy" always takes its likeliest tokens. A draft goes on as long as its probability, by the
    head's own law, is at least `confidence_threshold`.

    `expected_acceptance` is what the proposer `auto` begins with, before it has seen drafts of its own: by position the
    share of the head's tokens that are accepted where all before them were. It changes no draft.
    """

    model: str | None = None
    draft_vocab: str | None = None
    quantization: str | None = None
    draft_sample_method: str = "probabilistic"
    confidence_threshold: float = 0.0
    expected_acceptance: Sequence[float] = ()
    tree: str = TreeChoice.tree
    tree_nodes: int = TreeChoice.tree_nodes
    tree_width: int = TreeChoice.tree_width

    def __post_init__(self) -> None:
        if self.model is not None and (not isinstance(self.model, str) or not self.model):
            raise ValueError(f"a draft head's model must be its directory or file (--draft-model); got {self.model!r}")
        if self.draft_vocab is not None and (not isinstance(self.draft_vocab, str) or not self.draft_vocab):
            raise ValueError(f"draft_vocab must be a file with a list of token ids; got {self.draft_vocab!r}")
        if self.quantization is not None and self.quantization not in _QUANTIZATIONS:
            raise ValueError(unknown_name("quantization of a draft head", self.quantization, _QUANTIZATIONS))
        check_sample_method(self.draft_sample_method)
        check_confidence_threshold(self.confidence_threshold)
        _check_shares("expected_acceptance", self.expected_acceptance)
        TreeChoice(self.tree, self.tree_nodes, self.tree_width)

    @property
    def tree_choice(self) -> TreeChoice:
        return TreeChoice(self.tree, self.tree_nodes, self.tree_width)

    @property
    def samples(self) -> bool:
        return self.draft_sample_method == "probabilistic"

    def num_nodes(self, num_speculative_tokens: int) -> int:
        return self.tree_choice.num_nodes(num_speculative_tokens)
