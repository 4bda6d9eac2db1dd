"""T(M): how long the target takes for M tokens of one sequence, measured on the loaded model and its KV cache.

This is the forward pass and the logits of all M tokens, and nothing of the step around it. The tokens stand where a
draft would: after a context, and each seen by those that follow.
"""

from __future__ import annotations

import statistics
import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence

import torch

from specdec.core.scheduler import Schedule, ScheduledRow
from specdec.core.sequence import Sequence as Sample
from specdec.engine import Engine
from specdec.eval.results import Curve, CurvePoint
from specdec.step.batch import Batch
from specdec.step.model import compute
from specdec.types import Draft, Request, SamplingParams

SIZES = (1, 8, 12, 16, 24, 32, 48, 64)
"""The values of M beside those that a chain of k tokens needs."""


def sizes_for(longest_draft: int) -> list[int]:
    """1 to k + 1 and some up to 64."""
    return sorted({*range(1, longest_draft + 2), *SIZES})


class CurveTimer:
    """Takes the time of each M in turns, a round at a time, so that the rounds can be spread over an evaluation.

    The context holds blocks of the engine's KV cache until `close`; where the longest sequence would find no room
    beside it, only during a round, for which it is computed anew. The engine must be idle at a round then.
    """

    def __init__(self, engine: Engine, tokens: Sequence[int], context: int, sizes: Iterable[int]) -> None:
        """`tokens` are repeated as often as it takes for a context of `context` tokens. Context and sizes are cut to
        what the model can hold."""
        self._engine = engine
        self._sizes = sorted({1, *(size for size in sizes if size <= engine.max_model_len // 2)})
        self.context = max(1, min(context, engine.max_model_len - self._sizes[-1]))
        end = self.context + self._sizes[-1]
        self._tokens = (list(tokens) * (1 + end // len(tokens)))[:end]
        self._seconds: dict[int, list[float]] = {size: [] for size in self._sizes}
        request = Request("curve", tuple(self._tokens[: self.context]), SamplingParams(), seed=0, arrival=0)
        self._sample = Sample(request, 0, self._tokens[: self.context])

    def close(self) -> None:
        self._engine.scheduler.blocks.free(self._sample)

    def round(self) -> None:
        """Time each M once, upwards and downwards in turns."""
        if not self._sample.block_table:
            self._fill()
        upwards = len(self._seconds[self._sizes[0]]) % 2 == 0
        for size in self._sizes if upwards else self._sizes[::-1]:
            self._seconds[size].append(self._time(size))
        blocks = self._engine.scheduler.blocks
        if blocks.num_free_blocks * blocks.block_size < self._engine.max_model_len:
            self.close()

    def curve(self) -> Curve:
        """The medians of the rounds so far, of which there must be one."""
        medians = {size: statistics.median(times) for size, times in self._seconds.items()}
        points = tuple(CurvePoint(size, medians[size], medians[size] / medians[1]) for size in self._sizes)
        return Curve(self.context, len(self._seconds[1]), points)

    def _fill(self) -> None:
        """Take blocks, and compute the context's KV but for its last token, which comes with every M."""
        copies = self._engine.scheduler.blocks.grow(self._sample, len(self._tokens))
        assert copies == [], "an idle engine has room for one sequence of any length it takes"
        most = self._engine.config.max_num_batched_tokens
        for start in range(0, self.context - 1, most):
            self._forward(ScheduledRow(self._sample, start, min(most, self.context - 1 - start)))

    def _time(self, size: int) -> float:
        start = self.context - 1
        draft = Draft(tuple(self._tokens[self.context : self.context + size - 1]), proposer="curve")
        return self._forward(ScheduledRow(self._sample, start, size, draft))

    @torch.inference_mode()
    def _forward(self, row: ScheduledRow) -> float:
        runner = self._engine.runner
        batch = Batch.build(Schedule((row,)), runner.kv.block_size, runner.device)
        start = time.perf_counter()
        compute(runner.model, batch, runner.kv)
        return time.perf_counter() - start


def at(curve: Curve, num_tokens: int) -> float:
    """T(M) in seconds: between two points on the line between them, beyond the last one on the last line."""
    sizes = [point.num_tokens for point in curve.points]
    if len(sizes) == 1:
        return curve.points[0].seconds
    right = min(max(1, bisect_left(sizes, num_tokens)), len(sizes) - 1)
    low, high = curve.points[right - 1], curve.points[right]
    slope = (high.seconds - low.seconds) / (high.num_tokens - low.num_tokens)
    return low.seconds + slope * (num_tokens - low.num_tokens)
