"""Frozen dataclasses to plain JSON values and back, by their annotations. It knows no particular class."""

from __future__ import annotations

import math
import types
import typing
from dataclasses import MISSING, fields, is_dataclass
from typing import Any


def encode(value: object) -> Any:
    """Fields, and the properties that are numbers or None, which `decode` passes over. ValueError for NaN and infinity,
    which JSON does not have."""
    if is_dataclass(value) and not isinstance(value, type):
        own = {field.name: encode(getattr(value, field.name)) for field in fields(value)}
        return own | _figures(value)
    if isinstance(value, tuple):
        return [encode(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"JSON has no number {value}")
    assert value is None or isinstance(value, str | int | float), value
    return value


def _figures(value: object) -> dict[str, float | None]:
    names = [name for name, entry in vars(type(value)).items() if isinstance(entry, property) and _is_figure(entry)]
    return {name: getattr(value, name) for name in names}


def _is_figure(made: property) -> bool:
    kind = typing.get_type_hints(made.fget)["return"]
    return kind in (int, float, float | None)


def decode(kind: Any, value: object, where: str) -> Any:
    """The instance of `kind` (a dataclass, tuple, union with None, or plain type) that `encode` made `value` of."""
    if is_dataclass(kind):
        return _decode_dataclass(kind, value, where)
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        if value is None:
            return None
        (inner,) = (part for part in typing.get_args(kind) if part is not type(None))
        return decode(inner, value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise ValueError(f"{where} must be a list; got {value!r:.60}")
        inner = typing.get_args(kind)[0]
        return tuple(decode(inner, entry, f"{where}[{index}]") for index, entry in enumerate(value))
    return _decode_plain(kind, value, where)


def _decode_plain(kind: type, value: object, where: str) -> object:
    allowed = (int, float) if kind is float else (kind,)
    if not isinstance(value, allowed) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{where} must be of type {kind.__name__}; got {value!r:.60}")
    return float(value) if kind is float and isinstance(value, int) else value


def _decode_dataclass(kind: Any, value: object, where: str) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"{where} must be an object; got {value!r:.60}")
    hints = typing.get_type_hints(kind)
    missing = [field.name for field in fields(kind) if field.name not in value and field.default is MISSING]
    if missing:
        raise ValueError(f"{where} has no {missing[0]!r}")
    given = [field.name for field in fields(kind) if field.name in value]
    return kind(**{name: decode(hints[name], value[name], f"{where}.{name}") for name in given})
