"""A tie is told from a bug by what rounding really does to the rows of this model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from specdec.eval.checks import PASSED
from specdec.eval.drift import Context, common_length, measure_gap
from specdec.eval.driving import Watch
from specdec.eval.equality import Equality, Texts
from specdec.sampling.rng import NoiseKey, Stream, gumbel
from specdec.step.batch import Batch
from specdec.step.kv_cache import KVCache
from specdec.types import SamplingParams
from tests.eval.tiny import PROMPTS, VOCABULARY, Tiny, config, layered, named, scripted, verify
from tests.toys import ScriptedModel, looping_script

GREEDY = SamplingParams(temperature=0, max_tokens=20)


class Rounding(ScriptedModel):
    """Rows that are computed with others of their sequence are `drift` higher for odd tokens."""

    def __init__(self, margin: float, drift: float) -> None:
        loop = looping_script(VOCABULARY + 1, 5)

        def script(prefix: tuple[int, ...]) -> np.ndarray:
            """The best token, if it is even, leads the next odd one by `margin`."""
            logits = np.asarray(loop(prefix)).copy()
            best = int(logits.argmax()) // 2 * 2
            logits[best] = logits.max() + 1.0
            if len(prefix) % 4 == 3:
                logits[best + 1] = logits[best] - margin
            return logits

        super().__init__(script, VOCABULARY + 1)
        self.drift = drift

    def forward(self, batch: Batch, kv: KVCache) -> torch.Tensor:
        hidden = super().forward(batch, kv)
        starts = batch.query_start_loc.tolist()
        for b, committed in enumerate(batch.committed_lens.tolist()):
            if committed < int(batch.seq_lens[b]):  # the row has a draft
                hidden[starts[b] : starts[b + 1], 1::2] += self.drift
        return hidden


def rounding(margin: float, drift: float) -> Tiny:
    return Tiny(Rounding(margin, drift), vocab_size=VOCABULARY + 1)


def test_tokens_nearer_than_rounding_are_a_tie() -> None:
    report = verify(rounding(5e-11, 1e-10), config("suffix"))
    check = named(report, "greedy equality")
    assert check.status == PASSED, check
    assert report.is_verified
    divergence = check.figures["divergences"][0]
    assert divergence["is_tie"]
    assert divergence["gap"]["margin"] == pytest.approx(5e-11, rel=1e-3)
    assert divergence["gap"]["drift"] == pytest.approx(1e-10, rel=1e-3)
    assert check.notes[0].endswith(": a tie")
    assert check.figures["num_equal"] < check.figures["num_answers"]


def test_rows_that_differ_by_more_than_rounding_are_a_fault() -> None:
    report = verify(rounding(5e-4, 1e-3), config("suffix"))
    assert any("verify rows differ from decode rows by" in fault for fault in named(report, "greedy equality").faults)


def test_no_drift_makes_no_tie() -> None:
    """The runs differ, and the rows do not: something else is wrong."""
    models = scripted()
    engine = models.build(config("suffix"))
    equality = Equality(engine, Watch())
    plain = [[1, 2, 3], [4, 5]]
    equality.compare("alone", Texts(PROMPTS[:2], GREEDY, plain), [[1, 2, 4], [4]])
    first, second = equality.divergences
    assert not first.is_tie
    assert first.gap is not None
    assert (first.index, first.plain_token, first.token, first.gap.drift) == (2, 3, 4, 0.0)
    assert second.gap is None
    assert "output token 2 is the end where plain decoding has 5" in second.describe()
    assert equality.num_tokens == 3
    assert len(equality.faults) == 2


def test_the_gap_is_that_of_the_worse_token_and_scores_have_their_noise() -> None:
    target = ScriptedModel(lambda prefix: [3.0, 1.0, 2.5] + [0.0] * (VOCABULARY - 3), VOCABULARY)
    engine = Tiny(target).build(config("suffix"))
    context = Context((5, 6, 7, 1, 2), 3, GREEDY)
    gap = measure_gap(engine, context, (2, 1), 3, 2)
    assert (gap.margin, gap.gap, gap.drift, gap.relative_drift) == (0.5, 2.0, 0.0, 0.0)
    sampled = replace(context, params=SamplingParams(temperature=0.5, seed=7))
    noise = gumbel([NoiseKey(7, 0, 5)], Stream.RESAMPLE, VOCABULARY, torch.device("cpu"))[0]
    scores = target.logits(()) / 0.5 + noise
    best, second = scores.topk(2).indices.tolist()
    gap = measure_gap(engine, sampled, (best, second), 3, 1)
    assert gap.margin == pytest.approx(float(scores[best] - scores[second]))
    assert gap.gap == pytest.approx(gap.margin)


def test_drift_is_measured_on_a_real_decoder_and_scales_with_temperature() -> None:
    engine = layered(2).build(config("draft"))
    context = Context((1, 2, 3, 4, 5, 6, 7, 8, 9), 3, GREEDY)
    gap = measure_gap(engine, context, (0, 1), 3, 4)
    assert 0 < gap.drift < 1e-12
    halved = measure_gap(engine, replace(context, params=SamplingParams(temperature=2.0, seed=0)), (0, 1), 3, 4)
    assert halved.drift == pytest.approx(gap.drift / 2)
    assert halved.relative_drift == gap.relative_drift


def test_common_length() -> None:
    assert [common_length(a, b) for a, b in (([], [1]), ([1, 2], [1, 2]), ([1, 2, 3], [1, 4, 3]))] == [0, 2, 1]
