"""The page is one well-formed file that needs nothing, hides nothing, and lets no foreign text become markup."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from specdec.eval.report import render
from specdec.eval.results import (
    FORMULAS,
    Estimate,
    Exactness,
    Machine,
    OutputRange,
    Piece,
    Position,
    Result,
    Sample,
    to_json,
)
from tests.eval.examples import ORIGIN, SAMPLE, group, oracle, result, run, speed
from tests.eval.test_results import strategy

VOID = {"meta", "br"}
EVIL = "\"><script src='http://x.invalid'>alert(1)</script><img onerror=x>&lt;\x00\x1b[0m{{ 7 * 7 }}\ud800"
EVIL_AS_TEXT = EVIL.replace("\x00", "␀").replace("\x1b", "␛").replace("\ud800", "\ufffd")


class Page(HTMLParser):
    """Tags that match, and what is in them. Tags within `svg` may close themselves."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        assert len(dict(attrs)) == len(attrs), f"an attribute twice in {tag}"
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert "svg" in self.open, f"{tag} is not an element that closes itself"
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.texts)

    def attributes(self, name: str) -> list[str]:
        return [attrs[name] or "" for _, attrs in self.tags if name in attrs]


def check(page: str) -> Page:
    """What holds of every page."""
    parsed = Page(page)
    idents = parsed.attributes("id")
    assert len(set(idents)) == len(idents)
    assert all(target[0] == "#" and target[1:] in idents for target in parsed.attributes("href"))
    assert {name for names in parsed.attributes("aria-labelledby") for name in names.split()} <= set(idents)
    assert not {tag for tag, _ in parsed.tags} & {"script", "link", "img", "iframe", "object", "base", "form", "input"}
    names = {name for _, attrs in parsed.tags for name in attrs}
    assert not [name for name in names if name.startswith("on") or name in ("src", "style", "srcset", "xlink:href")]
    page.encode()
    return parsed


@pytest.mark.parametrize(
    "found",
    [
        result(),
        result(run(), run("suffix", 8), run("suffix", 8, 0.7, complete=False), interrupted=True),
        replace(result(replace(run(prediction=None), speeds=())), curve=None),
        replace(result(), runs=(), plain=(), skipped=(), failures=(), regressions=()),
    ],
    ids=["one run", "several", "nothing timed", "nothing"],
)
def test_pages_are_well_formed_and_self_contained(found: Result) -> None:
    page = render(found)
    check(page)
    assert page.startswith("<!doctype html>\n<html lang=")
    for outside in ("http:", "https:", "src=", "<link", "url(", "@import", "<script", "javascript:"):
        assert outside not in page
    assert "default-src 'none'" in page


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(strategy(Result))
def test_any_result_has_a_page(found: Result) -> None:
    whole = (each if each.groups else replace(each, groups=(group(None, None, 3),)) for each in found.runs)
    check(render(replace(found, runs=tuple(whole))))


def leaves(value: Any, where: str) -> Iterator[tuple[str, float]]:
    """Every number in a JSON value, with its path."""
    if isinstance(value, dict):
        for key, entry in value.items():
            if key != "format":
                yield from leaves(entry, f"{where}.{key}")
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            yield from leaves(entry, f"{where}[{index}]")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield where, value


TIMES = (
    "seconds",
    "time_per_output_token",
    "forward_1",
    "verify",
    "draft",
    "overhead",
    "plain_overhead",
    "plain_forward",
)


def written(where: str, value: float) -> set[str]:
    """How a page may write a number: as it is, in percent, or a time in milliseconds; with its first two digits."""
    if isinstance(value, int):
        return {str(value), f"{value:,}", str(value - 1)}
    factors = (1, 1000) if where.endswith(tuple(f".{name}" for name in TIMES)) else (1, 100)
    formats = (",.1f", ",.2f", ",.3f", "g", "#.3g", "#.4g", "+.1f")
    forms = {(f"{factor * value:{form}}".removesuffix("."), factor) for factor in factors for form in formats}
    return {form for form, factor in forms if abs(float(form.replace(",", "")) / factor - value) <= 0.01 * abs(value)}


def test_every_number_is_on_the_page() -> None:
    found = result(run(), run("suffix", 8, 0.7))
    words = set(re.findall(r"[-+]?\d[\d,.]*\d|\d", check(render(found)).text))
    numbers = list(leaves(to_json(found), "result"))
    assert len(numbers) > 300
    assert [(where, value) for where, value in numbers if not written(where, value) & words] == []


def test_every_formula_and_where_the_figures_come_from_are_on_the_page() -> None:
    text = check(render(result())).text
    assert all(formula in text for formula in FORMULAS.values())
    versions, machine = ORIGIN.versions, ORIGIN.machine
    for fact in (ORIGIN.command, ORIGIN.commit, ORIGIN.date, versions.torch, versions.transformers, machine.cpu):
        assert fact is not None
        assert fact in text


def test_warnings_stand_first() -> None:
    found = result(run(alarm="it never drafts"), run("suffix", 8, 0.7, complete=False), interrupted=True)
    lossy = replace(run("draft"), exactness=Exactness("typical", "lossy", False))
    fewer = replace(oracle("auto", 4, None, 9), num_prompts=192)
    text = check(render(replace(found, runs=(*found.runs, lossy), oracles=(fewer,)))).text
    head = text[: text.index("Every proposer over all prompts")]
    for warning in (
        "The evaluation was interrupted",
        "ngram, k = 2, T = 0: it never drafts",
        "ngram, k = 2, T = 0: 1 of 211 outputs are not plain decoding’s",
        "suffix, k = 8, T = 0.7: interrupted",
        "draft, k = 2, T = 0: lossy; the verifier typical",
        "Regression: ngram: mean acceptance length 1.2",
        "out of blocks",
        "Oracle of auto, k = 4: 19 of 211 prompts are not in it",
        "chat/chat-19",
    ):
        assert warning in head


def test_without_a_warning_there_is_no_such_section() -> None:
    sound = replace(run(), exactness=Exactness("greedy", "bytes", True, 211, 211))
    page = render(replace(result(sound), skipped=(), failures=(), regressions=()))
    assert 'id="warnings"' not in page
    assert '<strong class="mark">' not in page


def test_every_row_of_an_interrupted_run_is_marked() -> None:
    whole, cut = render(result(run())), render(result(run(complete=False)))
    rows = whole.count('<th scope="row">ngram</th>')
    assert whole.count('<strong class="mark">interrupted</strong>') == 0
    assert cut.count('<th scope="row">ngram <strong class="mark">interrupted</strong>') == rows > 10


def test_what_is_missing_is_a_dash() -> None:
    nan, none = math.nan, Estimate(0.5)
    bare = replace(group(None, None, 3), acceptance_rate=Estimate(nan, nan, nan), mean_acceptance_length=none)
    bare = replace(bare, positions=(Position(1, 3, 0, 0),))
    untimed = speed(1, 2.5)
    untimed = replace(untimed, proposer=replace(untimed.proposer, time_per_output_token=None), speedup=Estimate(nan))
    found = result(
        replace(run(prediction=None), groups=(bare,), output_ranges=(OutputRange(0, 32, 0, 0, 0),), speeds=(untimed,))
    )
    origin = replace(ORIGIN, commit=None, machine=Machine("A processor", 2, 2, None))
    text = check(render(replace(found, curve=None, origin=origin))).text
    assert not re.search(r"\b(None|nan|inf)\b", text)
    assert "load before the start –" in text
    assert text.count("–") > 10


def test_foreign_text_stays_text() -> None:
    sample = Sample(EVIL, EVIL, EVIL, EVIL, (Piece(EVIL, EVIL), Piece("\n", "bonus"), Piece("a", "recovered")))
    hostile = replace(
        run(EVIL, samples=(sample,), alarm=EVIL),
        groups=(group(None, None, 3), group(EVIL, None, 5), group(EVIL, EVIL, 7), group(EVIL, "b", 9)),
        exactness=Exactness(EVIL, "lossy", False),
    )
    found = result(hostile, interrupted=True)
    page = render(
        replace(
            found,
            origin=replace(ORIGIN, command=EVIL, commit=EVIL, date=EVIL),
            settings=replace(found.settings, model=EVIL, dtype=EVIL, verifier=EVIL, tasks=(EVIL,)),
            skipped=(EVIL,),
            failures=(EVIL,),
            regressions=(EVIL,),
        )
    )
    parsed = check(page)
    assert EVIL_AS_TEXT in parsed.texts
    assert parsed.text.count("alert(1)") > 20
    assert "{{ 7 * 7 }}" in parsed.text


def test_answers_are_there_token_by_token() -> None:
    page = render(result(run(samples=(replace(SAMPLE, prompt="\n  first line"),))))
    assert '<span class="bonus" title="bonus, from the model alone">Because</span><span class="drafted s0"' in page
    assert '<span class="drafted s0 line-end" title="drafted by ngram">\n</span>' in page
    assert '<span class="recovered" title="recovered after a rejection">air</span></pre>' in page
    assert 'tabindex="0">\n\n  first line</pre>' in page, "an element's first line feed is no part of it"


def luminance(colour: str) -> float:
    """Of #rrggbb, as WCAG 2 defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_colours_can_be_read_in_both_schemes(dark: bool) -> None:
    css = (files("specdec.eval") / "templates" / "report.css").read_text("utf-8")
    light_part, _, dark_part = css.partition("@media (prefers-color-scheme: dark)")
    found = dict(re.findall(r"--([\w-]+): (#\w{6});", light_part.split("}")[0]))
    if dark:
        own = dict(re.findall(r"--([\w-]+): (#\w{6});", dark_part.split("}")[0]))
        assert own.keys() == found.keys()
        found = own
    for ink in ("ink", "soft", "link", *(f"s{style}" for style in range(7))):
        assert contrast(found[ink], found["paper"]) >= 4.5, ink
    for ink, ground in (("ink", "raised"), ("soft", "raised"), ("ink", "warn"), ("link", "warn"), ("ink", "recovered")):
        assert contrast(found[ink], found[ground]) >= 4.5, (ink, ground)
