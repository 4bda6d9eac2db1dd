"""What `specdec bench tree` measures: one verification step of a draft tree beside one of a chain of as many nodes.

The same sequences, the same number of tokens and logits; of each draft two tokens are right, in the tree scattered
ones, so that KV has to be moved. Chains and trees take turns, and a time is a median.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from specdec.cli.proposer_overhead import verdict
from specdec.config import EngineConfig
from specdec.core.scheduler import Schedule, ScheduledRow
from specdec.core.sequence import Sequence as Sample
from specdec.engine import Engine
from specdec.proposers.shapes import TreeChoice, TreeShape
from specdec.step.record import StepRecord
from specdec.types import Draft, SamplingParams

BATCH_SIZES = (1, 4)
TEMPERATURES = (0.0, 1.0)
DEPTH = 4
NUM_RIGHT = 2
PROMPT_LENGTH = 256
ROUNDS = 10
WARM_UP_ROUNDS = 2
TARGET = 1.1


@dataclass(frozen=True)
class TreeTime:
    """Median times of a step in milliseconds, the model included."""

    batch_size: int
    temperature: float
    chain_ms: float
    tree_ms: float
    ratio: float
    """Of the tree's to the chain's."""


@dataclass(frozen=True)
class TreeTimes:
    model: str
    num_nodes: int
    depth: int
    """The tree's; a chain is as deep as it has nodes."""
    num_rounds: int
    target: float
    times: tuple[TreeTime, ...]


def measure_trees(
    model: str, num_nodes: int, progress: Callable[[str], None] | None = None, num_rounds: int = ROUNDS
) -> TreeTimes:
    """Load a model and measure every batch size and temperature. ValueError for a model that cannot be loaded."""
    length = PROMPT_LENGTH + num_nodes + NUM_RIGHT + 2
    config = EngineConfig(
        model=model,
        max_num_seqs=max(BATCH_SIZES),
        kv_cache_tokens=max(BATCH_SIZES) * (length + 32),
        enable_prefix_caching=False,
    )
    engine = Engine.from_config(config, progress)
    return measure_engine(engine, model, num_nodes, progress, num_rounds)


def measure_engine(
    engine: Engine,
    model: str,
    num_nodes: int,
    progress: Callable[[str], None] | None = None,
    num_rounds: int = ROUNDS,
) -> TreeTimes:
    """The same for a loaded engine that is idle."""
    shape = TreeChoice("ranked", num_nodes, num_nodes).shape(DEPTH)
    times = []
    for batch_size in BATCH_SIZES:
        for temperature in TEMPERATURES:
            if progress is not None:
                progress(f"measuring {batch_size} x {num_nodes} nodes at temperature {temperature:g}")
            times.append(_measure(engine, batch_size, temperature, shape, num_rounds))
    return TreeTimes(model, num_nodes, shape.depth, num_rounds, TARGET, tuple(times))


def _measure(engine: Engine, batch_size: int, temperature: float, shape: TreeShape, num_rounds: int) -> TreeTime:
    samples, plain = _decoding(engine, batch_size, temperature)
    vocab_size = engine.runner.vocab_size
    chains = _schedule(engine, samples, [chain_draft(tokens, shape.num_nodes, vocab_size) for tokens in plain])
    trees = _schedule(engine, samples, [tree_draft(tokens, shape, vocab_size) for tokens in plain])
    seconds: dict[int, list[float]] = {0: [], 1: []}
    for _ in range(WARM_UP_ROUNDS + num_rounds):
        for kind, schedule in enumerate((chains, trees)):
            start = time.perf_counter()
            verdicts = engine.runner.execute(schedule, StepRecord())
            engine.runner.keep_paths(schedule, verdicts)
            seconds[kind].append(time.perf_counter() - start)
            assert all(each.error is None for each in verdicts)
    for sample in samples:
        engine.abort(sample.request.request_id)
    chain_ms, tree_ms = (1e3 * statistics.median(each[WARM_UP_ROUNDS:]) for each in seconds.values())
    return TreeTime(batch_size, temperature, chain_ms, tree_ms, tree_ms / chain_ms)


def _decoding(engine: Engine, batch_size: int, temperature: float) -> tuple[list[Sample], list[list[int]]]:
    """Sequences that have just been given their first token, and the tokens that plain decoding gives next."""
    prompts = [[(31 * i + 7 * index) % 200 + 10 for i in range(PROMPT_LENGTH)] for index in range(batch_size)]

    def add(name: str, max_tokens: int | None) -> None:
        params = SamplingParams(temperature=temperature, max_tokens=max_tokens, ignore_eos=True, seed=0)
        for index, prompt in enumerate(prompts):
            engine.add_request(f"{name} {index}", prompt, params)

    add("plain", NUM_RIGHT + 2)
    plain: dict[str, list[int]] = {}
    while engine.has_unfinished_requests():
        plain |= {output.request_id: output.outputs[0].token_ids for output in engine.step()}
    add("timed", None)
    engine.step()
    samples = list(engine.scheduler.running)
    assert [sample.num_output_tokens for sample in samples] == [1] * batch_size, "the prompts fit into one step"
    return samples, [plain[f"plain {index}"][1:] for index in range(batch_size)]


def _schedule(engine: Engine, samples: list[Sample], drafts: list[Draft]) -> Schedule:
    rows = []
    for sample, draft in zip(samples, drafts, strict=True):
        grown = engine.scheduler.blocks.grow(sample, sample.num_tokens + len(draft))
        assert grown == [], "there is room, and nothing is shared"
        rows.append(ScheduledRow(sample, sample.num_computed_tokens, 1 + len(draft), draft))
    return Schedule(tuple(rows))


def chain_draft(plain: list[int], num_nodes: int, vocab_size: int) -> Draft:
    """All but the last of the tokens that plain decoding gives, and then wrong ones."""
    right = plain[:-1][:num_nodes]
    wrong = [(plain[-1] + 1) % vocab_size] * (num_nodes - len(right))
    return Draft((*right, *wrong))


def tree_draft(plain: list[int], shape: TreeShape, vocab_size: int) -> Draft:
    """The same along the path to the shape's last node, which lies scattered; the others are wrong."""
    followers = {-1: 0}
    token_ids: list[int] = []
    deepest = shape.paths[-1]
    for path, parent, rank in zip(shape.paths, shape.parents, shape.ranks, strict=True):
        depth = followers.get(parent)
        if depth is not None and depth < len(plain) - 1 and path == deepest[: depth + 1]:
            followers[len(token_ids)] = depth + 1
            token_ids.append(plain[depth])
        else:
            token_ids.append((plain[0 if depth is None else depth] + 1 + rank) % vocab_size)
    return Draft(tuple(token_ids), shape.parents)


def report(result: TreeTimes) -> str:
    """The measurements as a table for a person."""
    lines = [
        f"A verification step of {result.model}, in ms: a chain of {result.num_nodes} and a tree of as many nodes, "
        f"{result.depth} deep; medians of {result.num_rounds} steps, in turn",
        "  ".join(f"{name:>11}" for name in ("rows", "temperature", "chain", "tree", "ratio", "target")),
    ]
    for each in result.times:
        figures = (each.batch_size, f"{each.temperature:g}", f"{each.chain_ms:.1f}", f"{each.tree_ms:.1f}")
        cells = (*figures, f"{each.ratio:.3f}", verdict(each.ratio, result.target))
        lines.append("  ".join(f"{cell:>11}" for cell in cells))
    return "\n".join(lines)
