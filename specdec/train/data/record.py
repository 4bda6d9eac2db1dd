"""data.json: what a directory of training data is, and how it came to be.

Two runs may share a directory if what decides over their samples is the same (`identity`); how they are computed (the
proposer, the size of the batch, the number of threads) changes no token and may differ.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdec.train.data.collector import Totals
from specdec.train.data.shards import FORMAT, VERSION

NAME = "data.json"


@dataclass(frozen=True)
class Record:
    """`identity` decides over the samples; `states` are the kept states' layers and widths, {} without; `runs` tell
    what was run, the latest last; `counts` are those of the whole shards."""

    identity: Mapping[str, Any]
    states: Mapping[str, Any]
    runs: tuple[Mapping[str, Any], ...] = ()
    counts: Mapping[str, Any] | None = None

    def write(self, directory: Path) -> None:
        content = {
            "format": FORMAT,
            "version": VERSION,
            "identity": self.identity,
            "states": self.states,
            "counts": self.counts or {},
            "runs": list(self.runs),
        }
        staged = directory / f".{NAME}"
        staged.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", "utf-8")
        os.replace(staged, directory / NAME)


def read_record(directory: Path) -> Record | None:
    """The directory's record, None where it has none yet. ValueError where the file is not one."""
    path = directory / NAME
    try:
        content = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"{path} is no record of training data")
    if content.get("version") != VERSION:
        raise ValueError(f"{path} is of version {content.get('version')!r}; this one reads {VERSION}")
    return Record(content["identity"], content["states"], tuple(content["runs"]), content["counts"])


def check_same(directory: Path, found: Record, identity: Mapping[str, Any], states: Mapping[str, Any]) -> None:
    """ValueError, naming the first difference, unless a run may go on in the directory."""
    pairs = [("", found.identity, json.loads(json.dumps(identity)))]
    if found.states and states:
        pairs.append(("states.", found.states, json.loads(json.dumps(states))))
    for prefix, old, new in pairs:
        different = _first_difference(prefix, old, new)
        if different is not None:
            key, was, now = different
            raise ValueError(
                f"{directory} holds data made otherwise: {key} was {_short(was)}, and is {_short(now)} now; "
                "use the same settings, or another directory"
            )


def _first_difference(where: str, old: object, new: object) -> tuple[str, object, object] | None:
    """The first key, with those that lead to it, at which two records differ, and what it is in each; mappings within
    mappings are gone into."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return None if old == new else (where.removesuffix("."), old, new)
    for key in {**old, **new}:
        found = _first_difference(f"{where}{key}.", old.get(key), new.get(key))
        if found is not None:
            return found
    return None


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def counts_of(totals: Totals, left_out: Mapping[str, int]) -> dict[str, Any]:
    return {
        "samples": totals.samples,
        "tokens": totals.tokens,
        "answer_tokens": totals.answer_tokens,
        "ended_by_themselves": totals.finished,
        "by_source": dict(sorted(totals.by_source.items())),
        "by_temperature": dict(sorted(totals.by_temperature.items())),
        "dropped": dict(sorted(totals.dropped.items())),
        "prompts_left_out": dict(left_out),
        "states_bytes": totals.states_bytes,
    }
