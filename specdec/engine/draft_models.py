"""The models that draft: found, checked against the target, and loaded, before the memory is shared out."""

from __future__ import annotations

from collections.abc import Callable

import torch

from specdec.config import EngineConfig
from specdec.engine.checkpoints import open_model
from specdec.kernels import Kernels
from specdec.models.decoder import Decoder
from specdec.models.loader import load_model
from specdec.proposers.base import DraftModel, check_settings
from specdec.proposers.draft_model import METHOD, DraftModelSettings
from specdec.tokenizer import Tokenizer


def load_draft_models(
    config: EngineConfig,
    target: Decoder,
    tokenizer: Tokenizer,
    *,
    kernels: Kernels,
    device: torch.device,
    progress: Callable[[str], None] | None = None,
) -> dict[str, DraftModel]:
    """By method, the model of each configured proposer that has one. ValueError for what does not fit the target."""
    loaded = {}
    for entry in config.speculative:
        if entry.method == METHOD:
            settings: DraftModelSettings = check_settings(entry)
            if settings.num_draft_layers is not None:
                loaded[METHOD] = _own_layers(target, settings.num_draft_layers)
            else:
                assert settings.model is not None
                loaded[METHOD] = _separate_model(
                    settings.model, config, target, tokenizer, kernels=kernels, device=device, progress=progress
                )
    return loaded


def _own_layers(target: Decoder, count: int) -> DraftModel:
    if count > target.config.num_layers:
        raise ValueError(f"num_draft_layers ({count}) is more than the {target.config.num_layers} layers of the model")
    return DraftModel(target.first_layers(count), target.config.vocab_size, target.max_model_len)


def _separate_model(
    name: str,
    config: EngineConfig,
    target: Decoder,
    tokenizer: Tokenizer,
    *,
    kernels: Kernels,
    device: torch.device,
    progress: Callable[[str], None] | None,
) -> DraftModel:
    checkpoint, own_tokenizer = open_model(name, progress)
    check_vocabularies(tokenizer, own_tokenizer, name)
    longest = min(target.max_model_len, checkpoint.config.max_position_embeddings)
    model = load_model(checkpoint, dtype=config.dtype, device=device, kernels=kernels, max_model_len=longest)
    return DraftModel(model, checkpoint.config.vocab_size, longest, model.weight_bytes)


def check_vocabularies(target: Tokenizer, draft: Tokenizer, name: str) -> None:
    """ValueError with the first id that the draft model `name` reads otherwise than the target.

    Contents are compared, not sizes: an id that stands for nothing in one of them, as padding does, is no difference.
    """
    for token_id in range(min(target.vocab_size, draft.vocab_size)):
        ours, theirs = _content(target, token_id), _content(draft, token_id)
        if ours and theirs and ours != theirs:
            raise ValueError(
                f"the draft model {name} has another vocabulary than the model: token {token_id} is {theirs!r} there "
                f"and {ours!r} here; a draft model needs the model's own tokenizer"
            )


def _content(tokenizer: Tokenizer, token_id: int) -> bytes:
    """What a token stands for; a special one, its name."""
    return tokenizer.token_bytes(token_id) or tokenizer.token_text(token_id).encode()
