"""From any layout of heads that specdec reads to any other that can express the head."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from specdec.config import unknown_name
from specdec.train.formats import eagle, eagle3, medusa, speculators
from specdec.train.formats.directory import check_free
from specdec.train.formats.facts import Eagle3Facts, HeadFacts, LayerFacts, MedusaFacts
from specdec.train.formats.layout import LaidOut, write
from specdec.train.formats.precision import Stored
from specdec.train.formats.reading import read_head

LAYOUTS = (eagle.LAYOUT, eagle3.LAYOUT, speculators.LAYOUT, "medusa", "medusa-pt")


@dataclass(frozen=True)
class Converted:
    """What was written."""

    facts: HeadFacts
    num_bytes: int


def convert(source: Path, target: Path, *, layout: str, dtype: str | None = None, overwrite: bool = False) -> Converted:
    """Write the head at `source` to the directory `target` in another layout, one of `LAYOUTS`.

    `dtype` None keeps the numbers bit for bit, int8 codes too. ValueError, in one line, for a head that is not right or
    that the layout cannot express, and where `target` may not be written (see `write_eagle3`).
    """
    if layout not in LAYOUTS:
        raise ValueError(unknown_name("layout", layout, LAYOUTS))
    check_free(target, replace=overwrite)
    head = read_head(source)
    laid_out = lay_out(head.facts, head.stored, layout)
    write(target, laid_out, head.stored, head.facts, dtype=dtype, overwrite=overwrite)
    return Converted(head.facts, sum(file.stat().st_size for file in target.iterdir()))


def lay_out(facts: HeadFacts, stored: Stored, layout: str) -> LaidOut:
    """ValueError for a head of a kind that the layout is not for."""
    tensors = stored.tensors
    if isinstance(facts, MedusaFacts) and layout == "medusa":
        return medusa.lay_out(tensors, facts)
    if isinstance(facts, MedusaFacts) and layout == "medusa-pt":
        return medusa.lay_out_pickled(tensors, facts)
    if isinstance(facts, LayerFacts) and layout == eagle.LAYOUT:
        return eagle.lay_out(tensors, facts)
    if isinstance(facts, Eagle3Facts) and layout == eagle3.LAYOUT:
        return eagle3.lay_out(tensors, facts)
    if not isinstance(facts, MedusaFacts) and layout == speculators.LAYOUT:
        return speculators.lay_out(tensors, facts)
    kind, fitting = _kind(facts)
    raise ValueError(f"the layout {layout} is not for heads of kind {kind}, as this one is; for these: {fitting}")


def _kind(facts: HeadFacts) -> tuple[str, str]:
    """What the head is called, and the layouts for it."""
    if isinstance(facts, MedusaFacts):
        return "medusa", "medusa, medusa-pt"
    return ("eagle3", "eagle3, speculators") if isinstance(facts, Eagle3Facts) else ("eagle", "eagle, speculators")
