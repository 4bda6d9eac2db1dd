"""`specdec bench` measures what it says it does; how fast this is, no test asks."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from specdec.cli import overhead, tree_overhead
from specdec.cli.head_overhead import HeadTime, measure_head
from specdec.cli.overhead import Overhead, StepTime, measure_step, report
from specdec.cli.proposer_overhead import (
    FAVOURED,
    LIVES,
    LOOP,
    NOISE,
    ProposerTime,
    Verified,
    loop_text,
    measure_proposer,
    random_text,
)
from specdec.cli.tree_overhead import NUM_RIGHT, TreeTime, TreeTimes, chain_draft, measure_engine, tree_draft
from specdec.engine import Engine
from specdec.kernels import reference
from specdec.proposers.shapes import TreeChoice
from specdec.types import Draft, Verdict
from tests.cli.fake import invoke
from tests.toys import BYTE_VOCABULARY, ScriptedModel, make_engine, random_script

STAGES = ["schedule", "batch", "sample", "commit", "propose", "outputs"]


@pytest.mark.parametrize("batch_size", [1, 3])
def test_steps_are_full_of_drafts_of_which_some_fail(batch_size: int) -> None:
    step = measure_step(batch_size, 1.0, reference, num_steps=25)
    assert step.drafted_per_step == 4
    assert 0.2 < step.acceptance_rate < 0.95
    assert list(step.stages_ms) == STAGES
    assert all(value > 0 for value in step.stages_ms.values())
    assert step.total_ms > max(step.stages_ms.values())


@pytest.mark.parametrize(("method", "life"), [(method, life) for method in LIVES for life in LIVES[method]])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_proposer_is_measured_by_rows_and_context(method: str, life: str, batch_size: int) -> None:
    timed = measure_proposer(method, life, batch_size, 512, 50.0, num_steps=5, warm_up_steps=40)
    assert (timed.method, timed.life, timed.batch_size, timed.context) == (method, life, batch_size, 512)
    assert timed.target_us == 50.0
    assert timed.median_us > 0
    assert timed.drafted > 2, "it is at work"


def test_loops_have_noise_and_random_texts_begin_again() -> None:
    loop = loop_text(0, 512, 2_000)
    repeated = sum(token == loop[i - LOOP] for i, token in enumerate(loop) if i >= LOOP) / (len(loop) - LOOP)
    assert 1 - 3 * NOISE < repeated < 1
    text = random_text(0, 512, 600)
    assert len(set(text[:512])) > 500
    assert text[512:] == text[:88]


def test_what_is_verified_keeps_a_node_and_leaves_logits() -> None:
    life = Verified(2, 8, num_nodes=3)
    before = [list(sample.token_ids) for sample in life.samples]
    empty, tree = life.step([None, Draft((5, 6, 7), (-1, -1, 0))])
    assert empty is not None
    assert tree is not None
    assert (empty.judged, empty.path, empty.end) == ((before[0][-1],), (), 8)
    assert (tree.judged, tree.path, tree.end) == ((before[1][-1], 5, 6, 7), (0,), 9)
    assert [sample.token_ids[:-1] for sample in life.samples] == [before[0], [*before[1], 5]]
    assert empty.logits is not None
    assert tree.logits is not None
    assert (len(empty.logits), len(tree.logits)) == (1, 4)
    assert ((tree.logits > 10).sum(dim=-1) == FAVOURED).all()


@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_head_is_measured_around_one_that_answers_at_once(batch_size: int) -> None:
    timed = measure_head(batch_size, num_steps=4)
    assert (timed.batch_size, timed.target_us) == (batch_size, 300.0)
    assert timed.median_us > 0


RESULT = Overhead(
    steps=(
        StepTime(1, dict.fromkeys(STAGES, 0.1), 0.6, 1.0, 4.0, 0.5),
        StepTime(32, dict.fromkeys(STAGES, 1.2), 7.2, 6.0, 4.0, 0.5),
    ),
    proposers=(ProposerTime("ngram", "random", 16, 32_000, 6.0, 50.0, 4.0),),
    heads=(HeadTime(16, 310.0, 300.0),),
    num_speculative_tokens=4,
    vocab_size=49_152,
    num_steps=200,
    torch_version="2",
    torch_threads=2,
    python_version="3",
)


def test_the_table_says_which_targets_are_met() -> None:
    rows = [line.split() for line in report(RESULT).splitlines()]
    assert rows[1] == ["rows", *STAGES, "total", "target", "drafted", "accepted"]
    assert rows[2] == ["1", *["0.100"] * 6, "0.600", "<", "1", "4.00", "50", "%"]
    assert rows[3] == ["32", *["1.200"] * 6, "7.200", "NOT", "<", "6", "4.00", "50", "%"]
    assert ["ngram", "random", "16", "32,000", "4.0", "6.0", "<", "50"] in rows
    assert ["16", "310.0", "NOT", "<", "300"] in rows


def test_the_command_prints_the_table_or_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overhead, "measure_overhead", lambda: RESULT)
    assert invoke("bench", "overhead").stdout == report(RESULT) + "\n"
    assert json.loads(invoke("bench", "overhead", "--json").stdout) == json.loads(json.dumps(asdict(RESULT)))


def test_trees_and_chains_are_verified_in_turn_with_as_much_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ScriptedModel(random_script(BYTE_VOCABULARY), BYTE_VOCABULARY, max_model_len=512)
    engine = make_engine(model, max_num_batched_tokens=2048)
    seen: list[tuple[Draft, Verdict]] = []
    keep = engine.runner.keep_paths

    def spy(schedule, verdicts) -> None:  # type: ignore[no-untyped-def]
        seen.extend((row.draft, verdict) for row, verdict in zip(schedule.rows, verdicts, strict=True) if row.draft)
        keep(schedule, verdicts)

    monkeypatch.setattr(engine.runner, "keep_paths", spy)
    told: list[str] = []
    result = measure_engine(engine, "scripted", 8, told.append, num_rounds=2)
    assert [(each.batch_size, each.temperature) for each in result.times] == [(1, 0), (1, 1), (4, 0), (4, 1)]
    assert all(each.ratio == each.tree_ms / each.chain_ms > 0 for each in result.times)
    assert (result.num_nodes, result.depth, len(told)) == (8, 4, 4)
    greedy = seen[:8]  # one row, two warm-up rounds and two others
    assert [draft.parents is None for draft, _ in greedy] == [True, False] * 4
    assert {len(draft) for draft, _ in seen} == {8}
    assert {verdict.num_accepted for _, verdict in greedy} == {NUM_RIGHT}
    assert {verdict.accepted_path for draft, verdict in greedy if draft.parents} != {(0, 1)}, "KV is moved"
    check_idle(engine)


def check_idle(engine: Engine) -> None:
    assert not engine.has_unfinished_requests()
    engine.scheduler.check_integrity()
    assert engine.scheduler.blocks.num_free_blocks == engine.scheduler.blocks.num_blocks


@pytest.mark.parametrize("num_nodes", [1, 2, 16, 64])
def test_drafts_hold_the_right_tokens_on_one_path_alone(num_nodes: int) -> None:
    plain = [7, 9, 8]
    shape = TreeChoice("ranked", num_nodes, num_nodes).shape(4)
    chain, tree = chain_draft(plain, num_nodes, 100), tree_draft(plain, shape, 100)
    assert len(chain) == len(tree) == num_nodes
    assert chain.token_ids[:NUM_RIGHT] == tuple(plain[:NUM_RIGHT])[:num_nodes]
    assert all(token == 9 for token in chain.token_ids[NUM_RIGHT:])
    for node in range(-1, num_nodes):
        tokens = [tree.token_ids[child] for child in tree.children(node)]
        assert len(set(tokens)) == len(tokens)
    first = [node for node in tree.children(-1) if tree.token_ids[node] == 7]
    assert len(first) == 1
    second = [node for node in tree.children(first[0]) if tree.token_ids[node] == 9]
    assert len(second) == (shape.depth > 1)
    assert all(tree.token_ids[node] != 8 for node in tree.children(second[0] if second else first[0]))


TREES = TreeTimes("toy", 16, 4, 10, 1.1, (TreeTime(1, 0.0, 100.0, 104.0, 1.04), TreeTime(4, 1.0, 200.0, 230.0, 1.15)))


def test_bench_tree_prints_ratios_beside_their_target(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def measure(model: str, num_nodes: int, progress: object) -> TreeTimes:
        asked.append((model, num_nodes))
        return TREES

    monkeypatch.setattr(tree_overhead, "measure_trees", measure)
    rows = [line.split() for line in invoke("bench", "tree").stdout.splitlines()]
    assert rows[1] == ["rows", "temperature", "chain", "tree", "ratio", "target"]
    assert rows[2:] == [
        ["1", "0", "100.0", "104.0", "1.040", "<", "1.1"],
        ["4", "1", "200.0", "230.0", "1.150", "NOT", "<", "1.1"],
    ]
    shown = invoke("bench", "tree", "--json", "--model", "m", "--tree-nodes", "8").stdout
    assert json.loads(shown) == json.loads(json.dumps(asdict(TREES)))
    assert asked == [("smollm2-135m", 16), ("m", 8)]


def test_bench_tree_refuses_what_is_no_model_or_no_size_in_one_line() -> None:
    done = invoke("bench", "tree", "--model", "./none.gguf")
    assert done.exit_code == 2
    assert "none.gguf" in done.stderr
    assert done.stderr.count("\n") == 1
    assert invoke("bench", "tree", "--tree-nodes", "65").exit_code == 2
