"""From the files of a draft head to the head, ready to guess for one target.

Read are the directories of the authors of EAGLE, EAGLE-3 and Medusa, and those of the speculators library and vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from specdec.config import unknown_name
from specdec.kernels import Kernels
from specdec.models.decoder import Decoder
from specdec.models.eagle import EagleHead
from specdec.models.facts import Facts
from specdec.models.head_config import EagleConfig, EagleKind, read_eagle_config
from specdec.models.head_files import HeadFiles, open_head
from specdec.models.head_vocab import read_draft_vocab, target_ids
from specdec.models.head_weights import EagleNames, MedusaLayout, plan_eagle, plan_medusa
from specdec.models.loader import model_len
from specdec.models.medusa import MedusaHead
from specdec.models.quantize import SCHEMES
from specdec.models.tensors import check_tensors, fill_parameters, torch_dtype
from specdec.models.weights import WeightPlan

__all__ = ["EagleHead", "MedusaHead", "head_kind", "load_head", "prepare_head"]

HeadKind = Literal["eagle", "eagle3", "medusa"]

_SPECULATORS: Mapping[str, EagleKind] = {"eagle": "eagle", "eagle3": "eagle3"}
"""What is read of the speculators library, by its speculators_model_type."""


def head_kind(path: Path) -> HeadKind:
    """What the head at `path` is: "eagle", "eagle3" or "medusa".

    Goes by the config and the names of the tensors; no weights are read. ValueError if it is none of them.
    """
    return _kind(open_head(path))


@dataclass(frozen=True)
class PreparedHead:
    """A head whose parameters are still on the meta device, and where each of them lies in its files."""

    files: HeadFiles
    kind: HeadKind
    head: EagleHead | MedusaHead
    plan: WeightPlan
    vocab_size: int
    """The target's."""
    kept_token_ids: torch.Tensor | None
    """The target ids that a draft-vocabulary file keeps."""

    def load(
        self, *, dtype: torch.dtype, device: torch.device, quantization: str = "none", keep_codes: bool = False
    ) -> EagleHead | MedusaHead:
        """The head, filled and trimmed. `quantization` is one of `SCHEMES`, for what is not in codes that the file has
        and the kernels take, or for all where these are not kept."""
        head = self.head
        is_padded = head.draft_token_ids is None and head.num_logits > self.vocab_size
        is_whole = self.kept_token_ids is None and not is_padded
        fill_parameters(
            head,
            self.plan,
            self.files.tensors,
            dtype=dtype,
            device=device,
            misfit=self.misfit,
            keep_codes=is_whole and keep_codes,
        )
        if self.kept_token_ids is not None:
            head.keep_tokens(self.kept_token_ids)
        elif is_padded:
            # No token has these logits.
            head.keep_tokens(torch.arange(self.vocab_size))
            head.draft_token_ids = None
        head.to(device).eval().pack(SCHEMES[quantization])
        return head

    @property
    def misfit(self) -> str:
        """How an error about its tensors begins."""
        return f"{self.files.path} is no proper {self.kind} head"


def prepare_head(
    path: Path, *, target: Decoder, kernels: Kernels, max_model_len: int | None = None, draft_vocab: Path | None = None
) -> PreparedHead:
    """Check that the head at `path`, a directory or a single file, is whole and fits `target`; no weights are read, and
    none of the target's need be there yet.

    `max_model_len` None takes the head's limit or the target's, whichever is less. `draft_vocab` names a file of target
    ids (see `read_draft_vocab`): of a head that can guess every token, only these are kept. ValueError, in one line,
    for files that are damaged, incomplete, not supported or for another target.
    """
    files = open_head(path)
    kind = _kind(files)
    vocab_size = target.config.vocab_size
    keep = None if draft_vocab is None else read_draft_vocab(draft_vocab, vocab_size)
    head, plan = (
        _medusa(files, target, kernels) if kind == "medusa" else _eagle(files, kind, target, kernels, max_model_len)
    )
    prepared = PreparedHead(files, kind, head, plan, vocab_size, keep)
    check_tensors(head, plan, files.tensors, prepared.misfit)
    if keep is not None and head.draft_token_ids is not None:
        raise ValueError(
            f"{path} has a draft vocabulary already, of {head.num_logits} tokens; {draft_vocab} cannot be applied"
        )
    return prepared


def load_head(
    path: Path,
    *,
    target: Decoder,
    dtype: str,
    device: torch.device,
    kernels: Kernels,
    max_model_len: int | None = None,
    draft_vocab: Path | None = None,
) -> EagleHead | MedusaHead:
    """The head at `path` for a loaded `target`; `dtype` "auto" is the target's. See `prepare_head`."""
    prepared = prepare_head(path, target=target, kernels=kernels, max_model_len=max_model_len, draft_vocab=draft_vocab)
    return prepared.load(dtype=target.dtype if dtype == "auto" else torch_dtype(dtype), device=device)


def _kind(files: HeadFiles) -> HeadKind:
    """As `head_kind`. What a config says outright goes first, for then an error can tell which tensors are missing."""
    declared = Facts(files.config, {}, str(files.config_path)).text("speculators_model_type")
    if declared is not None:
        if declared not in _SPECULATORS:
            raise ValueError(f"{files.config_path}: {unknown_name('speculators_model_type', declared, _SPECULATORS)}")
        return _SPECULATORS[declared]
    names = files.tensors.names()
    spelling = EagleNames.of(names)
    if spelling is not None:
        is_eagle3 = "draft_vocab_size" in files.config or "layer.hidden_norm.weight" in spelling.canonical(names)
        return "eagle3" if is_eagle3 else "eagle"
    if MedusaLayout.of(names) is not None:
        return "medusa"
    raise ValueError(
        f"{files.path} is no draft head that is known: its tensors are neither EAGLE's (fc.weight, with layers.0. or "
        "midlayer.) nor Medusa's (0.0.linear.weight)"
    )


def _eagle(
    files: HeadFiles, kind: EagleKind, target: Decoder, kernels: Kernels, max_model_len: int | None
) -> tuple[EagleHead, WeightPlan]:
    """The head that the config describes, without weights, and where these are."""
    if not files.config:
        raise ValueError(f"{files.config_path} is missing or empty; an EAGLE head needs it")
    names = files.tensors.names()
    spelling = EagleNames.of(names) or EagleNames()
    config = read_eagle_config(files.config, kind, spelling.canonical(names), target.config, str(files.config_path))
    reach = min(config.model.max_position_embeddings, target.max_model_len)
    length = model_len(replace(config.model, max_position_embeddings=reach), max_model_len)
    head = EagleHead(config, target, kernels, length)
    if kind == "eagle3":
        head.draft_token_ids = _own_vocabulary(files, config, target.config.vocab_size)
    return head, plan_eagle(config, spelling, names)


def _own_vocabulary(files: HeadFiles, config: EagleConfig, vocab_size: int) -> torch.Tensor | None:
    """The target ids of an EAGLE-3 head's logits; None where it has one for each of the target's tokens."""
    size, names = config.draft_vocab_size, files.tensors.names()
    if "d2t" not in names:
        if size != config.model.vocab_size:
            raise ValueError(
                f"{files.path} has no tensor d2t to say which {size} of {config.model.vocab_size} tokens it guesses "
                "(draft_vocab_size)"
            )
        return None
    return _listed_ids(files, size, vocab_size)


def _listed_ids(files: HeadFiles, size: int, vocab_size: int) -> torch.Tensor | None:
    """The target ids that a file's d2t lists for `size` logits; None where these are all of the target's, in order."""
    marks = files.tensors.read_any("t2d") if "t2d" in files.tensors.names() else None
    offsets = files.tensors.read_any("d2t")
    ids = target_ids(offsets, marks, size=size, vocab_size=vocab_size, where=str(files.path))
    return None if torch.equal(ids, torch.arange(vocab_size)) else ids


def _medusa(files: HeadFiles, target: Decoder, kernels: Kernels) -> tuple[MedusaHead, WeightPlan]:
    """The heads that the names of the tensors describe, without weights, and where these are."""
    names = files.tensors.names()
    layout = MedusaLayout.of(names)
    assert layout is not None, "its names have shown that it is one"
    if layout.num_heads * layout.num_layers > len(names):
        raise ValueError(
            f"{files.path} counts {layout.num_heads} Medusa heads of {layout.num_layers} layers, but has only "
            f"{len(names)} tensors"
        )
    rows = _medusa_rows(files, layout, target.config.hidden_size, target.config.vocab_size)
    head = MedusaHead(
        num_heads=layout.num_heads,
        num_layers=layout.num_layers,
        hidden_size=target.config.hidden_size,
        vocab_size=rows,
        kernels=kernels,
    )
    if "d2t" in names:
        head.draft_token_ids = _listed_ids(files, rows, target.config.vocab_size)
    return head, plan_medusa(layout)


def _medusa_rows(files: HeadFiles, layout: MedusaLayout, hidden_size: int, vocab_size: int) -> int:
    """How many rows the output matrices have: one for each of the target's tokens, or for each that a d2t lists, as an
    EAGLE-3 head's does. ValueError if the heads are for a target of another size."""
    name = layout.output_matrix(0)
    shape = files.tensors.shape(name) if name in files.tensors.names() else ()
    if len(shape) != 2:
        return vocab_size  # The tensors will be told to be missing or of the wrong shape.
    rows, width = shape
    if width != hidden_size or (rows < vocab_size and "d2t" not in files.tensors.names()):
        raise ValueError(
            f"{files.path}: the heads are for a model of hidden size {width} with {rows} tokens; this model's are "
            f"{hidden_size} and {vocab_size}"
        )
    return rows
