"""The lines of a terminal on oracles."""

from __future__ import annotations

from dataclasses import replace

from specdec.eval.oracle_table import oracle_table
from specdec.eval.results import Estimate
from specdec.eval.table import table
from tests.eval.examples import SETTINGS, oracle, result


def rows(text: str, first: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines() if line.split()[:1] == [first]]


def test_what_choosing_reaches_by_task_and_what_each_proposer_drafts() -> None:
    text = oracle_table(result())
    assert "by the acceptance pass, 21 prompts at once" in text
    (choice, reached) = rows(text, "auto")
    assert choice == "auto 18 all 1308 1.45 1.46 0.91 0.81 to 0.96 1.46 1.45 1.49"
    assert reached == (
        "auto k=18 reaches 0.91 (0.81 to 0.96) of the per-step oracle of its members, 21 prompts at once"
    )
    assert rows(text, "chat")[0].startswith("chat 1518 ")
    assert rows(text, "ngram+suffix") == ["ngram+suffix 2 all 1716 - 1.35 - - 1.35 1.35 1.37"]
    assert [row.split()[1] for row in rows(text, "suffix")] == ["18", "2"]
    assert rows(text, "ngram")[0] == "ngram 18 2.99 2.98 0.98 35 % 96 % 99 %"
    assert rows(text, "suffix")[0] == "suffix 18 1.03 - 0.00 100 % 96 % -"


def test_what_a_draft_loses_and_to_what() -> None:
    text = oracle_table(result())
    lost = [row for row in rows(text, "ngram") if row.endswith("%") and len(row.split()) == 12]
    assert lost[0] == "ngram 18 7.18 4.38 3.33 2.99 67 % 25 % 8 %"
    unknown = [replace(own, ceiling=None) for own in result().oracles[0].members]
    bare = replace(result().oracles[0], members=tuple(unknown))
    assert "What lies between" not in oracle_table(replace(result(), oracles=(bare,)))


def test_one_prompt_at_a_time_and_no_interval() -> None:
    bare = replace(oracle("auto", 4, None, 9), share=Estimate(0.5))
    text = oracle_table(replace(result(), oracles=(bare,), settings=replace(SETTINGS, concurrency=1)))
    assert "auto k=4 reaches 0.50 of the per-step oracle of its members, 1 prompt at once" in text
    unknown = oracle_table(replace(result(), oracles=(bare,), settings=replace(SETTINGS, concurrency=None)))
    assert unknown.endswith("auto k=4 reaches 0.50 of the per-step oracle of its members")


def test_the_table_has_oracles_where_they_were_asked_for() -> None:
    assert oracle_table(result()) in table(result())
    assert "Oracle" not in table(replace(result(), oracles=()))
