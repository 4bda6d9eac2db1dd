"""Dataclasses go to JSON and back without loss, and what is not one is refused where it is wrong."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.eval.codec import decode, encode


@dataclass(frozen=True)
class Inner:
    count: int
    share: float | None
    name: str = ""

    @property
    def double(self) -> int:
        return 2 * self.count

    @property
    def as_tuple(self) -> tuple[int, ...]:
        return (self.count,)


@dataclass(frozen=True)
class Outer:
    inner: Inner
    rest: tuple[Inner, ...]
    numbers: tuple[float | None, ...]
    flag: bool
    maybe: Inner | None = None


inners = st.builds(Inner, st.integers(), st.none() | st.floats(allow_nan=False, allow_infinity=False), st.text())
outers = st.builds(
    Outer,
    inners,
    st.lists(inners).map(tuple),
    st.lists(st.none() | st.floats(-1, 1)).map(tuple),
    st.booleans(),
    st.none() | inners,
)


@given(outers)
def test_round_trip_through_text(value: Outer) -> None:
    assert decode(Outer, json.loads(json.dumps(encode(value))), "x") == value


def test_figures_are_written_and_other_properties_are_not() -> None:
    assert encode(Inner(3, None)) == {"count": 3, "share": None, "name": "", "double": 6}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_json_has_no_such_number(value: float) -> None:
    with pytest.raises(ValueError, match="JSON has no number"):
        encode(Inner(1, value))


def test_an_integer_may_stand_for_a_float() -> None:
    read = decode(Inner, {"count": 1, "share": 2, "name": ""}, "x")
    assert isinstance(read.share, float)


GOOD = {"inner": {"count": 1, "share": 0.5, "name": "a"}, "rest": [], "numbers": [1.0], "flag": True, "maybe": None}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"inner": None}, "x.inner must be an object; got None"),
        ({"inner": {"count": 1}}, "x.inner has no 'share'"),
        ({"inner": {"count": 1.5, "share": 1.0, "name": ""}}, "x.inner.count must be of type int; got 1.5"),
        ({"inner": {"count": True, "share": 1.0, "name": ""}}, "x.inner.count must be of type int; got True"),
        ({"rest": {}}, "x.rest must be a list; got {}"),
        ({"numbers": [None, "1"]}, "x.numbers[1] must be of type float; got '1'"),
        ({"flag": 1}, "x.flag must be of type bool; got 1"),
    ],
)
def test_what_is_wrong_is_named_by_its_place(change: dict[str, object], message: str) -> None:
    assert decode(Outer, GOOD, "x").flag
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        decode(Outer, GOOD | change, "x")
    assert str(caught.value) == message
