"""The suffix tree against plain counting, and against itself built anew after texts have left."""

from __future__ import annotations

import random
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.proposers.suffix import SuffixSettings
from specdec.proposers.suffix_node import Node
from specdec.proposers.suffix_tree import Limits, SuffixTree
from tests.proposers import naive_suffix

MAX_LENGTH = 8
TOKENS = st.integers(0, 2)
TEXTS = st.lists(st.lists(TOKENS, max_size=25), max_size=6)


@st.composite
def suffix_settings(draw: st.DrawFn) -> SuffixSettings:
    return SuffixSettings(
        suffix_decoding_max_tree_depth=draw(st.integers(2, 8)),
        suffix_decoding_max_spec_factor=draw(st.sampled_from([0.0, 0.5, 1.0, 2.0, 8.0])),
        suffix_decoding_max_spec_offset=draw(st.sampled_from([-1.0, 0.0, 1.5])),
        suffix_decoding_min_token_prob=draw(st.sampled_from([0.0, 0.1, 0.4, 1.0])),
    )


def built(depth: int, texts: dict[int, list[int]]) -> SuffixTree:
    tree = SuffixTree(depth)
    for number, tokens in sorted(texts.items()):
        tree.extend(number, tokens)
    return tree


def counts(node: Node) -> dict[int, int]:
    """How often each follower of a node occurred."""
    best = {node.most_frequent(): node.best_count}
    return best | (node.others or {})


def shape(child: Any) -> Any:
    """A node, a position or a table of them as plain values; what must be the same however a tree came about."""
    if isinstance(child, dict):
        return {key: shape(value) for key, value in child.items()}
    if isinstance(child, Node):
        return child.depth, child.newest, child.total, child.most_frequent(), counts(child), shape(child.children)
    return child


def check_integrity(tree: SuffixTree) -> None:
    """Every node branches, counts what is under it, and has its most frequent follower right."""

    def check(child: Any, depth: int) -> int:
        if not isinstance(child, Node):
            return 1
        assert depth < child.depth <= tree._longest
        assert len(child.children) > 1
        assert child.total == sum(check(grandchild, child.depth) for grandchild in child.children.values())
        followers = counts(child)
        assert (child.others is None) == (len(followers) == 1)
        assert sum(followers.values()) == child.total
        assert min(followers.values()) > 0
        assert child.most_frequent() == min(followers, key=lambda token: (-followers[token], token))
        return child.total

    num_positions = sum(check(child, 0) for child in tree._root.values())
    assert num_positions == sum(max(0, tree.size(text) - 1) for text in tree._texts)


@given(settings=suffix_settings(), texts=TEXTS, context=st.lists(TOKENS, max_size=12), k=st.integers(1, MAX_LENGTH))
def test_a_guess_is_that_of_the_definition(
    settings: SuffixSettings, texts: list[list[int]], context: list[int], k: int
) -> None:
    tree = built(settings.suffix_decoding_max_tree_depth, dict(enumerate(texts)))
    check_integrity(tree)
    limits = Limits(settings.rooms(), k, settings.suffix_decoding_min_token_prob)
    tokens, score = naive_suffix.guess(texts, context, k, settings)
    for bar in (0.0, score, score / 2, 2.0):
        guess = tree.guess(context[::-1], limits, bar)
        if score > bar:
            assert guess is not None
            assert (guess.token_ids, guess.score) == (tokens, score)
        else:
            assert guess is None


@given(
    depth=st.integers(2, 8),
    steps=st.lists(
        st.tuples(st.sampled_from(["new", "new", "grow", "remove"]), st.lists(TOKENS, max_size=12), st.integers(0))
    ),
)
def test_growth_and_removal_leave_no_trace(depth: int, steps: list[tuple[str, list[int], int]]) -> None:
    """After any history the tree is the one that is built from the texts that are left: counts, links and bytes."""
    tree, texts = SuffixTree(depth), {}
    for number, (kind, tokens, which) in enumerate(steps):
        if kind == "new" or not texts:
            texts[number] = list(tokens)
            tree.extend(number, tokens)
        elif kind == "grow":
            texts[max(texts)] += tokens
            tree.extend(max(texts), tokens)
        else:
            gone = sorted(texts)[which % len(texts)]
            del texts[gone]
            tree.remove(gone)
        check_integrity(tree)
    anew = built(depth, texts)
    assert shape(tree._root) == shape(anew._root)
    assert tree.num_bytes == anew.num_bytes
    assert {number: tree.size(number) for number in texts} == {number: len(t) for number, t in texts.items()}
    assert len(tree) == len(texts)


@given(texts=st.lists(st.lists(TOKENS, max_size=20), max_size=5), context=st.lists(TOKENS, min_size=1, max_size=8))
def test_a_guess_does_not_depend_on_the_order_of_the_texts(texts: list[list[int]], context: list[int]) -> None:
    limits = Limits(SuffixSettings().rooms(), MAX_LENGTH, 0.1)
    there, back = (built(24, dict(enumerate(order))).guess(context, limits) for order in (texts, texts[::-1]))
    assert (there and (there.token_ids, there.score)) == (back and (back.token_ids, back.score))


def test_the_source_is_the_newest_text_that_holds_the_match() -> None:
    tree = built(24, {3: [1, 2, 3, 4], 5: [0, 2, 3, 4], 9: [7, 7]})
    limits = Limits(SuffixSettings().rooms(), 4, 0.1)
    sources = {context: tree.guess(context, limits) for context in ((2, 1), (2, 9), (2, 0), (7,))}
    assert {context: guess.text for context, guess in sources.items() if guess} == {
        (2, 1): 3,
        (2, 9): 5,
        (2, 0): 5,
        (7,): 9,
    }


def samples() -> dict[str, list[int]]:
    rng = random.Random(0)
    line = [rng.randrange(50_000) for _ in range(60)]
    return {
        "nothing repeats": rng.sample(range(50_000), 3_000),
        "a skewed vocabulary": [int(rng.paretovariate(0.7)) % 50_000 for _ in range(3_000)],
        "few tokens": [rng.randrange(300, 316) for _ in range(3_000)],
        "two tokens": [rng.randrange(300, 302) for _ in range(3_000)],
        "a text seen before": line * 2 + [rng.randrange(50_000) for _ in range(1_440)] * 2,
        "a noisy loop": [token if rng.random() > 0.03 else rng.randrange(50_000) for token in line * 50],
        "one token": [300] * 3_000,
    }


@pytest.mark.parametrize("kind", samples())
@pytest.mark.parametrize("size", [3_000, 60])
def test_num_bytes_is_an_upper_bound_of_what_python_allocates(kind: str, size: int) -> None:
    """And no idle one: within a factor of three. The same tokens as one text, or as many short ones."""
    tokens = samples()[kind]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tree = SuffixTree(24)
        for number, begin in enumerate(range(0, len(tokens), size)):
            tree.extend(10_000_000 + number, tokens[begin : begin + size])
        real = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert real <= tree.num_bytes <= 3 * real
    assert tree.num_bytes < 1_000 * len(tokens)


def test_a_repeated_text_costs_few_nodes() -> None:
    """A trie would have up to 24 nodes for each token of a copy; edges have at most one."""
    rng = random.Random(1)
    tokens = [rng.randrange(50_000) for _ in range(1_000)]
    once, twice = built(24, {0: tokens}), built(24, {0: tokens, 1: tokens})
    assert twice.num_bytes - once.num_bytes < 700 * len(tokens)
