"""T(M) of whole steps: an engine's step over M rows of one sequence, and the memory traffic that it amounts to.

`specdec.eval.curve` times the model alone. Here M - 1 drafted tokens are scheduled, computed, verified and committed,
and the next ones proposed, as in any step; the step record tells the model's forward pass from the rest. The proposer
costs nothing, and its drafts are mostly wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from specdec.config import EngineConfig, SpeculativeConfig
from specdec.engine import Engine
from specdec.eval.bench.bandwidth import BandwidthProbe
from specdec.eval.bench.fixed_drafts import METHOD
from specdec.eval.bench.spread import Spread, spread
from specdec.eval.bench.traffic import kv_bytes_read, weight_bytes_read
from specdec.eval.session import Job, Session, StepTimes
from specdec.types import SamplingParams, SpeculationParams

READS_PER_ROUND = 2


@dataclass(frozen=True)
class StepPoint:
    """A step over `num_rows` rows. Times are medians in milliseconds, the rest follows from them."""

    num_rows: int
    step_ms: Spread
    ratio: float
    """T(M) / T(1) of whole steps."""
    forward_ms: float
    """Of the model alone, logits included."""
    outside_ms: float
    weight_bytes: int
    """That the step must read at least once."""
    kv_bytes: int
    gigabytes_per_s: float
    """Both, over the whole step."""
    share: float
    """Of the read bandwidth that was measured in the same run."""


@dataclass(frozen=True)
class StepCurve:
    model: str
    num_threads: int
    context: int
    num_rounds: int
    read_gigabytes_per_s: float
    points: tuple[StepPoint, ...]


def config_for_steps(config: EngineConfig, token_ids: Sequence[int], most_rows: int) -> EngineConfig:
    """`config` with the drafts of this measurement in place of any proposer."""
    drafts = SpeculativeConfig(METHOD, max(1, most_rows - 1), {"token_ids": tuple(token_ids)})
    return replace(config, speculative=(drafts,))


def measure_steps(
    engine: Engine,
    token_ids: Sequence[int],
    rows: Sequence[int],
    num_rounds: int,
    probe: BandwidthProbe,
    tell: Callable[[str], None] = lambda line: None,
) -> StepCurve:
    """Time steps that end a context of `token_ids`, every number of rows in turn, reads of memory between the rounds.

    The engine is one of `config_for_steps`, and idle. ValueError where the model cannot hold context and rows.
    """
    sizes = sorted({1, *rows})
    if len(token_ids) + 3 * sizes[-1] > engine.max_model_len:
        raise ValueError(
            f"a context of {len(token_ids)} tokens and steps of {sizes[-1]} rows after it do not fit the model's "
            f"{engine.max_model_len}"
        )
    times: dict[int, list[StepTimes]] = {size: [] for size in sizes}
    for number in range(-1, num_rounds):
        tell(f"round {max(0, number) + 1} of {num_rounds}")
        for size in sizes if number % 2 == 0 else sizes[::-1]:
            taken = _time(engine, token_ids, size)
            if number >= 0:
                times[size].append(taken)
        for _ in range(READS_PER_ROUND):
            probe.round()
    return _curve(engine, len(token_ids), times, probe.bytes_per_second)


def _time(engine: Engine, token_ids: Sequence[int], num_rows: int) -> StepTimes:
    """One step over the last token of the context and `num_rows` - 1 drafted ones after it."""
    params = SamplingParams(temperature=0, max_tokens=2 * num_rows + 2, ignore_eos=True, seed=0)
    speculation = SpeculationParams(METHOD if num_rows > 1 else "none", num_rows - 1)
    with Session(engine) as session:
        session.submit(0, Job(tuple(token_ids[:-1]), params, speculation, "steps"))
        while session.num_waiting:
            session.step()
        before = session.times
        session.step()
        assert engine.last_step.num_tokens == num_rows, "the whole draft was scheduled, and nothing else"
        return session.times.since(before)


def _curve(engine: Engine, context: int, times: dict[int, list[StepTimes]], read_rate: float) -> StepCurve:
    points: list[StepPoint] = []
    for size, taken in times.items():
        step = spread(1e3 * each.total for each in taken)
        weights, kv = weight_bytes_read(engine, size), kv_bytes_read(engine, context + size - 1)
        rate = (weights + kv) / (step.median / 1e3)
        points.append(
            StepPoint(
                num_rows=size,
                step_ms=step,
                ratio=step.median / points[0].step_ms.median if points else 1.0,
                forward_ms=spread(1e3 * each.forward for each in taken).median,
                outside_ms=spread(1e3 * (each.total - each.forward) for each in taken).median,
                weight_bytes=weights,
                kv_bytes=kv,
                gigabytes_per_s=rate / 1e9,
                share=rate / read_rate,
            )
        )
    num_threads = engine.runner.kernels.num_threads()
    return StepCurve(engine.config.model, num_threads, context, len(times[1]), read_rate / 1e9, tuple(points))
