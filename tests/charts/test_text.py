"""What no page can hold is shown."""

from __future__ import annotations

from specdec.charts.text import printable


def test_what_cannot_be_printed_is_seen() -> None:
    assert printable("a\x00\x1b[31m\x7f\r\n\tb") == "a␀␛[31m␡␍\n\tb"
    assert printable("\ud83d\ufffe\x85") == "\ufffd\ufffd\ufffd"
    assert printable("grün 漢字 🙂") == "grün 漢字 🙂"
