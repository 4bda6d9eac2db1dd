"""A tokenizer from a Hugging Face model directory.

`tokenizer.json` is read by the `tokenizers` library itself, which takes milliseconds; only a directory without one
(a bare `tokenizer.model`) goes through transformers, which knows how to convert it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from specdec.tokenizer.parts import TokenizerParts

_CONVERTIBLE = ("tokenizer.model", "spiece.model", "vocab.json", "vocab.txt", "tekken.json")


@dataclass(frozen=True)
class _JsonFile:
    """The JSON object in a file of the directory; empty where there is no such file."""

    path: Path
    values: dict[str, Any]

    def wrong(self, key: str, wanted: str) -> ValueError:
        """The error of a key whose value is not what is `wanted`."""
        return ValueError(f"{self.path}: {key} must be {wanted}; got {self.values[key]!r:.60}")


def parts_from_directory(directory: Path) -> TokenizerParts:
    """Read the tokenizer, its special tokens and the chat template.

    End-of-sequence ids: the tokenizer's own `eos_token`, then those of generation_config.json (chat models name their
    end of turn there), or else config.json's. ValueError, in one line, if there is no tokenizer or it cannot be read.
    """
    backend = _backend(directory)
    backend.no_truncation()
    backend.no_padding()
    named = [_read_json(directory, name) for name in ("tokenizer_config.json", "special_tokens_map.json")]
    _add_tokens(backend, named[0], _read_json(directory, "added_tokens.json"))
    own = _token_id(backend, named, "eos_token")
    eos = [own] if own is not None else []
    eos += _ids(_read_json(directory, "generation_config.json"), "eos_token_id")
    eos = eos or _ids(_read_json(directory, "config.json"), "eos_token_id")
    bos = _token_id(backend, named, "bos_token")
    template, names = _chat_template(directory, named[0]), _named_tokens(named)
    return TokenizerParts(backend, tuple(dict.fromkeys(eos)), bos, template, names)


def _add_tokens(backend: Backend, config: _JsonFile, added: _JsonFile) -> None:
    """Add the tokens that stand beside tokenizer.json only, in the order of their ids, as transformers does."""
    decoder, ids = config.values.get("added_tokens_decoder") or {}, added.values
    try:
        wanted = {int(token_id): _added_token(entry) for token_id, entry in decoder.items()}
        wanted |= {token_id: AddedToken(text, normalized=False, special=True) for text, token_id in ids.items()}
        ordered = sorted(wanted.items())
    except (AttributeError, TypeError, ValueError, KeyError):
        source = config if decoder else added
        raise ValueError(f"{source.path}: added tokens must be ids with the texts of their tokens") from None
    for token_id, token in ordered:
        if backend.token_to_id(token.content) is None:
            backend.add_tokens([token])
        if backend.token_to_id(token.content) != token_id:
            raise ValueError(
                f"{config.path.parent}: the added token {token.content!r} should have the id {token_id}, "
                f"but tokenizer.json makes it {backend.token_to_id(token.content)}"
            )


def _added_token(entry: Mapping[str, Any]) -> AddedToken:
    flags = {
        name: bool(entry.get(name, False)) for name in ("lstrip", "rstrip", "single_word", "normalized", "special")
    }
    return AddedToken(entry["content"], **flags)


def _named_tokens(files: Sequence[_JsonFile]) -> dict[str, str]:
    """The texts of `pad_token`, `unk_token` and whatever else the files name so."""
    named: dict[str, str] = {}
    for file in reversed(files):
        for key, token in file.values.items():
            text = token.get("content") if isinstance(token, dict) else token
            if key.endswith("_token") and isinstance(text, str):
                named[key] = text
    return named


def _backend(directory: Path) -> Backend:
    file = directory / "tokenizer.json"
    try:
        if file.is_file():
            return Backend.from_file(str(file))
        if any((directory / name).is_file() for name in _CONVERTIBLE):
            return _converted(directory)
    except Exception as error:
        reason = " ".join(str(error).split())
        if not file.is_file() and not all(find_spec(package) for package in ("sentencepiece", "google.protobuf")):
            reason = "without a tokenizer.json it takes the packages sentencepiece and protobuf"
        raise ValueError(f"cannot read the tokenizer in {directory}: {reason:.300}") from None
    raise ValueError(f"no tokenizer in {directory}: expected tokenizer.json or tokenizer.model")


def _converted(directory: Path) -> Backend:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(directory), local_files_only=True, trust_remote_code=False)
    if not tokenizer.is_fast:
        raise ValueError(f"transformers has no fast version of {type(tokenizer).__name__}; save a tokenizer.json")
    return tokenizer.backend_tokenizer


def _chat_template(directory: Path, config: _JsonFile) -> str | None:
    """From chat_template.jinja, else tokenizer_config.json (the one named "default" of several), else its own JSON."""
    file = directory / "chat_template.jinja"
    if file.is_file():
        return _read_text(file)
    for source in (config, _read_json(directory, "chat_template.json")):
        if source.values.get("chat_template"):
            return _template(source)
    return None


def _template(file: _JsonFile) -> str | None:
    value = file.values["chat_template"]
    templates = {"default": value}
    if isinstance(value, list) and all(isinstance(entry, dict) for entry in value):
        templates = {str(entry.get("name")): entry.get("template") for entry in value}
    if not all(isinstance(template, str) for template in templates.values()):
        raise file.wrong("chat_template", 'text or a list of {"name", "template"} objects')
    return templates.get("default")


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not valid UTF-8: {error.reason} at byte {error.start + 1}") from None
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}") from None


def _read_json(directory: Path, name: str) -> _JsonFile:
    file = directory / name
    if not file.is_file():
        return _JsonFile(file, {})
    text = _read_text(file)
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{file} is not valid JSON: {error}") from None
    except RecursionError:
        raise ValueError(f"{file} is not valid JSON: nested too deeply") from None
    if not isinstance(content, dict):
        raise ValueError(f"{file} must hold a JSON object")
    return _JsonFile(file, content)


def _token_id(backend: Backend, files: Sequence[_JsonFile], key: str) -> int | None:
    """The id of the token that the first file with `key` names by its text or as `{"content": text, ...}`."""
    for file in files:
        if key in file.values:
            token = file.values[key]
            text = token.get("content") if isinstance(token, dict) else token
            if text is None:
                return None
            try:
                return backend.token_to_id(text)
            except (TypeError, UnicodeEncodeError):
                raise file.wrong(key, 'the text of a token or {"content": text}') from None
    return None


def _ids(file: _JsonFile, key: str) -> list[int]:
    value = file.values.get(key)
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(token_id, int) and not isinstance(token_id, bool) and token_id >= 0 for token_id in ids):
        raise file.wrong(key, "a token id or a list of them")
    return ids
