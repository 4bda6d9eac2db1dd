"""A tokenizer from a Hugging Face model directory.

`tokenizer.json` is read by the `tokenizers` library itself, which takes milliseconds; only a directory without one
(a bare `tokenizer.model`) goes through transformers, which knows how to convert it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from specdec.tokenizer.parts import TokenizerParts

_CONVERTIBLE = ("tokenizer.model", "spiece.model", "vocab.json", "vocab.txt", "tekken.json")


def parts_from_directory(directory: Path) -> TokenizerParts:
    """Read the tokenizer, its special tokens and the chat template.

    End-of-sequence ids: the tokenizer's own `eos_token`, then those of generation_config.json (chat models name their
    end of turn there), or else config.json's. ValueError, in one line, if there is no tokenizer or it cannot be read.
    """
    backend = _backend(directory)
    backend.no_truncation()
    backend.no_padding()
    config = _read_json(directory, "special_tokens_map.json") | _read_json(directory, "tokenizer_config.json")
    eos = _ids(_token_id(backend, config.get("eos_token")))
    eos += _ids(_read_json(directory, "generation_config.json").get("eos_token_id"))
    eos = eos or _ids(_read_json(directory, "config.json").get("eos_token_id"))
    bos = _token_id(backend, config.get("bos_token"))
    return TokenizerParts(backend, tuple(dict.fromkeys(eos)), bos, _chat_template(directory, config))


def _backend(directory: Path) -> Backend:
    file = directory / "tokenizer.json"
    try:
        if file.is_file():
            return Backend.from_file(str(file))
        if any((directory / name).is_file() for name in _CONVERTIBLE):
            return _converted(directory)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"cannot read the tokenizer in {directory}: {reason:.300}") from None
    raise ValueError(f"no tokenizer in {directory}: expected tokenizer.json or tokenizer.model")


def _converted(directory: Path) -> Backend:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(directory), local_files_only=True, trust_remote_code=False)
    if not tokenizer.is_fast:
        raise ValueError(f"transformers has no fast version of {type(tokenizer).__name__}; save a tokenizer.json")
    return tokenizer.backend_tokenizer


def _chat_template(directory: Path, config: dict[str, Any]) -> str | None:
    """From chat_template.jinja, else tokenizer_config.json (the one named "default" of several), else its own JSON."""
    file = directory / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = config.get("chat_template") or _read_json(directory, "chat_template.json").get("chat_template")
    if isinstance(template, list):
        return {entry.get("name"): entry.get("template") for entry in template}.get("default")
    return template


def _read_json(directory: Path, name: str) -> dict[str, Any]:
    file = directory / name
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{file} must hold a JSON object")
    return content


def _token_id(backend: Backend, token: str | dict[str, Any] | None) -> int | None:
    """The id of a token that the configuration names by its text or as `{"content": text, ...}`."""
    text = token.get("content") if isinstance(token, dict) else token
    return None if text is None else backend.token_to_id(text)


def _ids(value: int | list[int] | None) -> list[int]:
    if value is None:
        return []
    return [value] if isinstance(value, int) else list(value)
