"""From a checkpoint on disk to a decoder with its weights.

Nothing is read before the config is known to be supported and the list of tensors to be complete. Tensors are read
one by one out of memory-mapped files and converted on the way, so the peak is the weights and one tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch
from torch import nn

from specdec.config import DTYPES, unknown_name
from specdec.kernels import Kernels
from specdec.models.config import ModelConfig
from specdec.models.decoder import Decoder, distinct_ropes
from specdec.models.rope import rope_table_bytes
from specdec.models.safetensors_file import HuggingFaceCheckpoint
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

_MOST_LISTED = 8


class Checkpoint(Protocol):
    """A model on disk: its config and its tensors under Hugging Face names."""

    config: ModelConfig

    def names(self) -> list[str]:
        """Every tensor."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape, without reading it."""
        ...

    def read(self, name: str) -> torch.Tensor:
        """A tensor, on the CPU, in the checkpoint's dtype."""
        ...


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

    def load(self, *, dtype: str, device: torch.device) -> Decoder:
        """The decoder, filled. `dtype` "auto" keeps the checkpoint's own."""
        decoder = self.decoder
        target = _torch_dtype(decoder.config.dtype if dtype == "auto" else dtype)
        for name, shape in [(name, parameter.shape) for name, parameter in decoder.named_parameters()]:
            filled = torch.empty(shape, dtype=target, device=device)
            for piece in self.plan.pieces[name]:
                filled[piece.index].copy_(self.checkpoint.read(piece.name))
            module, _, attribute = name.rpartition(".")
            setattr(decoder.get_submodule(module), attribute, nn.Parameter(filled, requires_grad=False))
        return decoder.to(device).eval()


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
    decoder = Decoder(config, kernels, _model_len(config, max_model_len))
    plan = plan_weights(config, checkpoint.names())
    _check_tensors(decoder, plan, checkpoint)
    return PreparedModel(checkpoint, decoder, plan)


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


def _model_len(config: ModelConfig, asked: int | None) -> int:
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


def _torch_dtype(name: str) -> torch.dtype:
    if name not in DTYPES or name == "auto":
        raise ValueError(unknown_name("dtype", name, DTYPES))
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def _check_tensors(decoder: Decoder, plan: WeightPlan, checkpoint: Checkpoint) -> None:
    """One ValueError that lists every missing, unused and mis-shaped tensor."""
    parameters = dict(decoder.named_parameters())
    assert parameters.keys() == plan.pieces.keys(), parameters.keys() ^ plan.pieces.keys()
    names = set(checkpoint.names())
    wanted = {
        piece.name: tuple(parameters[parameter][piece.index].shape)
        for parameter, pieces in plan.pieces.items()
        for piece in pieces
    }
    shapes = {name: checkpoint.shape(name) for name in wanted if name in names}
    faults = [
        *_listed("missing", [name for name in wanted if name not in names]),
        *_listed("unused", sorted(names - wanted.keys() - plan.ignored)),
        *_listed(
            "of the wrong shape",
            [
                f"{name} {list(shapes[name])}, expected {list(wanted[name])}"
                for name in shapes
                if shapes[name] != wanted[name]
            ],
        ),
    ]
    if faults:
        raise ValueError(f"the checkpoint does not fit {decoder.config.architecture}: tensors {'; '.join(faults)}")


def _listed(fault: str, items: list[str]) -> Iterator[str]:
    """A fault and its tensors, shortened where there are many; nothing for none."""
    if items:
        more = f" and {len(items) - _MOST_LISTED} more" if len(items) > _MOST_LISTED else ""
        yield f"{fault}: {', '.join(items[:_MOST_LISTED])}{more}"
