"""Filling a module's parameters from named tensors on disk, none of them missing, left over or of another shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Protocol, runtime_checkable

import torch
from torch import nn

from specdec.config import DTYPES, KV_CACHE_DTYPES, unknown_name
from specdec.kernels import QuantizedWeight
from specdec.models.parts import Embedding, Linear, replace_weight
from specdec.models.quantize import join_rows
from specdec.models.weights import Piece, WeightPlan

_MOST_LISTED = 8


class Tensors(Protocol):
    """Tensors on disk, by name."""

    def names(self) -> list[str]:
        """Every tensor."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape, without reading it."""
        ...

    def read(self, name: str) -> torch.Tensor:
        """A tensor, on the CPU, in the file's dtype."""
        ...


@runtime_checkable
class CodedTensors(Tensors, Protocol):
    """Tensors that may be quantised."""

    def read_codes(self, name: str) -> QuantizedWeight | None:
        """A matrix in the file's own codes, None where it has none that the kernels know."""
        ...

    def read_into(self, name: str, out: torch.Tensor) -> None:
        """What `read` returns, written into a tensor of its shape and of any dtype."""
        ...


def fill_parameters(
    module: nn.Module,
    plan: WeightPlan,
    tensors: Tensors,
    *,
    dtype: torch.dtype,
    device: torch.device,
    misfit: str,
    keep_codes: bool = False,
    finish: Callable[[nn.Module], None] = lambda part: None,
) -> None:
    """Give every parameter of `module` its memory and what `plan` says it holds.

    Nothing is read before the list of tensors is known to be complete; a ValueError that begins with `misfit` lists
    all that are missing, unused or of the wrong shape. Tensors are read one by one and converted on the way; with
    `keep_codes`, quantised matrices stay in the file's own codes. Each part of the module is given to `finish` once it
    has its parameters, before the next one's are read.
    """
    check_tensors(module, plan, tensors, misfit)
    shapes = {name: parameter.shape for name, parameter in module.named_parameters()}
    for owner, names in groupby(shapes, lambda name: name.rpartition(".")[0]):
        part = module.get_submodule(owner)
        for name in names:
            pieces, attribute = plan.pieces[name], name.rpartition(".")[2]
            if keep_codes and isinstance(tensors, CodedTensors) and _fill_codes(part, attribute, pieces, tensors):
                continue
            filled = torch.empty(shapes[name], dtype=dtype, device=device)
            for piece in pieces:
                _fill(filled[piece.index], tensors, piece.name)
            setattr(part, attribute, nn.Parameter(filled, requires_grad=False))
        finish(part)


def _fill(out: torch.Tensor, tensors: Tensors, name: str) -> None:
    """Without a copy on the way where tensors have to be worked out."""
    if isinstance(tensors, CodedTensors):
        tensors.read_into(name, out)
    else:
        out.copy_(tensors.read(name))


def _fill_codes(part: nn.Module, attribute: str, pieces: Sequence[Piece], tensors: CodedTensors) -> bool:
    """Put a matrix's own codes in its place; False if it has none, or its pieces have different ones."""
    if attribute != "weight" or not isinstance(part, Linear | Embedding):
        return False
    codes = [tensors.read_codes(piece.name) for piece in pieces]
    known = [each for each in codes if each is not None]
    joined = join_rows(known) if len(known) == len(codes) else None
    if joined is not None:
        replace_weight(part, attribute, joined)
    return joined is not None


def torch_dtype(name: str) -> torch.dtype:
    """The dtype of that name; ValueError for one that models are not run in."""
    if name not in DTYPES or name == "auto":
        raise ValueError(unknown_name("dtype", name, DTYPES))
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def kv_dtype(name: str) -> torch.dtype:
    """The dtype of that name; ValueError for one that keys and values are not kept in."""
    if name not in KV_CACHE_DTYPES or name == "auto":
        raise ValueError(unknown_name("kv_cache_dtype", name, KV_CACHE_DTYPES))
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def check_tensors(module: nn.Module, plan: WeightPlan, tensors: Tensors, misfit: str) -> None:
    """One ValueError, begun with `misfit`, that lists every missing, unused and mis-shaped tensor. Nothing is read."""
    parameters = dict(module.named_parameters())
    assert parameters.keys() == plan.pieces.keys(), parameters.keys() ^ plan.pieces.keys()
    names = set(tensors.names())
    wanted = {
        piece.name: tuple(parameters[parameter][piece.index].shape)
        for parameter, pieces in plan.pieces.items()
        for piece in pieces
    }
    shapes = {name: tensors.shape(name) for name in wanted if name in names}
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
        raise ValueError(f"{misfit}: tensors {'; '.join(faults)}")


def _listed(fault: str, items: list[str]) -> Iterator[str]:
    """A fault and its tensors, shortened where there are many; nothing for none."""
    if items:
        more = f" and {len(items) - _MOST_LISTED} more" if len(items) > _MOST_LISTED else ""
        yield f"{fault}: {', '.join(items[:_MOST_LISTED])}{more}"
