"""Sequences for proposers, built the way the engine builds them."""

from __future__ import annotations

from collections.abc import Iterable

from specdec.core.sequence import Sequence
from specdec.types import Request, SamplingParams


def make_sequence(
    token_ids: Iterable[int], request_id: str = "r", index: int = 0, cache_salt: str | None = None
) -> Sequence:
    """A sample whose prompt is `token_ids`; tests append to its list what a commit would."""
    prompt = tuple(token_ids)
    request = Request(request_id, prompt, SamplingParams(), seed=0, arrival=0, cache_salt=cache_salt)
    return Sequence(request, index, list(prompt))
