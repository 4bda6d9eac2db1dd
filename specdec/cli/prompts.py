"""Prompts and what each asks for, from the arguments and from JSON lines; all are checked before any model work."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import click

from specdec.cli.errors import bad_input
from specdec.cli.parsing import check_unicode, parse_json
from specdec.config import unknown_name
from specdec.types import SamplingParams, SpeculationParams

if TYPE_CHECKING:
    from specdec.tokenizer import Tokenizer

CONTENT_KEYS = ("prompt", "messages", "prompt_token_ids")
SAMPLING_KEYS = tuple(field.name for field in fields(SamplingParams))
SPECULATION_KEYS = ("proposer", "num_speculative_tokens")
LINE_KEYS = (*CONTENT_KEYS, "raw", *SAMPLING_KEYS, *SPECULATION_KEYS)


@dataclass(frozen=True)
class Prompt:
    """One prompt: a text, a conversation, or token ids, and what is asked of it.

    `content` is a str, a list of messages, or a tuple of token ids. `raw`: the text goes to the model without the chat
    template. `origin` leads every message about this prompt ("prompts.jsonl, line 3"); empty for a lone argument.
    """

    content: str | list[dict[str, Any]] | tuple[int, ...]
    params: SamplingParams
    origin: str = ""
    raw: bool = False
    proposer: str | None = None
    num_speculative_tokens: int | None = None
    own_keys: tuple[str, ...] = ()
    """What it sets for itself, be it the default: names of sampling parameters, and of how it is drafted."""

    @property
    def needs_template(self) -> bool:
        """Whether the chat template must be applied; token ids and raw text go to the model as they are."""
        return isinstance(self.content, list) or (isinstance(self.content, str) and not self.raw)


def from_argument(text: str, params: SamplingParams, *, origin: str, raw: bool) -> Prompt:
    """A prompt given on the command line."""
    return Prompt(_check_text(text), params, origin, raw)


def from_file(path: str, defaults: Mapping[str, Any], *, raw: bool) -> list[Prompt]:
    """The prompts of a JSON-lines file ("-": of standard input); blank lines are passed over.

    `defaults` are sampling parameters of lines that set none of their own: only together with a line's need they make
    sense. ValueError or `BadInput` names the file, or the line, and what is wrong with it.
    """
    name = "standard input" if path == "-" else path
    prompts = []
    for number, line in enumerate(_read_lines(path, name), start=1):
        if line.strip():
            origin = f"{name}, line {number}"
            with bad_input(origin):
                prompts.append(_from_mapping(_parse(line), defaults, origin, raw))
    if not prompts:
        raise ValueError(f'{name} holds no prompts; write one JSON object a line, such as {{"prompt": "Hello"}}')
    return prompts


def _read_lines(path: str, name: str) -> list[bytes]:
    if not path:
        raise ValueError("--prompts-file needs the name of a file, or - for standard input")
    if path == "-" and sys.stdin is None:
        raise ValueError("standard input is closed; give --prompts-file a file")
    try:
        with click.open_file(path, "rb") as file:
            return list(file)
    except OSError as error:
        raise ValueError(f"{name}: {error.strerror or error}") from None


def _parse(line: bytes) -> Mapping[str, Any]:
    try:
        text = line.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"not valid UTF-8 at byte {error.start + 1}") from None
    value = parse_json(text.rstrip("\r\n"))
    if not isinstance(value, Mapping):
        raise ValueError(f'expected a JSON object such as {{"prompt": "Hello"}}; got {value!r:.60}')
    return value


def _from_mapping(line: Mapping[str, Any], defaults: Mapping[str, Any], origin: str, raw: bool) -> Prompt:
    for key in line:
        if key not in LINE_KEYS:
            raise ValueError(unknown_name("key", key, LINE_KEYS))
    own_raw = line.get("raw", raw)
    if not isinstance(own_raw, bool):
        raise ValueError(f"raw must be true or false; got {own_raw!r}")
    content = _content(line)
    if isinstance(content, list) and own_raw:
        raise ValueError("messages need the chat template, and raw leaves it out; give a prompt, or drop raw")
    params = SamplingParams(**{**defaults, **{key: line[key] for key in SAMPLING_KEYS if key in line}})
    speculation = SpeculationParams(line.get("proposer"), line.get("num_speculative_tokens"))
    own_keys = tuple(key for key in (*SAMPLING_KEYS, *SPECULATION_KEYS) if key in line)
    return Prompt(content, params, origin, own_raw, speculation.proposer, speculation.num_speculative_tokens, own_keys)


def _content(line: Mapping[str, Any]) -> str | list[dict[str, Any]] | tuple[int, ...]:
    given = [key for key in CONTENT_KEYS if key in line]
    if len(given) != 1:
        found = f"got {' and '.join(given)}" if given else "got none of them"
        raise ValueError(f"give exactly one of prompt, messages and prompt_token_ids; {found}")
    if given == ["prompt"]:
        return _check_text(line["prompt"])
    return _check_messages(line["messages"]) if given == ["messages"] else _check_ids(line["prompt_token_ids"])


def _check_text(text: object) -> str:
    if not isinstance(text, str):
        raise ValueError(f"prompt must be a string; got {text!r:.60}")
    if not text:
        raise ValueError("the prompt is empty; give at least one character")
    check_unicode("prompt", text)
    return text


def _check_messages(messages: object) -> list[dict[str, Any]]:
    if not isinstance(messages, list) or not messages:
        raise ValueError(f"messages must be a list of at least one message; got {messages!r:.60}")
    for number, message in enumerate(messages, start=1):
        roles = isinstance(message, dict) and isinstance(message.get("role"), str)
        if not roles or not isinstance(message.get("content"), str):
            raise ValueError(
                f"message {number} must be an object with the strings role and content; got {message!r:.60}"
            )
        for key in ("role", "content"):
            check_unicode(f"{key} of message {number}", message[key])
    return messages


def _check_ids(ids: object) -> tuple[int, ...]:
    ok = isinstance(ids, list) and all(isinstance(t, int) and not isinstance(t, bool) and t >= 0 for t in ids)
    if not ok:
        raise ValueError(f"prompt_token_ids must be a list of token ids; got {ids!r:.60}")
    assert isinstance(ids, list)
    if not ids:
        raise ValueError("prompt_token_ids is empty; give at least one token")
    return tuple(ids)


def engine_prompt(prompt: Prompt, tokenizer: Tokenizer | None, system: str | None) -> str | list[int]:
    """What the engine is given: the text itself, or token ids, the chat template applied with its generation prompt.

    `system` becomes the first turn of conversations that have none of their own.
    """
    if isinstance(prompt.content, tuple):
        return list(prompt.content)
    if isinstance(prompt.content, str) and not prompt.needs_template:
        return prompt.content
    if tokenizer is None:
        raise ValueError("this model has no tokenizer; give prompt_token_ids")
    turns = prompt.content
    if isinstance(turns, str):
        turns = [{"role": "user", "content": turns}]
    if system is not None and turns[0]["role"] != "system":
        turns = [{"role": "system", "content": system}, *turns]
    return tokenizer.apply_chat_template(turns)


def without_template(prompts: Sequence[Prompt]) -> list[Prompt]:
    """The prompts for a model that has no chat template: texts become raw."""
    return [replace(prompt, raw=True) if isinstance(prompt.content, str) else prompt for prompt in prompts]
