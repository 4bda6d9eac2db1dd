"""The yardstick of the law test: the model's own logits after every text, each once, with little computed twice."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from specdec.eval.draws import Laws
from specdec.eval.driving import Stopped, Watch
from specdec.eval.reader import Reader, Text
from specdec.types import SamplingParams
from tests.eval.tiny import VOCABULARY, Tiny, config, layered, scripted
from tests.toys import ScriptedModel

CONTEXT = (1, 2, 3, 4, 5, 6, 7)


def texts() -> list[Text]:
    """Two contexts, and what some samples made of them."""
    ends = [(), (1,), (1, 2), (1, 2, 3), (1, 2, 4), (5,), (5, 5)]
    return [(*context, *end) for context in (CONTEXT, (9,)) for end in ends if end]


def test_every_text_is_read_once_and_as_the_model_has_it() -> None:
    target = scripted().target
    assert isinstance(target, ScriptedModel)
    found: dict[Text, torch.Tensor] = {}

    def visit(text: Text, logits: torch.Tensor) -> None:
        assert text not in found
        found[text] = logits.clone()

    Reader(Tiny(target).build, config("ngram"), texts()).read(visit, Watch(), "x")
    assert found.keys() == set(texts())
    assert all(torch.equal(logits, target.logits(text)) for text, logits in found.items())
    assert target.num_computed <= len(CONTEXT) + 1 + 6 * 3


def test_a_real_decoder_reads_the_same_in_any_company() -> None:
    models = layered(2)
    alone: dict[Text, torch.Tensor] = {}
    for text in texts():
        Reader(models.build, config("ngram"), [text]).read(lambda t, own: alone.update({t: own.clone()}), Watch(), "x")
    together: dict[Text, torch.Tensor] = {}
    small = config("ngram", max_num_batched_tokens=8, max_num_seqs=3)
    Reader(models.build, small, texts()).read(lambda t, own: together.update({t: own.clone()}), Watch(), "x")
    assert alone.keys() == together.keys()
    for text, logits in alone.items():
        torch.testing.assert_close(together[text], logits, rtol=1e-10, atol=1e-10)


def test_laws_answer_looks() -> None:
    models = scripted()
    target = models.target
    assert isinstance(target, ScriptedModel)
    params = SamplingParams(temperature=0.5)
    laws = Laws(params, np.random.default_rng(0))
    looks = [laws.ask(CONTEXT, token) for token in range(VOCABULARY)]
    tried = laws.ask(CONTEXT, 3, (1, 2))
    laws.read(models.build, config("ngram"), Watch())
    law = torch.softmax(target.logits(CONTEXT) / 0.5, dim=-1)
    assert [look.prob for look in looks] == pytest.approx(law.tolist())
    best = int(law.argmax())
    assert looks[best].place < law[best]
    assert looks[best].place_without_tried == looks[best].place
    without = law.clone()
    without[[1, 2]] = 0
    above = float(without[without > without[3]].sum() / without.sum())
    assert above <= tried.place_without_tried <= above + float(without[3] / without.sum())


def test_reading_can_be_stopped() -> None:
    reader = Reader(scripted().build, config("ngram"), texts())
    with pytest.raises(Stopped):
        reader.read(lambda text, logits: None, Watch(stopped=lambda: True), "x")
