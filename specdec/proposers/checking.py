"""What a proposer answered, held against its contract before anybody relies on it.

A proposer may be anybody's code, wrong in any way. What it must not do to others is refused here, as a `ContractError`
in one line; what it returns is made immutable.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from collections.abc import Sequence as Many
from contextlib import contextmanager
from dataclasses import replace

import torch

from specdec.core.committed import cut
from specdec.core.sequence import Sequence
from specdec.types import MAX_DRAFT_NODES, Draft

SUM_TOLERANCE = 0.01
"""How far from 1 a law may add up to: what rounding to half precision explains."""


class ContractError(ValueError):
    """A proposer broke its contract. `kind` says how, without what differs from time to time."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@contextmanager
def untouched(sequences: Many[Sequence]) -> Iterator[None]:
    """Whatever is appended to committed tokens in the `with` block, or put in their place, is undone and refused.

    An engine's tokens refuse changes themselves (`specdec.core.committed`); this sees what goes round that.
    """
    before = [(sequence, sequence.token_ids, sequence.num_tokens) for sequence in sequences]
    try:
        yield
    finally:
        changed = [own for own in before if own[0].token_ids is not own[1] or len(own[1]) != own[2]]
        for sequence, token_ids, length in changed:
            sequence.token_ids = token_ids
            cut(token_ids, length)
    if changed:
        raise ContractError("tokens", "it changed the committed tokens of a sequence, which is undone")


def checked_drafts(
    drafts: Many[Draft | None], lengths: Many[int], name: str, vocab_size: int, device: torch.device
) -> list[Draft | None]:
    """The drafts with ids and parents as tuples, and under the proposer's `name` where they have none."""
    if len(drafts) != len(lengths):
        raise ContractError("count", f"{len(drafts)} drafts for {len(lengths)} sequences")
    found = [
        None if draft is None else _checked(draft, length, vocab_size)
        for draft, length in zip(drafts, lengths, strict=True)
    ]
    _check_laws([draft for draft in found if draft is not None], vocab_size, device)
    return [replace(draft, proposer=name) if draft and draft.proposer == "none" else draft for draft in found]


def _checked(draft: Draft, length: int, vocab_size: int) -> Draft:
    for what, ids in (("token_ids", draft.token_ids), ("parents", draft.parents or ())):
        if not isinstance(ids, tuple | list):
            raise ContractError(what, f"the {what} of a draft must be a tuple; got a {type(ids).__name__}")
    if type(draft.token_ids) is not tuple or type(draft.parents) not in (tuple, type(None)):
        parents = None if draft.parents is None else tuple(draft.parents)
        draft = replace(draft, token_ids=tuple(draft.token_ids), parents=parents)
    _check_shape(draft)
    if draft.depth > length:
        raise ContractError("depth", f"a draft of {draft.depth} tokens where at most {length} were asked for")
    if not all(type(token_id) is int for token_id in draft.token_ids):
        raise ContractError("id type", "a drafted token id is not an integer")
    if draft.token_ids and not 0 <= min(draft.token_ids) <= max(draft.token_ids) < vocab_size:
        raise ContractError("id", f"a drafted token id is outside the vocabulary of {vocab_size}")
    return draft


def _check_shape(draft: Draft) -> None:
    """A draft must be a tree of a size that can be verified."""
    if len(draft) > MAX_DRAFT_NODES:
        raise ContractError("size", f"a draft of {len(draft)} nodes where at most {MAX_DRAFT_NODES} can be verified")
    if draft.parents is None:
        return
    if len(draft.parents) != len(draft):
        raise ContractError("parents", f"a draft of {len(draft)} tokens and {len(draft.parents)} parents")
    for node, parent in enumerate(draft.parents):
        if type(parent) is not int or not -1 <= parent < node:
            message = f"the parent of draft node {node} must be -1 or an earlier node; got {parent!r}"
            raise ContractError("parents", message)


def _check_laws(drafts: Many[Draft], vocab_size: int, device: torch.device) -> None:
    """`draft_probs` must be laws: what else is there would be taken for one, or break the step of all."""
    extremes = []
    for draft in drafts:
        if draft.draft_probs is not None:
            _check_tensor(draft.draft_probs, len(draft), vocab_size, device)
            if len(draft):
                extremes.append(_extremes(draft.draft_probs))
    for distance, least in torch.stack(extremes).tolist() if extremes else ():
        if not math.isfinite(distance):
            raise ContractError("infinite", "a row of draft_probs is not finite")
        if distance > SUM_TOLERANCE:
            raise ContractError("sum", f"the sum of a row of draft_probs is off 1 by {distance:.3g}")
        if least < 0:
            raise ContractError("negative", f"draft_probs hold the negative probability {least:.3g}")


def _check_tensor(probs: object, num_tokens: int, vocab_size: int, device: torch.device) -> None:
    if not isinstance(probs, torch.Tensor):
        raise ContractError("law type", f"draft_probs must be a tensor; got a {type(probs).__name__}")
    if probs.layout is not torch.strided or not probs.is_floating_point():
        kind = "dense" if probs.layout is not torch.strided else "floating point"
        raise ContractError(kind, f"draft_probs must be a {kind} tensor; got {probs.dtype}, {probs.layout}")
    if probs.shape != (num_tokens, vocab_size):
        raise ContractError("shape", f"draft_probs of shape {tuple(probs.shape)} for {num_tokens} tokens")
    if probs.device.type != device.type:
        raise ContractError("device", f"draft_probs on {probs.device} where the engine is on {device}")


def _extremes(probs: torch.Tensor) -> torch.Tensor:
    """[2]: how far a row's sum is from 1 at most, and the least entry; NaN where there is any."""
    sums = probs.sum(dim=-1, dtype=torch.promote_types(probs.dtype, torch.float32))
    return torch.stack([(sums - 1.0).abs().amax(), probs.amin().to(sums.dtype)]).double()
