"""Sequences for proposers and engines for them to live in, built the way the engine builds them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from tokenizers import Tokenizer as Backend
from tokenizers import models

from specdec.core.sequence import Sequence
from specdec.kernels import choose_backend
from specdec.proposers.base import DraftModel, ProposerContext
from specdec.tokenizer import Tokenizer
from specdec.types import Request, SamplingParams
from tests.toys import ScriptedModel, random_script

EXAMPLE = "phrases_proposer:PhrasesProposer"
"""The README's example of a proposer from outside."""

SETTINGS: dict[str, dict[str, Any]] = {
    "draft": {"num_draft_layers": 1},
    EXAMPLE: {"phrases": ["abcdacbdd", "caab"]},
}
"""What a method cannot do without."""

BLOCK_SIZE = 4
BLOCKS_PER_SEQUENCE = 16


def make_context(vocab_size: int = 4, num_sequences: int = 4) -> ProposerContext:
    """An engine for `num_sequences` of `make_sequence`, with a scripted draft model and letters for tokens."""
    model = ScriptedModel(random_script(vocab_size, order=30), vocab_size)
    return ProposerContext(
        vocab_size=vocab_size,
        num_blocks=num_sequences * BLOCKS_PER_SEQUENCE,
        block_size=BLOCK_SIZE,
        max_num_batched_tokens=8,
        verifier="auto",
        kernels=choose_backend("cpu"),
        device=torch.device("cpu"),
        draft_model=DraftModel(model, vocab_size, model.max_model_len),
        tokenizer=Tokenizer(Backend(models.BPE({chr(ord("a") + i): i for i in range(vocab_size)}, []))),
    )


def make_sequence(
    token_ids: Iterable[int], request_id: str = "r", index: int = 0, cache_salt: str | None = None, place: int = 0
) -> Sequence:
    """A sample whose prompt is `token_ids`, in blocks that are its own; tests append what a commit would."""
    prompt = tuple(token_ids)
    request = Request(request_id, prompt, SamplingParams(), seed=0, arrival=0, cache_salt=cache_salt)
    first = place * BLOCKS_PER_SEQUENCE
    return Sequence(request, index, list(prompt), block_table=list(range(first, first + BLOCKS_PER_SEQUENCE)))
