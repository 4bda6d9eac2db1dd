"""What the proposers of trained heads share: their settings."""

from __future__ import annotations

from dataclasses import dataclass

from specdec.config import unknown_name
from specdec.proposers.growing import check_confidence_threshold, check_sample_method
from specdec.proposers.shapes import TreeChoice

_QUANTIZATIONS = ("none", "int8", "int4")


@dataclass(frozen=True)
class HeadSettings:
    """A trained head: `model` is its directory or file, a hub name or a built-in head's; None: the one that is built in
    for the target. `draft_vocab`, a file with a list of token ids, keeps only those in the output matrix of a head that
    has them all.

    `quantization` is the head's own; None: int8 where the target's weights are quantised.

    With `draft_sample_method` "probabilistic" (vLLM's key) a request that samples is drafted by sampling from the
    head's law; "greedy" always takes its likeliest tokens. A draft ends where nothing would make its probability, by
    the head's own law, at least `confidence_threshold`.
    """

    model: str | None = None
    draft_vocab: str | None = None
    quantization: str | None = None
    draft_sample_method: str = "probabilistic"
    confidence_threshold: float = 0.0
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
        TreeChoice(self.tree, self.tree_nodes, self.tree_width)

    @property
    def tree_choice(self) -> TreeChoice:
        return TreeChoice(self.tree, self.tree_nodes, self.tree_width)

    @property
    def samples(self) -> bool:
        return self.draft_sample_method == "probabilistic"

    def num_nodes(self, num_speculative_tokens: int) -> int:
        return self.tree_choice.num_nodes(num_speculative_tokens)
