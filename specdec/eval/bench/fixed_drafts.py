"""A proposer for measurements: every draft is as long as was asked for, at no cost, and mostly wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specdec.core.sequence import Sequence as Sample
from specdec.proposers.base import NOTHING, ProposalInput, ProposerContext
from specdec.step.kv_cache import KVCache
from specdec.types import Draft

METHOD = f"{__name__}:FixedDrafts"
"""What an engine's configuration calls it."""


class FixedDrafts:
    """Drafts the same tokens again and again."""

    kv_caches: tuple[KVCache, ...] = ()
    wants = NOTHING

    @dataclass(frozen=True)
    class Settings:
        token_ids: Sequence[int] = (0,)

    def __init__(self, settings: Settings, context: ProposerContext) -> None:
        longest = context.num_speculative_tokens
        self._token_ids = (tuple(settings.token_ids) * longest)[:longest]

    def propose(self, sequences: Sequence[Sample], inp: ProposalInput) -> list[Draft]:
        return [Draft(self._token_ids[:length]) for length in inp.lengths]

    def forget(self, sequence: Sample) -> None:
        pass
