"""Chat templates: a model's own Jinja program that writes a conversation as one prompt.

Rendering follows transformers' `apply_chat_template`. A template comes with a model and is not trusted: it runs in
Jinja's immutable sandbox and sees plain JSON data only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, nodes
from jinja2.exceptions import TemplateError, TemplateSyntaxError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class _GenerationBlock(Extension):
    """`{% generation %}` marks what the assistant says, for training; in a prompt it is its content."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own name and type for it)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def compile_template(source: str) -> Template:
    """A template ready for `render_chat`; ValueError, with the line, if `source` is not valid Jinja."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    try:
        return environment.from_string(source)
    except TemplateSyntaxError as error:
        raise ValueError(f"the chat template is not valid, line {error.lineno}: {_one_line(error)}") from None
    except (RecursionError, SyntaxError, UnicodeError) as error:
        # Jinja writes a Python program, and what Python refuses of it is not Jinja's own kind of error.
        raise ValueError(f"the chat template is not valid: {_one_line(error)}") from None


def render_chat(
    template: Template,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool,
    special_tokens: Mapping[str, str],
) -> str:
    """The prompt's text; `special_tokens` gives the template `bos_token` and `eos_token`, where the model has them.

    ValueError if `messages` is not a list of messages or the template rejects it.
    """
    context = {
        **special_tokens,
        "messages": _check_messages(messages),
        "tools": None,
        "documents": None,
        "add_generation_prompt": add_generation_prompt,
    }
    try:
        return template.render(context)
    except (
        TemplateError,
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        raise ValueError(f"the chat template rejected the messages: {_one_line(error)}") from None


def _check_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes) or not messages:
        raise ValueError(f"messages must be a non-empty list of {{'role', 'content'}} mappings; got {messages!r:.100}")
    for position, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise ValueError(f"messages[{position}] must be a mapping with 'role' and 'content'; got {message!r:.100}")
        for key in ("role", "content"):
            if key not in message:
                raise ValueError(f"messages[{position}] has no {key!r}")
            if not isinstance(message[key], str):
                raise ValueError(f"messages[{position}][{key!r}] must be a string; got {message[key]!r:.100}")
    try:
        plain: list[dict[str, Any]] = json.loads(json.dumps([dict(message) for message in messages]))
    except (RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"messages must hold JSON values only: {_one_line(error)}") from None
    return plain


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike Jinja's own filter, leaves <, >, & and ' as they are: a prompt is not HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
