"""What plain decoding says after given tokens: the target's logits, from an engine of its own that never drafts.

It is the yardstick of the law test. Beginnings that several texts share are computed once: its blocks hold one token
each, so that the prefix cache shares all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import replace

import torch

from specdec.config import EngineConfig
from specdec.engine import Engine
from specdec.eval.driving import Job, Watch, drive
from specdec.step.batch import Batch
from specdec.step.kv_cache import KVCache, KVLayout
from specdec.step.model import Model
from specdec.types import SamplingParams

Text = tuple[int, ...]
Visit = Callable[[Text, torch.Tensor], None]
"""Given a text and the logits [V] after it."""

ONE_TOKEN = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, detokenize=False)
BuildEngine = Callable[[EngineConfig], Engine]
"""An engine of a configuration, around models that are loaded already."""


class Reader:
    """Reads logits; `longest` bounds the texts, `most` says how many tokens of them are worth keeping at once."""

    def __init__(self, build: BuildEngine, config: EngineConfig, longest: int, most: int) -> None:
        pool = most + longest + config.max_num_seqs
        own = replace(
            config, speculative=(), verifier="auto", block_size=1, kv_cache_tokens=pool, enable_prefix_caching=True
        )
        self._engine = build(own)
        self._listener = _Listener(self._engine.runner.model)
        self._engine.runner.model = self._listener

    def read(self, texts: Many[Text], visit: Visit, watch: Watch, label: str) -> None:
        """Visit each text once, shorter ones first: they are what longer ones begin with."""
        listed = sorted(set(texts), key=lambda text: (len(text), text))
        self._listener.visit = visit
        for length in sorted({len(text) for text in listed}):
            drive(self._engine, [Job(text, ONE_TOKEN) for text in listed if len(text) == length], watch, label)


class _Listener:
    """A target whose logits are handed on, with the text that they come after."""

    def __init__(self, inner: Model) -> None:
        self.visit: Visit = lambda text, logits: None
        self._inner = inner
        self._texts: list[Text] = []

    def forward(self, batch: Batch, kv: KVCache) -> torch.Tensor:
        self._texts = [tuple(row.sequence.token_ids) for row in batch.rows if row.num_logits]
        return self._inner.forward(batch, kv)

    def forward_with_aux(
        self, batch: Batch, kv: KVCache, aux_layers: Many[int]
    ) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        raise AssertionError("an engine without proposers wants nothing of its layers")

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = self._inner.compute_logits(hidden)
        for text, row in zip(self._texts, logits, strict=True):
            self.visit(text, row)
        return logits

    def kv_layout(self) -> KVLayout:
        return self._inner.kv_layout()
