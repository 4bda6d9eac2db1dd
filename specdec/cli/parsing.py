"""JSON and YAML that a person wrote, to plain values: whatever is wrong with it is one line of a ValueError."""

from __future__ import annotations

import json
from typing import Any


def parse_json(text: str) -> Any:
    """The value that `text` holds; a key may stand in an object only once."""
    try:
        return json.loads(text, object_pairs_hook=_without_repeats)
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if error.lineno > 1 else ""
        raise ValueError(f"not valid JSON: {error.msg} at {line}column {error.colno}") from None
    except RecursionError:
        raise ValueError("not valid JSON: nested too deeply") from None


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """JSON allows a key twice and means one of them; which one is anybody's guess."""
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {repeated!r} appears twice")
    return values


def parse_yaml(content: bytes) -> Any:
    """The value that `content` holds, of YAML's plain kinds."""
    import yaml

    try:
        return yaml.safe_load(content)
    except RecursionError:
        raise ValueError("not valid YAML: nested too deeply") from None
    except Exception as error:
        # A value that its tag does not fit raises whatever it breaks inside PyYAML: KeyError, AttributeError, ...
        raise ValueError(f"not valid YAML: {' '.join(str(error).split())}") from None


def check_unicode(name: str, text: str) -> None:
    """ValueError for half a surrogate pair: from an escape in JSON, or a byte on the command line that is no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} is not valid Unicode at position {error.start}") from None
