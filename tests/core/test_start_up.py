"""The record of starting: parts in their order, each without those within it."""

from __future__ import annotations

import pytest

from specdec.core.start_up import StartUp


def test_a_part_within_another_counts_for_itself_alone() -> None:
    now = iter([0.0, 1.0, 3.0, 3.5, 4.5, 10.0, 10.0, 12.0])
    watch = StartUp({"imports": 5.0}, clock=lambda: next(now))
    with watch.time("weights"):  # 0 to 10
        with watch.time("packing"):  # 1 to 3
            pass
        with watch.time("packing"):  # 3.5 to 4.5
            pass
    with watch.time("weights"):  # 10 to 12
        pass
    assert watch.seconds == {"imports": 5.0, "weights": 9.0, "packing": 3.0}
    assert list(watch.seconds) == ["imports", "weights", "packing"]
    assert watch.total == 17.0


def test_what_fails_is_counted_too() -> None:
    now = iter([0.0, 1.0, 4.0, 6.0])
    watch = StartUp(clock=lambda: next(now))
    with pytest.raises(KeyError), watch.time("a"), watch.time("b"):
        raise KeyError
    assert watch.seconds == {"a": 3.0, "b": 3.0}
