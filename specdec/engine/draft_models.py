"""The models that draft, in two stages around the loading of the target.

`open_draft_models` finds what is to draft and checks it against the target as far as can be without weights, so that a
wrong name, vocabulary or file is refused at once. Loading comes after the target, which some share weights with, and
before the memory is shared out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from specdec.config import EngineConfig
from specdec.engine.checkpoints import open_model
from specdec.engine.draft_heads import KINDS, OpenHead
from specdec.models.decoder import Decoder
from specdec.models.heads import head_kind
from specdec.models.loader import PreparedModel, prepare_model
from specdec.proposers.base import Drafter, DraftModel
from specdec.proposers.draft_model import METHOD, DraftModelSettings
from specdec.proposers.registry import check_settings
from specdec.tokenizer import Tokenizer

Progress = Callable[[str], None]


class OpenDraft(Protocol):
    """What is to draft: found and checked, its weights not read."""

    def load(self, target: Decoder, *, dtype: str, device: torch.device) -> Drafter:
        """The model or head itself, beside the loaded target. `dtype` "auto" keeps the checkpoint's own."""
        ...


def open_draft_models(
    config: EngineConfig, target: Decoder, tokenizer: Tokenizer, progress: Progress | None = None
) -> dict[str, OpenDraft]:
    """By method, what drafts for each configured proposer that needs a model. ValueError for what does not fit.

    Of the `target` only the config and the limits are looked at: its parameters may still be on the meta device.
    """
    opened: dict[str, OpenDraft] = {}
    for entry in config.speculative:
        if entry.method == METHOD:
            opened[METHOD] = _open_draft(config, check_settings(entry), target, tokenizer, progress)
        elif entry.method in KINDS:
            opened[entry.method] = OpenHead.open(
                entry.method, check_settings(entry), target, config.quantization, progress
            )
    return opened


def _open_draft(
    config: EngineConfig,
    settings: DraftModelSettings,
    target: Decoder,
    tokenizer: Tokenizer,
    progress: Progress | None,
) -> OpenDraft:
    if settings.num_draft_layers is not None:
        return OwnLayers.open(settings.num_draft_layers, target)
    return SeparateModel.open(config, settings, target, tokenizer, progress)


@dataclass(frozen=True)
class OwnLayers:
    """The target's own first `count` layers."""

    count: int

    @staticmethod
    def open(count: int, target: Decoder) -> OwnLayers:
        layers = target.config.num_layers
        if count > layers:
            raise ValueError(f"num_draft_layers ({count}) is more than the {layers} layers of the model")
        return OwnLayers(count)

    def load(self, target: Decoder, *, dtype: str, device: torch.device) -> DraftModel:
        return DraftModel(target.first_layers(self.count), target.config.vocab_size, target.max_model_len)


@dataclass(frozen=True)
class SeparateModel:
    """A second model with the target's tokenizer."""

    prepared: PreparedModel
    quantization: str
    kv_cache_dtype: str

    @staticmethod
    def open(
        config: EngineConfig,
        settings: DraftModelSettings,
        target: Decoder,
        tokenizer: Tokenizer,
        progress: Progress | None,
    ) -> SeparateModel:
        name = settings.model
        assert name is not None
        try:
            checkpoint, own_tokenizer = open_model(name, progress)
            longest = min(target.max_model_len, checkpoint.config.max_position_embeddings)
            prepared = prepare_model(checkpoint, kernels=target.kernels, max_model_len=longest)
            quantization = settings.quantization or config.quantization
            if settings.quantization is None and quantization == "gguf" and not prepared.has_codes:
                quantization = "int8"  # as what has no codes of its own in the target
                if progress is not None:
                    progress(f"the draft model {name} is no .gguf file with codes to keep: its weights are int8")
            prepared.weight_dtype(config.dtype, quantization)
        except ValueError as error:
            raise ValueError(f"the draft model {name}: {_head_told(name) or error}") from None
        check_vocabularies(tokenizer, own_tokenizer, name)
        return SeparateModel(prepared, quantization, settings.kv_cache_dtype or config.kv_cache_dtype)

    def load(self, target: Decoder, *, dtype: str, device: torch.device) -> DraftModel:
        model = self.prepared.load(
            dtype=dtype, device=device, quantization=self.quantization, kv_cache_dtype=self.kv_cache_dtype
        )
        return DraftModel(model, model.config.vocab_size, model.max_model_len, model.weight_bytes)


def _head_told(name: str) -> str | None:
    """What is said where a draft head lies instead of a model, if one does."""
    try:
        kind = head_kind(Path(name).expanduser())
    except (ValueError, OSError):
        return None
    return (
        f"it is a draft head of kind {kind}: give it with --proposer {kind}; for auto to choose it, with "
        f'--speculative-config \'[{{"method": "auto"}}, {{"method": "{kind}", "model": "{name}"}}]\''
    )


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
