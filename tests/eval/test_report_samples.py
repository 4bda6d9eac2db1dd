"""Tokens by where they came from."""

from __future__ import annotations

from dataclasses import replace

from specdec.eval.report_samples import Source, sampled, sources
from specdec.eval.results import Piece
from tests.eval.examples import SAMPLE, run


def test_sources_have_the_colour_of_their_proposers_charts() -> None:
    second = replace(SAMPLE, pieces=(Piece("a", "suffix"), Piece("b", "bonus")))
    assert sources([run(), run("ngram", 4), run("suffix", 8, samples=(second,))]) == {
        "ngram": Source("drafted by ngram", "drafted by ngram", "drafted s0"),
        "suffix": Source("drafted by suffix", "drafted by suffix", "drafted s2"),
        "recovered": Source("recovered after a rejection", "recovered", "recovered"),
        "bonus": Source("bonus, from the model alone", "bonus", "bonus"),
    }


def test_a_source_that_is_no_run_has_a_colour_of_its_own() -> None:
    mixed = replace(SAMPLE, pieces=(Piece("a", "suffix"),))
    assert sources([run(samples=(mixed,))])["suffix"].css == "drafted s1"


def test_answers_to_one_prompt_stand_together() -> None:
    other = replace(SAMPLE, prompt_id="chat-02", category="small talk")
    found = sampled([run(samples=(SAMPLE, other)), run("suffix", 8, complete=False)])
    assert [(each.name, len(each.answers)) for each in found] == [("chat/chat-01", 2), ("chat/chat-02 (small talk)", 1)]
    assert [answer.name for answer in found[0].answers] == ["ngram, k = 2, T = 0", "suffix, k = 8, T = 0"]
    assert [answer.marks for answer in found[0].answers] == [(), ("interrupted",)]


def test_every_token_is_counted_and_those_with_text_are_shown() -> None:
    sample = replace(SAMPLE, pieces=(*SAMPLE.pieces, Piece("", "ngram")))
    (prompt,) = sampled([run(samples=(sample,))])
    (answer,) = prompt.answers
    assert answer.counts == "3 drafted by ngram, 1 recovered, 1 bonus"
    assert "".join(token.text for token in answer.tokens) == "Because of\nair"
    assert [token.is_line_end for token in answer.tokens] == [False, False, True, False]


def test_an_answer_without_tokens_says_so() -> None:
    (prompt,) = sampled([run(samples=(replace(SAMPLE, pieces=()),))])
    assert prompt.answers[0].counts == "no tokens"
