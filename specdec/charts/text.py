"""Foreign text in a page or a picture."""

from __future__ import annotations

import re

UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
"""What neither HTML nor XML may hold: control characters but for tab and line feed, halves of surrogate pairs."""


def printable(text: str) -> str:
    """`text` with a visible sign for each character that a page cannot hold (U+2400 and on for ASCII's)."""
    return UNPRINTABLE.sub(lambda found: _sign(ord(found[0])), text)


def _sign(code: int) -> str:
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else "\ufffd"
