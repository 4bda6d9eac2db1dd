"""Draft heads on their way into an engine: found, checked against the target, and loaded beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from specdec.models.decoder import Decoder
from specdec.models.eagle import EagleHead
from specdec.models.heads import HeadKind, PreparedHead, prepare_head
from specdec.models.hub import from_hub
from specdec.models.medusa import MedusaHead
from specdec.proposers.heads import HeadSettings

KINDS: dict[str, tuple[HeadKind, ...]] = {"eagle": ("eagle", "eagle3"), "eagle3": ("eagle3",), "medusa": ("medusa",)}
"""Method -> the kinds of heads that it drafts with; the checkpoint says which it is."""

TORCH_FILES = ("*.pt", "*.bin")
"""Heads are often published in torch's own format, of which only tensors are read."""


@dataclass(frozen=True)
class OpenHead:
    """A head whose files are right, for a target whose weights may not be there yet."""

    prepared: PreparedHead
    quantization: str | None
    """None: none, but the codes that the file has, where the kernels compute in such."""

    @staticmethod
    def open(
        method: str,
        settings: HeadSettings,
        target: Decoder,
        quantization: str,
        progress: Callable[[str], None] | None,
    ) -> OpenHead:
        """`quantization` is the target's. ValueError, in one line, for files that are missing, damaged, of another kind
        or for another target."""
        assert settings.model is not None, "what is not named is chosen before"
        path = find_head(settings.model, progress)
        vocab = None if settings.draft_vocab is None else Path(settings.draft_vocab).expanduser()
        prepared = prepare_head(path, target=target, kernels=target.kernels, draft_vocab=vocab)
        if prepared.kind not in KINDS[method]:
            right = next(other for other, kinds in KINDS.items() if prepared.kind in kinds)
            raise ValueError(f"{path} holds a head of kind {prepared.kind}: use --proposer {right}, not {method}")
        # A head is small, and what it loses it loses at every token: in 4 bits it is only where that is asked for.
        return OpenHead(prepared, settings.quantization or (None if quantization == "none" else "int8"))

    def load(self, target: Decoder, *, dtype: str, device: torch.device) -> EagleHead | MedusaHead:
        """The head, in the target's dtype: its states are what it computes with."""
        is_double, asked = target.dtype == torch.float64, self.quantization or "none"
        if is_double and asked != "none":
            raise ValueError("a draft head's quantization computes in float32, not in float64: give another dtype")
        # Where weights in codes are unpacked at every call it takes them longer than without.
        keeps = self.quantization is None and target.kernels.own_threads and not is_double
        return self.prepared.load(
            dtype=target.dtype, device=device, quantization=asked, keep_codes=keeps or asked != "none"
        )


def find_head(name: str, progress: Callable[[str], None] | None) -> Path:
    """The directory or file that `name` means; a name such as org/name is fetched from the hub."""
    path = Path(name).expanduser()
    if path.exists():
        return path
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise ValueError(f"there is no draft head at {name!r}: no such directory or file")
    return from_hub(name, progress, also=TORCH_FILES)
