"""How far a model's laws move when its weights and its cache are held in fewer bits: measured against float32.

Every text is a prompt of an engine, computed in chunks through the paged cache. One model is loaded at a time: of the
float32 one only the final hidden states of the texts ([positions, hidden], float32) and its output matrix are kept,
from which its logits are computed again, a few rows at a time, beside those of the model that is compared.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from specdec.config import EngineConfig
from specdec.engine import Engine
from specdec.eval.driving import Job, Stopped, Watch, drive, errors
from specdec.eval.pieces import Piece
from specdec.eval.precisions import REFERENCE, Precision
from specdec.eval.results import Estimate
from specdec.eval.stats import Bootstrap, Counts, ratio
from specdec.models.decoder import Decoder
from specdec.step.batch import Batch
from specdec.step.kv_cache import KVCache, KVLayout
from specdec.step.model import Model
from specdec.tokenizer import Tokenizer
from specdec.types import SamplingParams

BuildEngine = Callable[[EngineConfig], Engine]
Cut = Callable[[Tokenizer], Many[Piece]]
Logits = Callable[[torch.Tensor], torch.Tensor]
"""From final hidden states [n, hidden] to logits [n, vocab]."""
Visit = Callable[[int, int, torch.Tensor], None]
"""Given a piece's number, the first position of a span, and the span's final hidden states [n, hidden]."""

ONE_TOKEN = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, detokenize=False)
STEP_TOKENS = 256
"""Tokens of a step."""
CHUNK_ROWS = 32
"""Rows of logits that are compared at once."""
BLOCK_SIZE = 16
HIGH = 0.99


@dataclass(frozen=True)
class Quality:
    """One precision beside float32, over all positions; intervals are over the pieces of text."""

    precision: str
    weights: str
    kv_cache_dtype: str
    weight_bytes: int
    perplexity: Estimate
    mean_kl: Estimate
    """KL(float32 || this), in nats."""
    kl_p99: float
    """The 99th percentile of the positions' KL."""
    argmax_agreement: Estimate
    """Share of positions whose likeliest token is the same."""
    overlap: Estimate
    """Sum over tokens of the smaller of the two probabilities: how often a token that is drawn with this precision
    would be accepted by the float32 model."""


@dataclass(frozen=True)
class QualityResult:
    """What was measured; `failures` has a line for each precision that was not."""

    model: str
    context: int
    num_pieces: int
    num_positions: int
    qualities: tuple[Quality, ...]
    failures: tuple[str, ...] = ()
    interrupted: bool = False


@dataclass
class Comparison:
    """Sums over the positions of each piece."""

    num_pieces: int
    kl_of_position: list[float] = field(default_factory=list)
    sums: Counts = field(init=False)
    """[5, pieces]: log loss, KL, agreement, overlap, positions."""

    def __post_init__(self) -> None:
        self.sums = np.zeros((5, self.num_pieces))

    def add(self, piece: int, ours: torch.Tensor, reference: torch.Tensor, following: torch.Tensor) -> None:
        """Some positions' logits [n, vocab] of both, and the tokens (int64 [n]) that follow."""
        our_log, reference_log = ours.double().log_softmax(-1), reference.double().log_softmax(-1)
        our_probs, reference_probs = our_log.exp(), reference_log.exp()
        # What the reference rules out adds nothing, though its logarithm is infinite.
        terms = torch.where(reference_probs > 0, reference_probs * (reference_log - our_log), 0.0)
        kl = terms.sum(-1)
        self.kl_of_position += kl.tolist()
        self.sums[:, piece] += (
            -float(our_log.gather(1, following[:, None]).sum()),
            float(kl.sum()),
            float((ours.argmax(-1) == reference.argmax(-1)).sum()),
            float(torch.minimum(our_probs, reference_probs).sum()),
            len(following),
        )

    def quality(self, precision: Precision, kv_cache_dtype: str, weight_bytes: int) -> Quality:
        """The figures of these sums."""
        bootstrap = Bootstrap(0)
        loss, kl, agreement, overlap, count = self.sums
        return Quality(
            precision=precision.name,
            weights=precision.weights,
            kv_cache_dtype=kv_cache_dtype,
            weight_bytes=weight_bytes,
            perplexity=bootstrap.estimate(lambda above, below: np.exp(above / below), loss, count),
            mean_kl=bootstrap.estimate(ratio, kl, count),
            kl_p99=float(np.quantile(self.kl_of_position, HIGH)),
            argmax_agreement=bootstrap.estimate(ratio, agreement, count),
            overlap=bootstrap.estimate(ratio, overlap, count),
        )


@dataclass(frozen=True)
class Yardstick:
    """What is kept of the float32 model: final hidden states [len(piece), hidden] of every piece, and its head."""

    hidden: tuple[torch.Tensor, ...]
    logits: Logits


def measure_quality(
    build: BuildEngine,
    config: EngineConfig,
    cut: Cut,
    precisions: Many[Precision],
    context: int,
    watch: Watch,
) -> QualityResult:
    """Read the float32 model, then compare each precision with it. ValueError if the float32 model cannot be had.

    `config` names the model, whose tokenizer `cut` makes pieces of at most `context` tokens with. A stop keeps what was
    measured by then.
    """
    config = config_for_reading(config, context)
    qualities: list[Quality] = []
    failures: list[str] = []
    interrupted = False
    reference = build(REFERENCE.apply(config))
    if reference.tokenizer is None:
        raise ValueError("this model has no tokenizer, and what it is to read is text")
    pieces = cut(reference.tokenizer)
    try:
        yardstick = _read_reference(reference, pieces, watch)
        del reference
        gc.collect()
        for precision in precisions:
            try:
                qualities.append(_compare(build(precision.apply(config)), precision, pieces, yardstick, watch))
            except ValueError as error:
                failures.append(f"{precision.name}: {error}")
            gc.collect()
    except Stopped:
        interrupted = True
    positions = sum(len(piece) - 1 for piece in pieces)
    return QualityResult(config.model, context, len(pieces), positions, tuple(qualities), tuple(failures), interrupted)


def config_for_reading(config: EngineConfig, context: int) -> EngineConfig:
    """An engine that reads prompts of up to `context` tokens, one after another and each from its beginning."""
    return replace(
        config,
        speculative=(),
        verifier="auto",
        enable_prefix_caching=False,
        max_num_seqs=1,
        max_num_batched_tokens=STEP_TOKENS,
        block_size=BLOCK_SIZE,
        kv_cache_tokens=(2 + context // BLOCK_SIZE) * BLOCK_SIZE,
    )


def _read_reference(engine: Engine, pieces: Many[Piece], watch: Watch) -> Yardstick:
    model = engine.runner.model
    spans: list[list[torch.Tensor]] = [[] for _ in pieces]

    def keep(piece: int, start: int, hidden: torch.Tensor) -> None:
        assert start == sum(map(len, spans[piece])), "a span does not begin where the last one ended"
        spans[piece].append(hidden.clone())

    _read(engine, pieces, keep, watch, f"reading in {REFERENCE.weights}")
    head = model.head() if isinstance(model, Decoder) else model.compute_logits
    return Yardstick(tuple(torch.cat(own) for own in spans), head)


def _compare(engine: Engine, precision: Precision, pieces: Many[Piece], yardstick: Yardstick, watch: Watch) -> Quality:
    model = engine.runner.model
    comparison = Comparison(len(pieces))

    def compare(piece: int, start: int, hidden: torch.Tensor) -> None:
        end = min(start + len(hidden), len(pieces[piece]) - 1)
        for first in range(start, end, CHUNK_ROWS):
            last = min(first + CHUNK_ROWS, end)
            ours = model.compute_logits(hidden[first - start : last - start])
            reference = yardstick.logits(yardstick.hidden[piece][first:last])
            following = torch.tensor(pieces[piece][first + 1 : last + 1], device=ours.device)
            comparison.add(piece, ours, reference, following)

    _read(engine, pieces, compare, watch, precision.name)
    if not np.isfinite(comparison.sums).all():
        raise ValueError("the model's logits are not finite")
    kv_cache_dtype = str(engine.runner.kv.layout.dtype).removeprefix("torch.")
    return comparison.quality(precision, kv_cache_dtype, engine.memory.weight_bytes)


def _read(engine: Engine, pieces: Many[Piece], visit: Visit, watch: Watch, label: str) -> None:
    """Compute every piece and visit its spans; ValueError with the first thing that went wrong."""
    if (longest := max(map(len, pieces))) >= engine.max_model_len:
        raise ValueError(
            f"pieces of {longest} tokens are too long for this model; at most {engine.max_model_len - 1} will do"
        )
    engine.runner.model = _Tap(engine.runner.model, visit)
    outputs = drive(engine, [Job(piece, ONE_TOKEN) for piece in pieces], watch, label)
    if problems := errors(outputs):
        raise ValueError(problems[0])


@dataclass(frozen=True)
class _Tap:
    """A model that shows its final hidden states."""

    inner: Model
    visit: Visit

    def forward(self, batch: Batch, kv: KVCache) -> torch.Tensor:
        every = torch.arange(batch.num_tokens, device=batch.logits_indices.device)
        hidden = self.inner.forward(replace(batch, logits_indices=every), kv)
        at = 0
        for row in batch.rows:
            own = hidden[at : at + row.num_scheduled_tokens]
            self.visit(int(row.sequence.request.request_id), row.start, own)
            at += row.num_scheduled_tokens
        return hidden

    def forward_with_aux(
        self, batch: Batch, kv: KVCache, aux_layers: Many[int]
    ) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        raise AssertionError("an engine without proposers wants nothing of its layers")

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.inner.compute_logits(hidden)

    def kv_layout(self) -> KVLayout:
        return self.inner.kv_layout()
