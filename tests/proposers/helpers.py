"""Sequences for proposers and engines for them to live in, built the way the engine builds them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from collections.abc import Sequence as Many
from functools import cache
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer as Backend
from tokenizers import models

from specdec.core.sequence import Sequence
from specdec.kernels import choose_backend
from specdec.proposers.base import Drafter, DraftModel, ProposalInput, Proposer, ProposerContext, TargetStates, Wants
from specdec.tokenizer import Tokenizer
from specdec.types import Draft, Request, SamplingParams
from tests.heads import HIDDEN, tiny_eagle, tiny_medusa, tiny_target
from tests.toys import ScriptedModel, random_script

EXAMPLE = "phrases_proposer:PhrasesProposer"
"""The README's example of a proposer from outside."""

SETTINGS: dict[str, dict[str, Any]] = {
    "draft": {"num_draft_layers": 1},
    **{method: {"model": "given"} for method in ("eagle", "eagle3", "medusa")},
    EXAMPLE: {"phrases": ["abcdacbdd", "caab"]},
}
"""What a method cannot do without."""

BLOCK_SIZE = 4
BLOCKS_PER_SEQUENCE = 16


def make_context(vocab_size: int = 4, num_sequences: int = 4, method: str = "none") -> ProposerContext:
    """An engine for `num_sequences` of `make_sequence`, with what the method drafts with and letters for tokens."""
    return ProposerContext(
        vocab_size=vocab_size,
        num_blocks=num_sequences * BLOCKS_PER_SEQUENCE,
        block_size=BLOCK_SIZE,
        max_num_batched_tokens=8,
        verifier="auto",
        kernels=choose_backend("cpu"),
        device=torch.device("cpu"),
        method=method,
        draft_model=_drafter(method, vocab_size),
        tokenizer=Tokenizer(Backend(models.BPE({chr(ord("a") + i): i for i in range(vocab_size)}, []))),
    )


@cache
def _drafter(method: str, vocab_size: int) -> Drafter:
    if method == "medusa":
        return tiny_medusa(vocab_size=vocab_size)
    if method in ("eagle", "eagle3"):
        return tiny_eagle(tiny_target(vocab_size=vocab_size), method)
    model = ScriptedModel(random_script(vocab_size, order=30), vocab_size)
    return DraftModel(model, vocab_size, model.max_model_len)


def ask(proposer: Proposer, sequences: Many[Sequence], lengths: Many[int], vocab_size: int) -> list[Draft]:
    """Propose as the engine does, the target having just computed every sequence from its start, and then a draft of
    two alternatives of which it took neither."""
    states = [_states(sequence, proposer.wants, vocab_size) for sequence in sequences] if proposer.wants.states else []
    drafts = proposer.propose(sequences, ProposalInput(lengths, states))
    assert isinstance(drafts, list)
    return drafts


def _states(sequence: Sequence, wants: Wants, vocab_size: int) -> TargetStates | None:
    """What a scripted target leaves: a function of the tokens up to each position; None where no step has been."""
    prefixes = [sequence.token_ids[:end] for end in range(1, sequence.num_tokens)]
    if not prefixes:
        return None
    hidden = torch.stack([_noise(prefix, HIDDEN) for prefix in prefixes])
    rejected = [(sequence.token_ids[-1] + i) % vocab_size for i in (1, 2)]
    paths = [prefixes[-1], *([*prefixes[-1], token] for token in rejected)]
    return TargetStates(
        start=0,
        num_tokens=len(prefixes),
        hidden=hidden if wants.hidden else None,
        aux={layer: hidden + layer for layer in wants.aux_layers},
        judged=(prefixes[-1][-1], *rejected),
        logits=torch.stack([_noise(path, vocab_size) for path in paths]) if wants.logits else None,
    )


def _noise(prefix: list[int], size: int) -> torch.Tensor:
    digest = hashlib.sha256(repr(prefix).encode()).digest()
    return torch.from_numpy(np.random.default_rng(int.from_bytes(digest[:8], "little")).normal(size=size))


def make_sequence(
    token_ids: Iterable[int], request_id: str = "r", index: int = 0, cache_salt: str | None = None, place: int = 0
) -> Sequence:
    """A sample whose prompt is `token_ids`, in blocks that are its own; tests append what a commit would."""
    prompt = tuple(token_ids)
    request = Request(request_id, prompt, SamplingParams(), seed=0, arrival=0, cache_salt=cache_salt)
    first = place * BLOCKS_PER_SEQUENCE
    return Sequence(request, index, list(prompt), block_table=list(range(first, first + BLOCKS_PER_SEQUENCE)))
