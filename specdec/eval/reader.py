"""What plain decoding says after given tokens: the target's logits, from an engine of its own that never drafts.

It is the yardstick of the law test. Texts are prompts here, each with all of its positions read at once, and what
several of them begin with is computed once: blocks hold one token each, so that the prefix cache shares every token.
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
CHUNK_ROWS = 32
"""Rows of logits that are held at once."""
BuildEngine = Callable[[EngineConfig], Engine]
"""An engine of a configuration, around models that are loaded already."""


class Reader:
    """Reads the logits after each of some texts."""

    def __init__(self, build: BuildEngine, config: EngineConfig, texts: Many[Text]) -> None:
        self._wanted = set(texts)
        self._stems = sorted({text[:-1] for text in self._wanted} - self._wanted)
        longer = {text[:-1] for text in self._wanted}
        self._leaves = sorted(self._wanted - longer)
        # Room for every token of every text, each shared beginning counted once.
        pool = sum(map(len, self._stems)) + len(self._wanted)
        pool += config.max_num_seqs * (1 + max(map(len, self._wanted)) - min(map(len, self._wanted)))
        own = replace(
            config, speculative=(), verifier="auto", block_size=1, kv_cache_tokens=pool, enable_prefix_caching=True
        )
        self._engine = build(own)

    def read(self, visit: Visit, watch: Watch, label: str) -> None:
        """Visit each text, the shared beginnings first computed by themselves."""
        self._engine.runner.model = _Listener(self._engine.runner.model, self._wanted, visit)
        for texts in (self._stems, self._leaves):
            drive(self._engine, [Job(text, ONE_TOKEN) for text in texts if text], watch, label)


class _Listener:
    """A target that hands on the logits after every wanted text, once."""

    def __init__(self, inner: Model, wanted: set[Text], visit: Visit) -> None:
        self._inner = inner
        self._wanted = set(wanted)
        self._visit = visit

    def forward(self, batch: Batch, kv: KVCache) -> torch.Tensor:
        found = self._find(batch)
        indices = torch.tensor(sorted({index for index, _ in found} | set(batch.logits_indices.tolist())))
        hidden = self._inner.forward(replace(batch, logits_indices=indices.to(batch.logits_indices)), kv)
        for chunk in (found[i : i + CHUNK_ROWS] for i in range(0, len(found), CHUNK_ROWS)):
            logits = self._inner.compute_logits(hidden[[index for index, _ in chunk]])
            for (_, text), own in zip(chunk, logits, strict=True):
                self._visit(text, own)
        return hidden

    def _find(self, batch: Batch) -> list[tuple[int, Text]]:
        """The batch's tokens that end a wanted text not seen before, by their index."""
        found: list[tuple[int, Text]] = []
        at = 0
        for row in batch.rows:
            for position in range(row.start, row.end):
                text = tuple(row.sequence.token_ids[: position + 1])
                if text in self._wanted:
                    self._wanted.remove(text)
                    found.append((at + position - row.start, text))
            at += row.num_scheduled_tokens
        return found

    def forward_with_aux(
        self, batch: Batch, kv: KVCache, aux_layers: Many[int]
    ) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        raise AssertionError("an engine without proposers wants nothing of its layers")

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._inner.compute_logits(hidden)

    def kv_layout(self) -> KVLayout:
        return self._inner.kv_layout()
