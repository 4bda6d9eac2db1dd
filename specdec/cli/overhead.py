"""What `specdec bench overhead` measures: the engine around a model that does no work.

The null model looks each next token up in a small table, so that prompts made of its own habits are drafted for by
n-grams and about as many drafts fail as in practice. Its time is the forward stage of the step record, and is left out.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from specdec.cli.head_overhead import HeadTime, head_lines, measure_heads
from specdec.cli.proposer_overhead import ProposerTime, measure_proposers, proposer_lines, verdict
from specdec.config import EngineConfig, SpeculativeConfig, cache_dir
from specdec.engine import Engine, TargetFacts
from specdec.engine.build import assemble
from specdec.kernels import Kernels, choose_backend
from specdec.step.batch import Batch
from specdec.step.kv_cache import KVCache, KVLayout
from specdec.step.model import Computed
from specdec.types import SamplingParams

VOCAB_SIZE = 49_152
NUM_SPECULATIVE_TOKENS = 4
PROMPT_LENGTH = 512
WARM_UP_STEPS = 30
STEPS = 200
ALPHABET = 16
LEAP_EVERY = 6
STAGES = ("schedule", "batch", "sample", "commit", "propose")
STEP_TARGETS_MS = {1: 0.3, 32: 6.0}


@dataclass(frozen=True)
class StepTime:
    """Medians over the steps of one batch size, in milliseconds.

    `total_ms` is the whole step less the model; its stages are those of the step record, and "outputs" is the rest.
    """

    batch_size: int
    stages_ms: dict[str, float]
    total_ms: float
    target_ms: float
    drafted_per_step: float
    """Mean number of draft tokens of a step and sequence: k where every step had a full draft."""
    acceptance_rate: float


@dataclass(frozen=True)
class Overhead:
    steps: tuple[StepTime, ...]
    proposers: tuple[ProposerTime, ...]
    heads: tuple[HeadTime, ...]
    num_speculative_tokens: int
    vocab_size: int
    num_steps: int
    torch_version: str
    torch_threads: int
    python_version: str


def measure_overhead() -> Overhead:
    """Run every measurement, with the kernels that a CPU decodes with; well under a minute."""
    kernels = choose_backend("cpu", folder=cache_dir() / "kernels")
    return Overhead(
        steps=tuple(measure_step(size, target, kernels) for size, target in STEP_TARGETS_MS.items()),
        proposers=measure_proposers(),
        heads=measure_heads(),
        num_speculative_tokens=NUM_SPECULATIVE_TOKENS,
        vocab_size=VOCAB_SIZE,
        num_steps=STEPS,
        torch_version=str(torch.__version__),
        torch_threads=torch.get_num_threads(),
        python_version=platform.python_version(),
    )


class NullModel:
    """The next token is a table of the last token and whether the position leaps; the rest of the logits are noise.

    Its hidden state is the row of the table, float [T, 1]. `max_rows` rows of logits are written to one buffer, as if
    they had always been there.
    """

    def __init__(self, max_rows: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self._table = torch.randn(2 * ALPHABET, VOCAB_SIZE, generator=generator)
        for token in range(ALPHABET):
            for leap in (0, 1):
                self._table[2 * token + leap, next_token(token, leap)] = 100.0
        self._likeliest = self._table.argmax(dim=-1)
        self._logits = torch.empty(max_rows, VOCAB_SIZE)

    def forward(self, batch: Batch, kv: KVCache) -> torch.Tensor:
        return (2 * batch.token_ids + leaps(batch.positions)).to(torch.float32)[:, None]

    def forward_with_aux(
        self, batch: Batch, kv: KVCache, aux_layers: Sequence[int]
    ) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        hidden = self.forward(batch, kv)
        return hidden, dict.fromkeys(aux_layers, hidden)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = self._logits[: len(hidden)]
        return torch.index_select(self._table, 0, hidden[:, 0].to(torch.int64), out=logits)

    def compute(self, batch: Batch, kv: KVCache, aux_layers: Sequence[int] = ()) -> Computed:
        """As of a real model, the largest logit of each row comes with the logits."""
        hidden, aux = self.forward_with_aux(batch, kv, aux_layers)
        tokens = self._likeliest[hidden[:, 0].to(torch.int64)]
        logits = self.compute_logits(hidden)
        return Computed(hidden, aux, logits, (tokens, logits.gather(-1, tokens[:, None])[:, 0]))

    def kv_layout(self) -> KVLayout:
        return KVLayout(num_layers=1, num_kv_heads=1, head_dim=1, dtype=torch.float32)


def next_token(token: int, leap: int) -> int:
    """Counting up, or a leap ahead."""
    return (token + (5 if leap else 1)) % ALPHABET


def leaps(positions: torch.Tensor) -> torch.Tensor:
    """1 at about one position in `LEAP_EVERY`, without a period that an n-gram could learn; int64 [T]."""
    return (((positions * 2_654_435_761) >> 16) % LEAP_EVERY == 0).to(torch.int64)


def habitual_tokens(length: int, first: int = 0) -> list[int]:
    """What the null model writes from `first` on."""
    tokens = [first % ALPHABET]
    for leap in leaps(torch.arange(length - 1)).tolist():
        tokens.append(next_token(tokens[-1], leap))
    return tokens


def measure_step(batch_size: int, target_ms: float, kernels: Kernels, num_steps: int = STEPS) -> StepTime:
    """Median times of `num_steps` decoding steps of `batch_size` sequences, once all their prompts are computed."""
    max_tokens = (WARM_UP_STEPS + num_steps) * (NUM_SPECULATIVE_TOKENS + 1) + 1
    engine = _engine(batch_size, max_tokens, kernels)
    params = SamplingParams(temperature=0, max_tokens=max_tokens)
    for index in range(batch_size):
        engine.add_request(str(index), habitual_tokens(PROMPT_LENGTH, first=index), params)
    for _ in range(WARM_UP_STEPS):
        engine.step()
    stages: dict[str, list[float]] = {stage: [] for stage in (*STAGES, "outputs")}
    totals, drafted = [], 0
    for _ in range(num_steps):
        start = time.perf_counter()
        engine.step()
        record = engine.last_step
        totals.append(time.perf_counter() - start - record.forward)
        drafted += record.num_tokens - record.num_rows
        for stage in STAGES:
            stages[stage].append(getattr(record, stage))
        stages["outputs"].append(totals[-1] - record.overhead)
    assert engine.last_step.num_rows == batch_size
    return StepTime(
        batch_size=batch_size,
        stages_ms={stage: 1e3 * statistics.median(times) for stage, times in stages.items()},
        total_ms=1e3 * statistics.median(totals),
        target_ms=target_ms,
        drafted_per_step=drafted / num_steps / batch_size,
        acceptance_rate=_acceptance_rate(engine, batch_size),
    )


def _engine(batch_size: int, max_tokens: int, kernels: Kernels) -> Engine:
    length = PROMPT_LENGTH + max_tokens + 1
    config = EngineConfig(
        model="null",
        max_num_seqs=batch_size,
        max_num_batched_tokens=2048,
        kv_cache_tokens=batch_size * (length + 16),
        speculative=(SpeculativeConfig("ngram", NUM_SPECULATIVE_TOKENS),),
    )
    model = NullModel(batch_size * (NUM_SPECULATIVE_TOKENS + 1))
    return assemble(config, model, TargetFacts(VOCAB_SIZE, max_model_len=length), kernels=kernels)


def _acceptance_rate(engine: Engine, batch_size: int) -> float:
    outputs = [engine.abort(str(index)) for index in range(batch_size)]
    stats = [sample.speculation for output in outputs if output is not None for sample in output.outputs]
    return sum(s.num_accepted_tokens for s in stats) / max(1, sum(s.num_draft_tokens for s in stats))


def report(result: Overhead) -> str:
    """The measurements as a table for a person."""
    lines = [
        f"A step outside the model, in ms: greedy, k = {result.num_speculative_tokens}, vocabulary "
        f"{result.vocab_size:,}; medians of {result.num_steps} steps",
        "  ".join(f"{name:>8}" for name in ("rows", *STAGES, "outputs", "total", "target", "drafted", "accepted")),
    ]
    for step in result.steps:
        figures = [f"{value:8.3f}" for value in (*step.stages_ms.values(), step.total_ms)]
        lines.append(
            "  ".join([f"{step.batch_size:8}", *figures, f"{verdict(step.total_ms, step.target_ms):>8}"])
            + f"  {step.drafted_per_step:8.2f}  {100 * step.acceptance_rate:6.0f} %"
        )
    lines += ["", *proposer_lines(result.proposers), "", *head_lines(result.heads)]
    lines += ["", f"torch {result.torch_version}, {result.torch_threads} threads, Python {result.python_version}"]
    return "\n".join(lines)
