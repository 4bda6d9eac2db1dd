"""Tree shapes against their definitions, and what is said to files that hold none."""

from __future__ import annotations

import itertools
import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.proposers.shapes import (
    RANK_PROBS,
    TREES,
    TreeChoice,
    TreeShape,
    breadth_first,
    chain,
    from_ranks,
    likeliest,
    read_shape,
)
from specdec.types import MAX_DRAFT_NODES, MAX_SPECULATIVE_TOKENS, Draft

PROBS = st.lists(st.sampled_from([1.0, 0.5, 0.3, 0.25, 0.1, 0.01]), min_size=1, max_size=4)


@st.composite
def rank_trees(draw: st.DrawFn) -> list[list[int]]:
    """Rank paths of a tree, shuffled; ranks may leave gaps."""
    paths: list[list[int]] = []
    for _ in range(draw(st.integers(1, 20))):
        parent = draw(st.sampled_from([[], *paths]))
        path = [*parent, draw(st.integers(0, 5))]
        if path not in paths and len(path) <= MAX_SPECULATIVE_TOKENS:
            paths.append(path)
    return draw(st.permutations(paths))


def check(shape: TreeShape) -> None:
    """Everything that follows from parents and ranks, in its plainest form."""
    nodes = range(shape.num_nodes)
    assert len(shape.ranks) == len(shape.depths) == len(shape.paths) == shape.num_nodes
    for node in nodes:
        parent = shape.parents[node]
        above = () if parent < 0 else shape.paths[parent]
        assert shape.paths[node] == (*above, shape.ranks[node])
        assert shape.depths[node] == len(shape.paths[node])
    assert list(shape.paths) == sorted(set(shape.paths), key=lambda path: (len(path), path))
    for node in range(-1, shape.num_nodes):
        assert list(shape.children_of(node)) == [child for child in nodes if shape.parents[child] == node]
    assert shape.depth == max(shape.depths, default=0)
    assert shape.num_ranks == max((rank + 1 for rank in shape.ranks), default=0)
    assert shape.is_chain == all(len(children) <= 1 for children in shape.children)
    assert Draft((0,) * shape.num_nodes, shape.parents).depths == shape.depths


@given(paths=rank_trees(), depth=st.integers(0, 8))
def test_rank_paths_make_the_tree_they_describe(paths: list[list[int]], depth: int) -> None:
    shape = from_ranks(paths)
    check(shape)
    assert set(shape.paths) == set(map(tuple, paths))
    assert from_ranks(sorted(paths)) == shape
    limited = shape.limited(depth)
    check(limited)
    assert limited.paths == tuple(path for path in shape.paths if len(path) <= depth)


@given(width=st.integers(1, 8), num_nodes=st.integers(1, 64), depth=st.integers(0, 6))
def test_breadth_first_fills_level_by_level(width: int, num_nodes: int, depth: int) -> None:
    shape = breadth_first(width, num_nodes, depth)
    check(shape)
    every = itertools.chain(*(itertools.product(range(width), repeat=length) for length in range(1, depth + 1)))
    assert shape.paths == tuple(itertools.islice(every, num_nodes))


@given(probs=PROBS, num_nodes=st.integers(1, 30), depth=st.integers(0, 4))
def test_the_likeliest_nodes_are_those_of_a_full_enumeration(probs: list[float], num_nodes: int, depth: int) -> None:
    shape = likeliest(num_nodes, probs, depth)
    check(shape)
    every = [p for length in range(1, depth + 1) for p in itertools.product(range(len(probs)), repeat=length)]
    best = sorted(every, key=lambda path: (-math.prod(probs[rank] for rank in sorted(path)), len(path), path))
    assert set(shape.paths) == set(best[:num_nodes])


@given(length=st.integers(0, MAX_SPECULATIVE_TOKENS))
def test_a_chain_is_one_path(length: int) -> None:
    shape = chain(length)
    check(shape)
    assert shape.is_chain
    assert shape.paths == tuple((0,) * depth for depth in range(1, length + 1))
    assert shape == breadth_first(1, MAX_DRAFT_NODES, length) == likeliest(MAX_DRAFT_NODES, [0.5], length)


@pytest.mark.parametrize(
    ("parents", "ranks"),
    [
        ((-1, -1), (1, 0)),
        ((-1, -1), (0, 0)),
        ((-1, -1, 1, 0), (0, 1, 0, 0)),
        ((-1, 1), (0, 0)),
        ((-2,), (0,)),
        ((-1, -1), (0,)),
        ((-1,) * 65, tuple(range(65))),
    ],
)
def test_what_is_in_no_breadth_first_order_is_no_shape(parents: tuple[int, ...], ranks: tuple[int, ...]) -> None:
    with pytest.raises((AssertionError, ValueError)):
        TreeShape(parents, ranks)


def test_a_published_tree_is_read(tmp_path: Path) -> None:
    """The beginning of Medusa's, whose paths come in no order."""
    paths = [[0], [0, 0], [1], [0, 1], [2], [0, 0, 0], [1, 0], [0, 2], [3], [0, 3]]
    file = tmp_path / "tree.json"
    file.write_text(json.dumps(paths))
    shape = read_shape(file)
    check(shape)
    assert shape.parents == (-1, -1, -1, -1, 0, 0, 0, 0, 1, 4)
    assert shape.ranks == (0, 1, 2, 3, 0, 1, 2, 3, 0, 0)
    for tree in (str(file), "chain"):
        assert TreeChoice(tree, 1, 1).num_nodes(2) == (9 if tree != "chain" else 2)
    assert TreeChoice(str(file), 1, 1).shape(2) == shape.limited(2)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[0], [0, 1, 2], [0, 0]]", "the rank path [0, 1, 2] needs [0, 1], which is not there"),
        ("[[0], [1], [0]]", "the rank path [0] is there twice"),
        ("[]", "a tree is a list of rank paths, such as [[0], [0, 0], [1]]; got []"),
        ('{"tree": [[0]]}', "a tree is a list of rank paths"),
        ("[0, 1]", "a rank path is a list of ranks from 0 on, such as [0, 2]; got 0"),
        ("[[]]", "a rank path is a list of ranks from 0 on, such as [0, 2]; got []"),
        ("[[0], [true]]", "got [True]"),
        ("[[0], [1.0]]", "got [1.0]"),
        ('[["0"]]', "got ['0']"),
        ("[[-1]]", "ranks are between 0 and 63; got [-1]"),
        ("[[64]]", "ranks are between 0 and 63; got [64]"),
        (json.dumps([[rank] for rank in range(65)]), "a tree has at most 64 nodes; got 65"),
        (json.dumps([[0] * depth for depth in range(1, 34)]), "at most 32 deep; got a rank path of length 33"),
        ("[[0]", "is not JSON: "),
        ("[" * 100_000, "is not JSON: "),
        ("", "is not JSON: "),
        ("\ud800", "is not JSON: "),
        (json.dumps([["x" * 1000]]), "..."),
    ],
)
def test_a_file_without_a_tree_gets_one_line_that_names_it(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "tree.json"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    for refuse in (read_shape, lambda path: TreeChoice(str(path), 16, 8)):
        with pytest.raises(ValueError, match=re.escape(words)) as refused:
            refuse(file)
        message = str(refused.value)
        assert str(file) in message
        assert "\n" not in message
        assert len(message) < 300 + len(str(file))


def test_a_file_that_cannot_be_read_gets_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^cannot read the tree file '.*': Is a directory$"):
        TreeChoice(str(tmp_path), 16, 8)
    with pytest.raises(ValueError, match=r"^cannot read the tree file '.*none': No such file"):
        read_shape(tmp_path / "none")
    for missing in ("confidance", "none\0"):
        with pytest.raises(ValueError, match=r"^unknown tree ") as refused:
            TreeChoice(missing, 16, 8)
        assert "the path of a JSON file" in str(refused.value)
    with pytest.raises(ValueError, match="did you mean 'confidence'"):
        TreeChoice("confidance", 16, 8)


@pytest.mark.parametrize("tree", TREES)
@given(tree_nodes=st.integers(1, 64), tree_width=st.integers(1, 64), k=st.integers(0, MAX_SPECULATIVE_TOKENS))
def test_a_choice_stays_in_its_budget(tree: str, tree_nodes: int, tree_width: int, k: int) -> None:
    choice = TreeChoice(tree, tree_nodes, tree_width)
    num_nodes = choice.num_nodes(k)
    assert num_nodes <= (k if tree == "chain" else tree_nodes)
    assert (num_nodes == 0) == (k == 0)
    if tree == "confidence":
        with pytest.raises(ValueError, match="no fixed shape"):
            choice.shape(k)
        return
    shape = choice.shape(k)
    check(shape)
    assert shape.num_nodes == num_nodes
    assert shape.depth <= k
    assert shape.num_ranks <= tree_width
    assert num_nodes >= choice.num_nodes(max(0, k - 1))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tree": 3}, "tree must be one of chain, breadth, ranked, confidence, or the path of a JSON file; got 3"),
        ({"tree": ""}, "tree must be one of"),
        ({"tree_nodes": 0}, "tree_nodes must be an integer between 1 and 64; got 0"),
        ({"tree_nodes": 65}, "tree_nodes must be an integer between 1 and 64; got 65"),
        ({"tree_nodes": True}, "tree_nodes must be an integer between 1 and 64; got True"),
        ({"tree_width": 2.0}, "tree_width must be an integer between 1 and 64; got 2.0"),
        ({"tree_width": "8"}, "tree_width must be an integer between 1 and 64; got '8'"),
    ],
)
def test_values_out_of_range_are_refused_by_name(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(words)}"):
        TreeChoice(**({"tree": "breadth", "tree_nodes": 16, "tree_width": 8} | fields))


def test_ranks_are_less_likely_one_by_one() -> None:
    assert len(RANK_PROBS) == MAX_DRAFT_NODES
    assert all(1 > first > second > 0 for first, second in itertools.pairwise(RANK_PROBS))


def test_shapes_need_no_torch() -> None:
    code = "import sys, specdec.proposers.shapes; assert not {'torch', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
