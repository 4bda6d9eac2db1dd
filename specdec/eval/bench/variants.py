"""The ways to decode that a bench compares: plainly, and with each proposer of the engine."""

from __future__ import annotations

from collections.abc import Sequence

from specdec.config import AUTO
from specdec.engine import Engine
from specdec.eval.measure import PLAIN, Variant
from specdec.eval.session import Job
from specdec.types import SamplingParams, SpeculationParams


def variants_of(engine: Engine) -> tuple[Variant, ...]:
    """Plain decoding first. Where `auto` is the default, it alone, and not what it chooses from."""
    listed = engine.config.speculative
    listed = listed[:1] if listed and listed[0].method == AUTO else listed
    own = (Variant(entry.method, entry.num_speculative_tokens) for entry in listed)
    return (PLAIN, *(variant for variant in own if variant.proposer != PLAIN.proposer))


def turns(variants: Sequence[Variant], number: int) -> Sequence[Variant]:
    """All of them, another one first in each round."""
    first = number % len(variants)
    return (*variants[first:], *variants[:first])


def job(token_ids: tuple[int, ...], variant: Variant, max_tokens: int, salt: str) -> Job:
    """A greedy request of exactly `max_tokens` tokens. What has another salt neither shares prefixes with it nor
    drafts from what it said."""
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, seed=0)
    return Job(token_ids, params, SpeculationParams(variant.proposer, variant.num_speculative_tokens), salt)
