"""Prompts to answer, from files, from documents and from the model itself; every one is a conversation that waits.

Whatever is wrong with a file is a ValueError of one line that names the file and the line. Knows texts only.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from specdec.train.data.filters import digest, normalised

SELF_WRITTEN = "self-written"
PROMPT_KEYS = ("prompt", "messages", "turns")


@dataclass(frozen=True)
class Message:
    role: str
    content: str


@dataclass(frozen=True)
class Prompt:
    """A conversation up to where the model has to answer, and what the user says after each answer.

    `raw` text goes to the model without its chat template. Of one that the model writes itself nothing is known but its
    `number`.
    """

    source: str
    opening: tuple[Message, ...] = ()
    follow_ups: tuple[str, ...] = ()
    raw: bool = False
    number: int | None = None

    @cached_property
    def key(self) -> int:
        """Stands for the prompt; two that differ in case, spaces and punctuation only have the same."""
        if self.number is not None:
            return digest(SELF_WRITTEN, self.number)
        said = [f"{message.role}:{normalised(message.content)}" for message in self.opening]
        return digest(self.raw, *said, *map(normalised, self.follow_ups))

    @property
    def text(self) -> str:
        """What the user says, all of it."""
        return "\n".join([*(m.content for m in self.opening if m.role == "user"), *self.follow_ups])


@dataclass(frozen=True)
class Source:
    """A file of prompts, or another place they come from, as provenance tells it."""

    name: str
    prompts: tuple[Prompt, ...]
    sha256: str = ""
    """Of the file."""


def self_written(count: int) -> Source:
    """Prompts that the model is to write."""
    return Source(SELF_WRITTEN, tuple(Prompt(SELF_WRITTEN, number=number) for number in range(count)))


def read_prompts(path: Path, *, raw: bool = False) -> Source:
    """The prompts of a file: .txt has one a line; others are JSON, an object a line or one list of them.

    An object has one of `prompt` (a text), `messages` (a conversation; what an assistant says at its end is left out)
    and `turns` (what the user says, one after the other); a text in `source` says where it comes from, else it is the
    file's name. Other keys are passed over.
    """
    content = read_file(path)
    prompts = tuple(_from_text(content, path, raw) if path.suffix == ".txt" else _from_json(content, path, raw))
    if not prompts:
        raise ValueError(f"{path} holds no prompts")
    return Source(str(path), prompts, sha256(content))


def read_file(path: Path) -> bytes:
    """ValueError, naming the file, where it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from None


def sha256(content: bytes) -> str:
    import hashlib

    return hashlib.sha256(content).hexdigest()


def decoded(content: bytes, origin: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{origin}: not valid UTF-8 at byte {error.start + 1}") from None


def rows(content: bytes, path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(origin, object) of each line that is not blank; of each entry, where the file is one JSON list."""
    text = decoded(content, str(path))
    if text.lstrip().startswith("["):
        for number, entry in enumerate(_parse(text, str(path)), start=1):
            yield _object(entry, f"{path}, entry {number}")
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            origin = f"{path}, line {number}"
            yield _object(_parse(line, origin), origin)


def _parse(text: str, origin: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{origin}: not valid JSON: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise ValueError(f"{origin}: not valid JSON: nested too deeply") from None


def _object(value: object, origin: str) -> tuple[str, Mapping[str, Any]]:
    if not isinstance(value, dict):
        raise ValueError(f"{origin}: expected a JSON object; got {value!r:.60}")
    return origin, value


def _from_text(content: bytes, path: Path, raw: bool) -> Iterator[Prompt]:
    for line in decoded(content, str(path)).splitlines():
        if line.strip():
            yield Prompt(path.name, (Message("user", line.strip()),), raw=raw)


def _from_json(content: bytes, path: Path, raw: bool) -> Iterator[Prompt]:
    for origin, row in rows(content, path):
        try:
            yield _from_row(row, path.name, raw)
        except ValueError as error:
            raise ValueError(f"{origin}: {error}") from None


def _from_row(row: Mapping[str, Any], name: str, raw: bool) -> Prompt:
    given = [key for key in PROMPT_KEYS if key in row]
    if len(given) != 1:
        raise ValueError(f"give exactly one of prompt, messages and turns; got {' and '.join(given) or 'none of them'}")
    source = _text("source", row.get("source", name))
    if given == ["messages"]:
        if raw:
            raise ValueError("messages need the chat template, and raw leaves it out; give prompts")
        return Prompt(source, _messages(row["messages"]))
    turns = [row["prompt"]] if given == ["prompt"] else row["turns"]
    if not isinstance(turns, list) or not turns:
        raise ValueError(f"turns must be a list of at least one text; got {turns!r:.60}")
    first, *others = (_text("a turn" if given == ["turns"] else "prompt", turn) for turn in turns)
    if raw and others:
        raise ValueError("a conversation needs the chat template, and raw leaves it out; give prompts")
    return Prompt(source, (Message("user", first),), tuple(others), raw)


def _messages(value: object) -> tuple[Message, ...]:
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise ValueError(f"messages must be a list of objects with role and content; got {value!r:.60}")
    messages = [Message(_text("role", each.get("role")), _text("content", each.get("content"))) for each in value]
    while messages and messages[-1].role != "user":
        messages.pop()
    if not messages:
        raise ValueError("messages has no turn of the user's")
    return tuple(messages)


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{name} must be a text that is not empty; got {value!r:.60}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} is not valid Unicode at position {error.start}") from None
    return value


def texts_of(path: Path) -> list[str]:
    """Every text that an evaluation's file asks: of a .txt each line, of JSON whatever strings stand in its prompts."""
    content = read_file(path)
    if path.suffix == ".txt":
        return [line for line in decoded(content, str(path)).splitlines() if line.strip()]
    keys = (*PROMPT_KEYS, "question", "conversations", "instruction", "input")
    texts = [text for _, row in rows(content, path) for key in keys if key in row for text in _strings(row[key])]
    if not texts:
        raise ValueError(f"{path} holds no prompts to leave out")
    return texts


def _strings(value: object) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each)
    elif isinstance(value, dict):
        for key in ("content", "value"):
            yield from _strings(value.get(key))
