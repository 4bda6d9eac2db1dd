"""A proposer that never drafts or is never right is told from one that had no chance yet."""

from __future__ import annotations

import pytest

from specdec.core.alarm import MIN_DRAFTS, MIN_TOKENS, alarm
from specdec.types import SpeculationStats


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
