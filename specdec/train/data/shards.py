"""Samples on disk: shards of consecutive jobs, each with the target's states beside it where they are kept.

    shard-00000.safetensors   tokens [N] (uint16, or int32 where ids are larger), starts int64 [S + 1], prompt_lengths
                              int32 [S], temperatures float32 [S], keys int64 [S], sources int32 [S] (an index into the
                              names in the metadata), jobs, turns and finished int32 [S], prompt_digests and
                              answer_digests int64 [S]
    states-00000.bin          bfloat16 [N, width]: a row for each token, the last one of each sample zero

A shard appears whole or not at all, and its states before it. Where a run stops in the middle of a shard, what it has
lies in shard-00000.partial.safetensors, which is read like others until the whole one takes its place.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from specdec.train.data.conversation import Answer

FORMAT = "specdec-train-data"
VERSION = 1
STATE_BYTES = 2


@dataclass(frozen=True)
class Shard:
    """The samples of the jobs from `first_job` to before `end_job`."""

    number: int
    first_job: int
    end_job: int
    answers: tuple[Answer, ...]
    dropped: Mapping[str, int]
    """By reason, among these jobs."""
    redo: tuple[int, ...] = ()
    """Of a partial shard: jobs whose samples here may not be all."""

    @property
    def num_tokens(self) -> int:
        return sum(len(answer.token_ids) for answer in self.answers)

    @property
    def num_answer_tokens(self) -> int:
        return sum(answer.num_answer_tokens for answer in self.answers)


@dataclass(frozen=True)
class ShardPaths:
    """Where a shard lies, and its states."""

    directory: Path
    number: int
    partial: bool = False

    @property
    def samples(self) -> Path:
        return self.directory / f"shard-{self.number:05d}{'.partial' * self.partial}.safetensors"

    @property
    def states(self) -> Path:
        return self.directory / f"states-{self.number:05d}{'.partial' * self.partial}.bin"


def write_shard(directory: Path, shard: Shard, *, vocab_size: int, with_states: bool, partial: bool = False) -> None:
    """Write a shard, or what there is of it, and remove the partial one that it replaces."""
    paths = ShardPaths(directory, shard.number, partial)
    if with_states:
        _write_states(paths.states, [answer.states for answer in shard.answers])
    names = sorted({answer.source for answer in shard.answers})
    metadata = {
        "format": FORMAT,
        "version": str(VERSION),
        "jobs": json.dumps([shard.first_job, shard.end_job]),
        "sources": json.dumps(names),
        "dropped": json.dumps(dict(sorted(shard.dropped.items()))),
        "redo": json.dumps(list(shard.redo)),
        "states": json.dumps(with_states),
    }
    staged = paths.samples.with_name(f".{paths.samples.name}")
    save_file(_columns(shard.answers, names, vocab_size), staged, metadata)
    # That library lets nobody else read what it writes.
    staged.chmod(directory.stat().st_mode & 0o666)
    _publish(staged, paths.samples)
    if not partial:
        remove_partial(directory, shard.number)


def remove_partial(directory: Path, number: int) -> None:
    for path in (ShardPaths(directory, number, True).samples, ShardPaths(directory, number, True).states):
        path.unlink(missing_ok=True)


def _columns(answers: Sequence[Answer], names: Sequence[str], vocab_size: int) -> dict[str, np.ndarray]:
    kind = np.uint16 if vocab_size <= 1 << 16 else np.int32
    lengths = [len(answer.token_ids) for answer in answers]

    def column(values: Iterable[float], dtype: type[np.generic]) -> np.ndarray:
        return np.fromiter(values, dtype, len(answers))

    return {
        "tokens": np.concatenate([np.zeros(0, np.int64), *(answer.token_ids for answer in answers)]).astype(kind),
        "starts": np.cumsum([0, *lengths], dtype=np.int64),
        "prompt_lengths": column((a.num_prompt_tokens for a in answers), np.int32),
        "temperatures": column((a.temperature for a in answers), np.float32),
        "keys": column((a.key for a in answers), np.int64),
        "sources": column((names.index(a.source) for a in answers), np.int32),
        "jobs": column((a.job for a in answers), np.int32),
        "turns": column((a.turn for a in answers), np.int32),
        "finished": column((a.finished for a in answers), np.int32),
        "prompt_digests": column((a.prompt_digest for a in answers), np.int64),
        "answer_digests": column((a.answer_digest for a in answers), np.int64),
    }


def _write_states(path: Path, states: Sequence[torch.Tensor | None]) -> None:
    staged = path.with_name(f".{path.name}")
    with open(staged, "wb") as file:
        for rows in states:
            assert rows is not None
            file.write(rows.contiguous().view(torch.uint8).numpy().data)
        file.flush()
        os.fsync(file.fileno())
    _publish(staged, path)


def _publish(staged: Path, path: Path) -> None:
    with open(staged, "rb") as file:
        os.fsync(file.fileno())
    os.replace(staged, path)


@dataclass(frozen=True)
class ShardFile:
    """A shard as it lies on disk, opened: its columns, and what its metadata say."""

    paths: ShardPaths
    columns: Mapping[str, np.ndarray]
    jobs: tuple[int, int]
    sources: tuple[str, ...]
    dropped: Mapping[str, int]
    redo: tuple[int, ...]
    has_states: bool
    width: int = field(default=0)
    """Of a row of states; 0 without."""

    @property
    def num_samples(self) -> int:
        return len(self.columns["prompt_lengths"])

    @property
    def num_tokens(self) -> int:
        return len(self.columns["tokens"])

    @property
    def num_answer_tokens(self) -> int:
        return self.num_tokens - int(self.columns["prompt_lengths"].sum())

    @property
    def num_state_bytes(self) -> int:
        return self.paths.states.stat().st_size if self.has_states else 0

    def states(self) -> torch.Tensor | None:
        """bfloat16 [N, width], mapped: what is not read takes no memory. Writing to it changes no file."""
        if not self.has_states:
            return None
        flat = torch.from_file(
            str(self.paths.states), shared=False, size=self.num_tokens * self.width, dtype=torch.bfloat16
        )
        return flat.view(self.num_tokens, self.width)

    def answers(self) -> list[Answer]:
        """The samples, as they were written."""
        starts, states = self.columns["starts"], self.states()
        rows = []
        for i in range(self.num_samples):
            span = slice(int(starts[i]), int(starts[i + 1]))
            rows.append(
                Answer(
                    job=int(self.columns["jobs"][i]),
                    turn=int(self.columns["turns"][i]),
                    token_ids=self.columns["tokens"][span].astype(np.int64),
                    num_prompt_tokens=int(self.columns["prompt_lengths"][i]),
                    source=self.sources[int(self.columns["sources"][i])],
                    temperature=round(float(self.columns["temperatures"][i]), 6),
                    key=int(self.columns["keys"][i]),
                    prompt_digest=int(self.columns["prompt_digests"][i]),
                    answer_digest=int(self.columns["answer_digests"][i]),
                    finished=bool(self.columns["finished"][i]),
                    states=None if states is None else states[span].clone(),
                )
            )
        return rows


def read_shard(paths: ShardPaths, width: int) -> ShardFile:
    """ValueError, naming the file, where it is no shard, or its states are not there whole."""
    path = paths.samples
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            columns = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    if metadata.get("format") != FORMAT or metadata.get("version") != str(VERSION):
        raise ValueError(f"{path} is no shard of this version of specdec's training data ({VERSION})")
    first, end = json.loads(metadata["jobs"])
    shard = ShardFile(
        paths,
        columns,
        (first, end),
        tuple(json.loads(metadata["sources"])),
        json.loads(metadata["dropped"]),
        tuple(json.loads(metadata["redo"])),
        json.loads(metadata["states"]),
        width,
    )
    if shard.has_states:
        _check_states(shard)
    return shard


def _check_states(shard: ShardFile) -> None:
    path, wanted = shard.paths.states, shard.num_tokens * shard.width * STATE_BYTES
    found = path.stat().st_size if path.is_file() else None
    if found != wanted:
        told = "is missing" if found is None else f"has {found:,} bytes"
        raise ValueError(f"{path} {told}; the shard beside it needs {wanted:,} bytes of states")


def find_shards(directory: Path) -> list[ShardPaths]:
    """Every whole shard, by number, and the partial one of a number that has no whole one."""
    whole = {_number(path) for path in directory.glob("shard-?????.safetensors")}
    partial = {_number(path) for path in directory.glob("shard-?????.partial.safetensors")} - whole
    return [ShardPaths(directory, number, number in partial) for number in sorted(whole | partial)]


def _number(path: Path) -> int:
    digits = path.name.removeprefix("shard-")[:5]
    if not digits.isdecimal():
        raise ValueError(f"{path} has the name of a shard without a number")
    return int(digits)
