"""From a checkpoint on disk to a decoder with its weights.

Nothing is read before the config is known to be supported and the list of tensors to be complete. Tensors are read
one by one out of memory-mapped files, converted and packed on the way, so the peak is the weights and one tensor.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch
from torch import nn

from specdec.core.start_up import StartUp
from specdec.kernels import Kernels
from specdec.models.config import ModelConfig
from specdec.models.decoder import Decoder, distinct_ropes
from specdec.models.quantize import SCHEMES
from specdec.models.rope import rope_table_bytes
from specdec.models.safetensors_file import HuggingFaceCheckpoint
from specdec.models.tensors import CodedTensors, Tensors, check_tensors, fill_parameters, kv_dtype, torch_dtype
from specdec.models.weights import WeightPlan, plan_weights
from specdec.step.memory import available_host_memory, format_bytes

__all__ = [
    "Checkpoint",
    "HuggingFaceCheckpoint",
    "PreparedModel",
    "load_model",
    "open_checkpoint",
    "prepare_model",
]


class Checkpoint(Tensors, Protocol):
    """A model on disk: its config and its tensors under Hugging Face names."""

    config: ModelConfig


def open_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint at `path`: a Hugging Face directory or a .gguf file. ValueError if it is neither or not right."""
    if path.is_dir():
        return HuggingFaceCheckpoint(path)
    if path.suffix.lower() == ".gguf" and path.is_file():
        from specdec.models.gguf import GGUFCheckpoint

        return GGUFCheckpoint(path)
    if path.exists():
        raise ValueError(f"{path} is neither a model directory nor a .gguf file")
    raise ValueError(f"{path} does not exist; expected a model directory or a .gguf file")


@dataclass(frozen=True)
class PreparedModel:
    """A decoder whose parameters are still on the meta device, and where each of them lies in its checkpoint."""

    checkpoint: Checkpoint
    decoder: Decoder
    plan: WeightPlan

    def load(
        self,
        *,
        dtype: str,
        device: torch.device,
        quantization: str = "none",
        kv_cache_dtype: str = "auto",
        start_up: StartUp | None = None,
    ) -> Decoder:
        """The decoder, filled. `dtype` "auto" keeps the checkpoint's own; `quantization` is one of `SCHEMES`.

        `kv_cache_dtype` "auto" is the weights' dtype, or what the kernels have for it, and bfloat16 where weights are
        quantised. Each part is packed as soon as it is read.
        """
        own = self.weight_dtype(dtype, quantization)
        cached = torch.bfloat16 if quantization != "none" else self.decoder.kernels.cache_dtype(own)
        cached = cached if kv_cache_dtype == "auto" else kv_dtype(kv_cache_dtype)
        scheme, watch = SCHEMES[quantization], start_up or StartUp()

        def pack(part: nn.Module) -> None:
            with watch.time("packing"):
                self.decoder.pack_part(part, scheme)

        with watch.time("weights"):
            fill_parameters(
                self.decoder,
                self.plan,
                self.checkpoint,
                dtype=own,
                device=device,
                misfit=self.misfit,
                keep_codes=quantization == "gguf",
                finish=pack,
            )
        decoder = self.decoder.to(device).eval()
        with watch.time("packing"):
            decoder.pack(scheme, own, cached)
        return decoder

    @property
    def has_codes(self) -> bool:
        """Whether its weights may be kept in the file's own codes."""
        return isinstance(self.checkpoint, CodedTensors)

    def weight_dtype(self, dtype: str, quantization: str) -> torch.dtype:
        """The dtype that weights are read in; ValueError if they cannot be quantised so."""
        if quantization == "gguf" and not self.has_codes:
            raise ValueError("quantization 'gguf' keeps the codes of a .gguf file; this model is not one")
        own = torch_dtype(self.decoder.config.dtype if dtype == "auto" else dtype)
        if quantization != "none" and own == torch.float64:
            raise ValueError(f"quantization {quantization!r} computes in float32, not in float64: give another dtype")
        return own

    @property
    def misfit(self) -> str:
        """How an error about its tensors begins."""
        return f"the checkpoint does not fit {self.decoder.config.architecture}"


def prepare_model(checkpoint: Checkpoint, *, kernels: Kernels, max_model_len: int | None) -> PreparedModel:
    """Check that `checkpoint` is whole and what the model is to do is within its reach; its weights are not read.

    `max_model_len` None takes the model's limit; beyond the limit is a ValueError, as are tensors that are missing,
    unused or of the wrong shape (all listed in one). Only an output matrix that the config ties to the embedding is
    read, to see whether it is.
    """
    config = _with_actual_ties(checkpoint)
    if config.num_layers > len(checkpoint.names()):
        raise ValueError(
            f"the config has {config.num_layers} layers, but the checkpoint only {len(checkpoint.names())} tensors"
        )
    decoder = Decoder(config, kernels, model_len(config, max_model_len))
    prepared = PreparedModel(checkpoint, decoder, plan_weights(config, checkpoint.names()))
    check_tensors(decoder, prepared.plan, checkpoint, prepared.misfit)
    return prepared


def load_model(
    checkpoint: Checkpoint, *, dtype: str, device: torch.device, kernels: Kernels, max_model_len: int | None
) -> Decoder:
    """Build the decoder of `checkpoint` and fill it; see `prepare_model` and `PreparedModel.load`."""
    return prepare_model(checkpoint, kernels=kernels, max_model_len=max_model_len).load(dtype=dtype, device=device)


def _with_actual_ties(checkpoint: Checkpoint) -> ModelConfig:
    """The config, untied where it says tied but the file has an output matrix that differs: so does transformers."""
    config = checkpoint.config
    if config.tie_word_embeddings:
        plan = plan_weights(replace(config, tie_word_embeddings=False), checkpoint.names())
        tied = [plan.pieces[name][0].name for name in ("embed_tokens.weight", "lm_head.weight")]
        if set(tied) <= set(checkpoint.names()) and not torch.equal(*(checkpoint.read(name) for name in tied)):
            return replace(config, tie_word_embeddings=False)
    return config


def model_len(config: ModelConfig, asked: int | None) -> int:
    """The positions to be ready for: `asked`, or all that the model reaches; ValueError if that is too many."""
    limit = config.max_position_embeddings
    if asked is not None and asked > limit:
        raise ValueError(f"max_model_len ({asked}) is larger than the {limit} positions this model reaches")
    length = limit if asked is None else asked
    tables = sum(rope_table_bytes(rope, length) for rope in distinct_ropes(config))
    available = available_host_memory()
    if tables > available:
        raise ValueError(
            f"positions up to {length} need {format_bytes(tables)} of rotary tables, and {format_bytes(available)} are "
            "free; give a smaller max_model_len"
        )
    return length
