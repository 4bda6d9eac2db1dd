"""A run: everybody is asked the same, in turn, and who fails leaves a line."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from specdec.eval.peers import compare as module
from specdec.eval.peers.compare import Entry, Taken, compare
from specdec.eval.peers.process import PeerProcess
from specdec.eval.peers.standings import standings, standings_table
from tests.eval.peers.helpers import fake, task

HASTY = task(timeout_s=0.1)


def test_everybody_answers_every_group_in_turn() -> None:
    told: list[str] = []
    ticks = iter(range(100))
    entries = compare(
        [fake("one"), fake("two", second_per_token="0.5")],
        task(batch_sizes=(1, 2), num_rounds=2),
        told.append,
        lambda: float(next(ticks)),
    )
    assert [entry.faults for entry in entries] == [[], []]
    assert [entry.start_s for entry in entries] == [1, 1]
    assert [entry.library for entry in entries] == ["fake of model.bin, 2 threads, OMP 2"] * 2
    groups = [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1)]
    for entry in entries:
        assert set(entry.taken) == {(size, number, index) for number in range(2) for size, index in groups}
    assert entries[1].taken[2, 0, 1] == Taken(((7, 8, 9, 10), (4, 5, 6, 7)), 2.0, 2, 3.5), "the first prompt again"
    order = [line.rpartition(" ")[2] for line in told[2:]]
    assert order[:6] == ["one", "two", "two", "one", "one", "two"]
    assert order[10:12] == ["two", "one"], "another round begins with another one"


@pytest.mark.parametrize(
    ("options", "fault", "answered"),
    [
        ({"exit_on_load": ""}, "does not take part: SystemExit: no such instruction", set()),
        ({"nothing": ""}, "does not take part: ValueError: there is no option 'nothing'; its options are", set()),
        ({"die_at_batch": "2"}, "lost at batch 2: ended with exit code 3; its last words: out of cheese", {1}),
        ({"refuse_batch": "2"}, "not at batch 2: ValueError: not 2 at once", {1, 3}),
        ({"stutter": ""}, "not at batch 1: answered 3 tokens where 4 were asked for", set()),
    ],
)
def test_who_fails_leaves_a_line_and_the_others_go_on(options: dict[str, str], fault: str, answered: set[int]) -> None:
    good, bad = compare([fake("good"), fake("bad", **options)], task(batch_sizes=(1, 2, 3)))
    assert good.faults == []
    assert {size for size, _, _ in good.taken} == {1, 2, 3}
    assert bad.faults[0].startswith(fault)
    assert {size for size, _, _ in bad.taken} == answered


def test_who_does_not_answer_in_time_is_ended() -> None:
    (slow,) = compare([replace(fake("slow"), argv=(sys.executable, "-Ic", "import time; time.sleep(60)"))], HASTY)
    assert slow.faults == ["does not take part: no answer to load within 0.1 s"]
    assert slow.process is None


def test_processes_are_ended_when_the_run_is_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[PeerProcess] = []

    class Spy(PeerProcess):
        def __enter__(self) -> PeerProcess:
            started.append(self)
            return self

    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "PeerProcess", Spy)
    monkeypatch.setattr(module, "_round", interrupt)
    with pytest.raises(KeyboardInterrupt):
        compare([fake("one"), fake("two")], task())
    assert [each._process.returncode for each in started] == [0, 0]


def entry(label: str, taken: dict[tuple[int, int, int], Taken], *faults: str) -> Entry:
    own = Entry(fake(label), f"lib {label}", "int3", 1.5, 2_000_000, faults=list(faults))
    own.taken = taken
    return own


A, B = (1, 2, 3, 4), (1, 2, 3, 5)
PLAIN = {(1, 0, 0): Taken((A,), 0.5, 1, 2.0), (1, 0, 1): Taken((B,), 0.5, 1, 3.5)}


def test_figures_stand_beside_specdecs_on_the_groups_that_both_have() -> None:
    entries = [
        entry("specdec", PLAIN),
        entry("specdec x", {key: Taken(each.token_ids, 0.5, 1, 1.25) for key, each in PLAIN.items()}),
        entry("peer", {(1, 0, 0): Taken((B,), 1.0, 1, 4.0)}, "lost at batch 1: x"),
        entry("dead", {}, "does not take part: y"),
        entry("silent", {(1, 0, 0): Taken((A,), None, 0, 4.0)}),
    ]
    result = standings("m", task(), entries, num_own=2)
    plain, fast, peer, silent = result.standings
    assert plain.decode_tokens_per_s == pytest.approx(6 / 4.5)
    assert plain.total_tokens_per_s == pytest.approx(8 / 5.5)
    assert plain.ratios == pytest.approx({"specdec": 1, "specdec x": (6 / 1.5) / (6 / 4.5)})
    assert (plain.equal_answers, fast.equal_answers, peer.equal_answers, silent.equal_answers) == (1, 1, 0, 1)
    assert peer.decode_tokens_per_s == pytest.approx(1)
    assert peer.ratios == pytest.approx({"specdec": 2, "specdec x": 4}), "of the first group alone"
    assert peer.first_token_ratios == pytest.approx({"specdec": 2, "specdec x": 2})
    assert silent.first_token_s is None
    assert silent.decode_tokens_per_s == pytest.approx(1)
    assert silent.first_token_ratios == {}
    assert result.faults == ("peer lost at batch 1: x", "dead does not take part: y")
    lines = standings_table(result).splitlines()
    assert lines[1].split()[:2] == ["engine", "precision"]
    assert lines[1].rstrip().endswith("specdec is  specdec x is")
    assert lines[4].split() == [
        *("peer", "int3", "1", "1.0", "1.0", "1000", "1.5", "2", "0", "%", "2.00", "x", "4.00", "x")
    ]
    assert lines[5].split()[5] == "-"
    assert lines[-2:] == list(result.faults)
