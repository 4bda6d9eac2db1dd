"""Data as training reads it, and what is said of directories that hold none."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from specdec.train.data.conversation import Answer
from specdec.train.data.dataset import open_dataset
from specdec.train.data.record import Record
from specdec.train.data.shards import Shard, ShardPaths, write_shard

WIDTH = 6


def answer(job: int, length: int, *, source: str = "s", states: bool = False) -> Answer:
    rows = torch.full((length, WIDTH), float(job), dtype=torch.bfloat16) if states else None
    ids = np.arange(length, dtype=np.int64) + 1000 * job
    return Answer(job, 0, ids, 2, source, 0.7, job, job, job, True, rows)


def write(folder: Path, shards: list[list[Answer]], *, vocab_size: int = 49_152, states: bool = False) -> None:
    kept = {"aux_layers": [2, 5], "hidden_size": 2, "width": WIDTH} if states else {}
    Record({"seed": 1}, kept).write(folder)
    for number, answers in enumerate(shards):
        write_shard(
            folder,
            Shard(number, 9 * number, 9 * number + 9, tuple(answers), {}),
            vocab_size=vocab_size,
            with_states=states,
        )


def test_samples_come_in_the_order_of_shards(tmp_path: Path) -> None:
    write(tmp_path, [[answer(0, 5, source="b"), answer(1, 3, source="a")], [], [answer(2, 4)]])
    dataset = open_dataset(tmp_path)
    assert len(dataset) == 3
    assert [dataset[i].token_ids.tolist() for i in range(3)] == [
        [0, 1, 2, 3, 4],
        [1000, 1001, 1002],
        [2000, 2001, 2002, 2003],
    ]
    assert [dataset[i].source for i in range(3)] == ["b", "a", "s"]
    assert [dataset.num_tokens(i) for i in range(3)] == [5, 3, 4]
    assert (dataset[0].num_prompt_tokens, dataset[0].temperature) == (2, 0.7)
    assert dataset[-1].token_ids.tolist() == dataset[2].token_ids.tolist()
    assert dataset[0].token_ids.dtype == np.int64
    assert dataset.states(1) is None
    assert dataset.aux_layers == ()
    assert dataset.provenance["identity"] == {"seed": 1}
    for index in (3, -4):
        with pytest.raises(IndexError):
            dataset[index]


def test_a_shard_that_is_missing_is_noticed(tmp_path: Path) -> None:
    write(tmp_path, [[answer(0, 5)], [answer(1, 3)], [answer(2, 4)]])
    ShardPaths(tmp_path, 1).samples.unlink()
    with pytest.raises(ValueError, match=r"shard-00002.* does not follow the shard before it; is a file missing\?"):
        open_dataset(tmp_path)


@pytest.mark.parametrize(("vocab_size", "kind"), [(1 << 16, np.uint16), ((1 << 16) + 1, np.int32)])
def test_tokens_are_kept_in_as_few_bytes_as_hold_them(tmp_path: Path, vocab_size: int, kind: type) -> None:
    last = Answer(0, 0, np.array([0, 1, vocab_size - 1]), 2, "s", 0.0, 0, 0, 0, True)
    write(tmp_path, [[last]], vocab_size=vocab_size)
    dataset = open_dataset(tmp_path)
    assert dataset.shards[0].columns["tokens"].dtype == kind
    assert dataset[0].token_ids.tolist() == [0, 1, vocab_size - 1]


def test_states_are_those_of_the_sample(tmp_path: Path) -> None:
    write(tmp_path, [[answer(0, 5, states=True), answer(1, 3, states=True)], [answer(2, 4, states=True)]], states=True)
    dataset = open_dataset(tmp_path)
    assert dataset.aux_layers == (2, 5)
    for i, length in enumerate((5, 3, 4)):
        states = dataset.states(i)
        assert states is not None
        assert torch.equal(states, torch.full((length, WIDTH), float(i), dtype=torch.bfloat16))
        states += 1  # the file is not written to
    again = open_dataset(tmp_path).states(0)
    assert again is not None
    assert not again.any()


def test_a_partial_shard_is_read_until_the_whole_one_is_there(tmp_path: Path) -> None:
    write(tmp_path, [[answer(0, 5)]])
    shard = Shard(1, 9, 18, (answer(1, 3),), {})
    write_shard(tmp_path, shard, vocab_size=99, with_states=False, partial=True)
    assert len(open_dataset(tmp_path)) == 2
    write_shard(tmp_path, Shard(1, 9, 18, (answer(1, 3), answer(2, 3)), {}), vocab_size=99, with_states=False)
    assert len(open_dataset(tmp_path)) == 3
    assert not list(tmp_path.glob("*.partial.*"))
    write_shard(tmp_path, shard, vocab_size=99, with_states=False, partial=True)
    assert len(open_dataset(tmp_path)) == 3


def test_what_is_no_data_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no training data: it has no data\.json"):
        open_dataset(tmp_path)
    Record({}, {}).write(tmp_path)
    with pytest.raises(ValueError, match="holds no samples yet"):
        open_dataset(tmp_path)
    for content, message in (
        ("{", "cannot be read"),
        ("[]", "is no record of training data"),
        ('{"format": "specdec-train-data", "version": 7}', "is of version 7; this one reads 1"),
    ):
        (tmp_path / "data.json").write_text(content, "utf-8")
        with pytest.raises(ValueError, match=message) as caught:
            open_dataset(tmp_path)
        assert "\n" not in str(caught.value)


def test_damaged_shards_are_named(tmp_path: Path) -> None:
    write(tmp_path, [[answer(0, 5, states=True)]], states=True)
    paths = ShardPaths(tmp_path, 0)
    content = paths.states.read_bytes()
    paths.states.write_bytes(content[:-2])
    with pytest.raises(ValueError, match=r"states-00000\.bin has 58 bytes; the shard beside it needs 60"):
        open_dataset(tmp_path)
    paths.states.unlink()
    with pytest.raises(ValueError, match=r"states-00000\.bin is missing"):
        open_dataset(tmp_path)
    paths.samples.write_bytes(paths.samples.read_bytes()[:20])
    with pytest.raises(ValueError, match=r"shard-00000\.safetensors cannot be read"):
        open_dataset(tmp_path)


def test_the_record_keeps_what_it_is_given(tmp_path: Path) -> None:
    Record({"a": [1]}, {}, ({"command": "x"},), {"samples": 3}).write(tmp_path)
    assert json.loads((tmp_path / "data.json").read_text("utf-8"))["runs"] == [{"command": "x"}]
    assert not list(tmp_path.glob(".*"))
