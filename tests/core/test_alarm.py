"""A proposer that never drafts or is never right is told from one that had no chance yet."""

from __future__ import annotations

import pytest

from specdec.core.alarm import MIN_DRAFTS, MIN_TOKENS, ProposerWatch, alarm
from specdec.types import CompletionOutput, RequestOutput, SpeculationStats


def counts(num_drafts: int, accepted_first: int) -> SpeculationStats:
    stats = SpeculationStats()
    for draft in range(num_drafts):
        stats.record(4, int(draft < accepted_first))
    return stats


def test_a_proposer_that_never_drafts_is_named_with_what_was_generated() -> None:
    message = alarm("ngram", SpeculationStats(), MIN_TOKENS)
    assert message is not None
    assert message.startswith("proposer ngram drafted nothing in 64 generated tokens; likely ")
    assert "\n" not in message


def test_few_tokens_prove_nothing() -> None:
    assert alarm("ngram", SpeculationStats(), MIN_TOKENS - 1) is None


def test_one_draft_is_an_engagement() -> None:
    assert alarm("ngram", counts(1, 0), 10 * MIN_TOKENS) is None


@pytest.mark.parametrize(("num_drafts", "accepted"), [(MIN_DRAFTS, 0), (51, 1), (100, 1), (1000, 19)])
def test_a_proposer_that_is_hardly_ever_right_is_named_with_its_numbers(num_drafts: int, accepted: int) -> None:
    message = alarm("draft", counts(num_drafts, accepted), 10_000)
    assert message is not None
    assert f"in {accepted} of {num_drafts} drafts ({100 * accepted / num_drafts:.1f} %" in message
    assert "another tokenizer" in message


@pytest.mark.parametrize(("num_drafts", "accepted"), [(MIN_DRAFTS - 1, 0), (50, 1), (100, 2), (1000, 20)])
def test_two_per_cent_or_too_few_drafts_pass(num_drafts: int, accepted: int) -> None:
    assert alarm("draft", counts(num_drafts, accepted), 10_000) is None


def test_the_cause_fits_the_kind_of_proposer() -> None:
    assert "copy" in str(alarm("suffix", SpeculationStats(), 100))
    assert "copying" in str(alarm("ngram", counts(60, 0), 100))
    assert "context" in str(alarm("draft", SpeculationStats(), 100))


def test_plain_decoding_never_alarms() -> None:
    assert alarm("none", SpeculationStats(), 10_000) is None


def ended(proposer: str, num_tokens: int, *, samples: int = 1, k: int = 4, **counted: int) -> RequestOutput:
    """A request that is done; each of its samples has the same tokens and counts."""
    listed = [CompletionOutput(i, "", [7] * num_tokens) for i in range(samples)]
    for sample in listed:
        sample.speculation = counts(**counted) if counted else SpeculationStats()
    return RequestOutput("r", None, [1], listed, True, proposer=proposer, num_speculative_tokens=k)


def test_a_watch_sums_over_samples_requests_and_calls_and_tells_once() -> None:
    watch = ProposerWatch()
    assert watch.judge([ended("ngram", 20), ended("ngram", 10, samples=3)]) == []
    (line,) = watch.judge([ended("ngram", 14)])
    assert line == alarm("ngram", SpeculationStats(), 64)
    assert watch.judge([ended("ngram", 100)]) == []
    (other,) = watch.judge([ended("draft", 200, num_drafts=60, accepted_first=1)])
    assert other == alarm("draft", counts(60, 1), 200)


def test_a_watch_judges_only_who_was_asked() -> None:
    watch = ProposerWatch()
    assert watch.judge([ended("none", 1000), ended("ngram", 1000, k=0)]) == []
    assert watch.judge([ended("ngram", 200, num_drafts=60, accepted_first=30)]) == []
    assert len(watch.judge([ended("suffix", 500), ended("draft", 500)])) == 2


def test_answers_too_short_for_a_draft_do_not_count() -> None:
    watch = ProposerWatch()
    assert watch.judge([ended("ngram", 2)] * 1000) == []
    assert len(watch.judge([ended("ngram", 3)] * 22)) == 1
