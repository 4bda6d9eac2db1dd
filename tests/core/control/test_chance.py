"""Choices by chance: everyone at every length, the same for the same seed, and nothing longer than allowed."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from specdec.core.control.chance import Chance
from specdec.core.control.types import PLAIN, Candidate, Choice, Member, Outcome

MEMBERS = (Member("copies", 5, 5), Member("model", 3, 3, has_kv=True))


def candidates(count: int, length: int = 9, kv_length: int = 9) -> list[Candidate]:
    return [Candidate(key=i, num_tokens=10, length=length, kv_length=kv_length) for i in range(count)]


def test_everyone_has_every_length_and_follows_or_does_not() -> None:
    chance, chosen, followed = Chance(MEMBERS, 0), Counter[tuple[str, int]](), Counter[tuple[str, ...]]()
    for _ in range(300):
        for choice in chance.choose(candidates(4), 4):
            chosen[choice.proposer, choice.length] += 1
            followed[choice.followers] += 1
            assert choice.proposer not in choice.followers
    assert set(chosen) == {(PLAIN, 0), *(("copies", k) for k in range(6)), *(("model", k) for k in range(4))}
    assert min(chosen.values()) > 20
    assert set(followed) == {(), ("copies",), ("model",), ("copies", "model")}
    assert {tuple(chance.prompt_followers("s", 9)) for _ in range(50)} == {(), ("model",)}
    assert chance.explain().chosen == chosen


@given(
    seed=st.integers(0, 2**64 - 1),
    batches=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 9), st.integers(0, 9)), max_size=8),
)
def test_choices_are_the_seeds_and_never_longer_than_allowed(seed: int, batches: list[tuple[int, int, int]]) -> None:
    def decide() -> list[list[Choice]]:
        chance = Chance(MEMBERS, seed)
        return [chance.choose(candidates(*batch), batch[0]) for batch in batches]

    decided = decide()
    assert decided == decide()
    for (_, length, kv_length), choices in zip(batches, decided, strict=True):
        for choice in choices:
            assert (
                0 <= choice.length <= {PLAIN: 0, "copies": min(5, length), "model": min(3, kv_length)}[choice.proposer]
            )


def test_it_counts_what_was_verified_and_asks_for_nothing() -> None:
    chance = Chance(MEMBERS, 1)
    assert not chance.needs_hints
    assert chance.wanted_hints(4) == []
    chance.drafted("copies", [(0, 3, 3), (1, 0, 0)], 0.5)
    chance.drafted("model", [(2, 2, 2)], 0.25)
    chance.forget(2)
    chance.verified([Outcome(0, 3, 3, 2), Outcome(1, 0, 0, 0), Outcome(2, 2, 2, 2)], 8, 1.0, 0.75, True)
    chance.verified([Outcome(0, 0, 0, 0)], 1, 1.0, 0.0, True)
    copies, model = chance.explain().proposers
    assert (copies.num_asked, copies.draft_seconds, copies.tried, copies.kept) == (2, 0.5, (1, 1, 1), (1, 1, 0))
    assert (model.num_asked, model.tried) == (1, ())
