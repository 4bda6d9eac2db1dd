"""Typed reading of a checkpoint's config: a wrong value is one clear line that names the key.

Knows nothing of what the keys mean.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Facts:
    """The keys of a config.json (or of a section of it) over the defaults of its family.

    A key that is present wins over the default even where it says null: transformers tells the two apart.
    """

    values: Mapping[str, Any]
    defaults: Mapping[str, Any]
    where: str | None = "config.json"
    """Names the file in errors; None where the caller does."""

    @property
    def prefix(self) -> str:
        """What an error of this file begins with."""
        return "" if self.where is None else f"{self.where}: "

    def get(self, key: str) -> Any:
        """The value as it stands; None where neither the file nor the family has one."""
        return self.values[key] if key in self.values else self.defaults.get(key)

    def integer(self, key: str, low: int = 1, high: int = 2**30) -> int:
        """An integer from `low` to `high` (no size of a real model is larger), or a ValueError."""
        value = self.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < low:
            raise self.wrong(key, f"an integer of at least {low}")
        if value > high:
            raise self.wrong(key, f"at most {high}")
        return value

    def optional_integer(self, key: str, low: int = 1) -> int | None:
        """As `integer`, or None where the key is null or absent."""
        return None if self.get(key) is None else self.integer(key, low)

    def number(self, key: str) -> float:
        """A finite number above 0, or a ValueError."""
        value = self.get(key)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= sys.float_info.max:
            raise self.wrong(key, "a number above 0")
        return float(value)

    def optional_number(self, key: str) -> float | None:
        """As `number`, or None where the key is null or absent."""
        return None if self.get(key) is None else self.number(key)

    def text(self, key: str) -> str | None:
        """A name, or None where the key is null or absent."""
        value = self.get(key)
        if value is not None and not isinstance(value, str):
            raise self.wrong(key, "a name")
        return value

    def flag(self, key: str) -> bool:
        """True or false; null and absent are false."""
        value = self.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return bool(value)

    def mapping(self, key: str) -> Mapping[str, Any]:
        """A JSON object; null and absent are an empty one."""
        value = self.get(key)
        if value is not None and not isinstance(value, Mapping):
            raise self.wrong(key, "an object")
        return value or {}

    def integers(self, key: str) -> list[int] | None:
        """A list of integers, or None where the key is null or absent."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, int) for item in value):
            raise self.wrong(key, "a list of integers")
        return value

    def token_ids(self, key: str) -> tuple[int, ...]:
        """One token id or a list of them, as a tuple; null and absent are empty."""
        value = self.get(key)
        ids = [] if value is None else value if isinstance(value, list) else [value]
        if not all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in ids):
            raise self.wrong(key, "a token id or a list of them")
        return tuple(ids)

    def wrong(self, key: str, wanted: str) -> ValueError:
        """The error of a key whose value is not what is `wanted`."""
        return ValueError(f"{self.prefix}{key} must be {wanted}; got {self.get(key)!r}")
