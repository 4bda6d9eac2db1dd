"""`auto` as it is verified."""

from __future__ import annotations

from specdec.core.control.chance import Chance
from specdec.eval.chances import Chances
from specdec.eval.checks import EMPTY, PASSED
from specdec.eval.driving import Job, Watch, drive
from specdec.types import SamplingParams
from tests.eval.tiny import PROMPTS, config, scripted


def test_it_takes_over_engines_with_auto_alone() -> None:
    chances = Chances(0)
    plain = chances.take_over(scripted().build(config("ngram")))
    assert plain.speculation.controller is None
    assert chances.checks() == []
    engine = chances.builder(scripted().build)(config("auto"))
    assert isinstance(engine.speculation.controller, Chance)
    (check,) = chances.checks()
    assert (check.status, check.unseen) == (EMPTY, ("a draft of ngram", "a draft of suffix"))
    assert not check.is_needed


def test_it_tells_of_all_engines_together() -> None:
    chances = Chances(5)
    params = SamplingParams(temperature=0, max_tokens=30)
    counts = []
    for _ in range(2):
        engine = chances.take_over(scripted().build(config("auto", 4)))
        drive(engine, [Job(prompt, params) for prompt in PROMPTS], Watch(), "")
        (check,) = chances.checks()
        counts.append(check.figures["num_drafts"])
    assert check.status == PASSED
    assert all(0 < counts[0][name] < counts[1][name] for name in ("ngram", "suffix"))
    assert check.figures["lengths"] == {"ngram": [0, 1, 2, 3, 4], "suffix": [0, 1, 2, 3, 4]}
    assert f"suffix {counts[1]['suffix']} drafts verified and " in check.summary
    assert check.summary.startswith("by chance (seed 5), not by what pays: ngram ")
