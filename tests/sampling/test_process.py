"""The pipeline against its plain definition, row by row, and what it promises about its input."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec.core.scheduler import Schedule, ScheduledRow
from specdec.core.sequence import Sequence
from specdec.sampling.process import SamplingRow, sampling_rows
from specdec.step.batch import Batch
from specdec.types import Draft, Request, SamplingParams
from tests.sampling.helpers import fingerprint, process, sampling_row, scripted_logits, scripted_rows
from tests.sampling.naive import process_row

VOCAB = 9
TOKENS = st.integers(0, VOCAB - 1)
TEMPERATURES = st.sampled_from([0.0, 1e-6, 0.3, 1.0, 1.7])


@st.composite
def params(draw: st.DrawFn) -> SamplingParams:
    """Any combination of what moves logits. The shares of top_p are no sums of equal probabilities."""
    options: dict[str, Any] = {"temperature": draw(TEMPERATURES)}
    choices: dict[str, st.SearchStrategy[Any]] = {
        "presence_penalty": st.sampled_from([-1.5, 0.3, 2.0]),
        "frequency_penalty": st.sampled_from([-0.7, 0.4, 1.1]),
        "repetition_penalty": st.sampled_from([0.6, 1.3, 4.0]),
        "top_p": st.sampled_from([1e-9, 0.137, 0.613, 0.877, 0.9991]),
        "top_k": st.integers(-1, VOCAB + 2),
        "min_p": st.sampled_from([0.013, 0.211, 0.77, 1.0]),
        "min_tokens": st.integers(0, 6),
        "logit_bias": st.dictionaries(
            st.integers(0, VOCAB + 3), st.sampled_from([-100.0, -1.0, 0.25, 8.0]), max_size=4
        ),
        "allowed_token_ids": st.lists(TOKENS, min_size=1, max_size=5),
    }
    for name in draw(st.sets(st.sampled_from(sorted(choices)), max_size=4)):
        options[name] = draw(choices[name])
    return SamplingParams(**options)


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    """Chains and trees of at most five nodes."""
    tokens = tuple(draw(st.lists(TOKENS, max_size=5)))
    if draw(st.booleans()):
        return Draft(tokens)
    return Draft(tokens, tuple(draw(st.integers(-1, node - 1)) for node in range(len(tokens))))


@st.composite
def rows(draw: st.DrawFn) -> SamplingRow:
    prompt, output = draw(st.lists(TOKENS, min_size=1, max_size=6)), draw(st.lists(TOKENS, max_size=6))
    return sampling_row(
        draw(params()),
        prompt + output,
        len(prompt),
        draw(drafts()),
        min_tokens_ban=draw(st.sets(TOKENS, max_size=2)),
        bad_word_ids=tuple(draw(st.lists(st.lists(TOKENS, min_size=1, max_size=3).map(tuple), max_size=6))),
    )


def _logits(seed: int, num_rows: int) -> torch.Tensor:
    """On a coarse grid, so that ties are common."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-12, 13, (num_rows, VOCAB), generator=generator, dtype=torch.float64) / 4


@given(st.lists(rows(), min_size=1, max_size=4), st.integers(0, 2**32))
def test_equals_the_plain_definition(batch: list[SamplingRow], seed: int) -> None:
    logits = _logits(seed, sum(row.num_logits for row in batch))
    before = fingerprint(logits)
    processed = process(logits, batch)
    assert fingerprint(logits) == before
    expected = [(row, path) for row in batch for path in row.paths]
    for own, raw, (row, path) in zip(processed, logits, expected, strict=True):
        wanted = torch.tensor(process_row(raw.tolist(), row, path), dtype=torch.float64)
        assert torch.equal(own == float("-inf"), wanted == float("-inf"))
        assert torch.allclose(own, wanted, rtol=1e-12, atol=1e-12)


@given(st.lists(rows(), min_size=2, max_size=5), st.integers(0, 2**32))
def test_a_row_does_not_know_its_neighbours(batch: list[SamplingRow], seed: int) -> None:
    logits = _logits(seed, sum(row.num_logits for row in batch)).float()
    processed = process(logits, batch)
    start = 0
    for row in batch:
        stop = start + row.num_logits
        assert torch.equal(process(logits[start:stop], [row]), processed[start:stop])
        start = stop


@pytest.mark.parametrize(
    "asked",
    [
        SamplingParams(temperature=0),
        SamplingParams(temperature=0, top_k=3, top_p=0.5, min_p=0.2),
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=1.0, top_k=-1),
        SamplingParams(temperature=0, logit_bias={}, min_tokens=4),
    ],
)
def test_answers_the_input_itself_when_nothing_is_asked(asked: SamplingParams) -> None:
    logits = torch.randn(6, VOCAB)
    assert process(logits, [sampling_row(asked, draft=(1, 2))] * 2) is logits
    empty = torch.empty(0, VOCAB)
    assert process(empty, []) is empty


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_keeps_shape_and_dtype(dtype: torch.dtype) -> None:
    row = sampling_row(
        SamplingParams(temperature=0.5, top_k=2, logit_bias={1: 2.0}, presence_penalty=1.0), draft=(3, 4)
    )
    processed = process(torch.randn(3, VOCAB, dtype=dtype), [row])
    assert (processed.shape, processed.dtype) == ((3, VOCAB), dtype)


def test_a_temperature_beyond_the_dtype_is_uniform_and_keeps_bans() -> None:
    row = sampling_row(SamplingParams(temperature=1e300, allowed_token_ids=[1, 2]))
    processed = process(torch.randn(1, VOCAB), [row])
    assert torch.softmax(processed, dim=-1)[0, 1:3].tolist() == pytest.approx([0.5, 0.5])


def test_drafted_tokens_before_a_row_count_and_those_on_other_branches_do_not() -> None:
    asked = SamplingParams(temperature=0, frequency_penalty=1.0, presence_penalty=0.5, repetition_penalty=2.0)
    tree = Draft((5, 5, 6), parents=(-1, 0, -1))
    processed = process(torch.full((4, VOCAB), 4.0), [sampling_row(asked, (7, 8), 1, tree)])
    assert processed[:, 7].tolist() == [2.0] * 4  # in the prompt: repetition only
    assert processed[:, 8].tolist() == [0.5] * 4
    assert processed[:, 5].tolist() == [4.0, 0.5, -0.5, 4.0]
    assert processed[:, 6].tolist() == [4.0, 4.0, 4.0, 0.5]


def test_bad_words_match_across_committed_and_drafted_tokens() -> None:
    row = sampling_row(SamplingParams(temperature=0), (1, 2), 1, (3, 4), bad_word_ids=((2, 3, 4), (6,), (3, 4, 5)))
    banned = process(torch.zeros(3, VOCAB), [row]) == float("-inf")
    assert [row.nonzero().flatten().tolist() for row in banned] == [[6], [4, 6], [5, 6]]


def test_bad_words_begin_in_the_output() -> None:
    row = sampling_row(SamplingParams(temperature=0), (9, 1), 1, bad_word_ids=((9, 1, 2), (1, 3), (8, 9, 1, 4)))
    banned = process(torch.zeros(1, VOCAB), [row]) == float("-inf")
    assert banned.nonzero().tolist() == [[0, 3]]


def test_min_tokens_counts_tokens_and_not_steps() -> None:
    row = sampling_row(SamplingParams(temperature=0, min_tokens=3), (1, 2), 1, (3, 4, 5), min_tokens_ban=(0,))
    banned = process(torch.zeros(4, VOCAB), [row])[:, 0] == float("-inf")
    assert banned.tolist() == [True, True, False, False]


def test_ids_beyond_the_vocabulary_are_ignored() -> None:
    asked = SamplingParams(temperature=0, logit_bias={99: 5.0, 1: 1.0}, allowed_token_ids=[1, 99], min_tokens=1)
    row = sampling_row(asked, min_tokens_ban=(99,), bad_word_ids=((99,),))
    assert process(torch.zeros(1, 3), [row]).tolist() == [[float("-inf"), 1.0, float("-inf")]]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_filters_do_not_hide_what_is_not_a_number(value: float) -> None:
    logits = torch.randn(2, VOCAB)
    logits[0, 4] = value
    asked = SamplingParams(temperature=0.7, top_k=3, top_p=0.8, min_p=0.1)
    processed = process(logits, [sampling_row(asked), sampling_row(asked)])
    assert not processed[0].max().isfinite()
    assert torch.equal(processed[1:], process(logits[1:], [sampling_row(asked)]))


def test_sampling_rows_are_the_batch_rows_that_take_logits() -> None:
    def sequence(name: str, computed: int) -> Sequence:
        request = Request(name, (1, 2, 3, 4), SamplingParams(), seed=17, arrival=0, bad_word_ids=((5,),))
        return Sequence(request, 2, [1, 2, 3, 4], num_computed_tokens=computed, block_table=[0, 1])

    chunk, whole = sequence("chunk", 0), sequence("whole", 1)
    draft = Draft((7, 8))
    scheduled = (ScheduledRow(chunk, 0, 2, Draft()), ScheduledRow(whole, 1, 5, draft))
    batch = Batch.build(Schedule(scheduled), 4, torch.device("cpu"))
    (row,) = sampling_rows(batch)
    assert (row.seed, row.sample, row.draft, row.bad_word_ids) == (17, 2, draft, ((5,),))
    assert (row.num_tokens, row.num_prompt_tokens, row.num_output_tokens, row.num_logits) == (4, 4, 0, 3)
    assert row.paths == [(), (7,), (7, 8)]


def test_penalties_on_a_scripted_model_equal_the_plain_definition() -> None:
    asked = SamplingParams(temperature=0.9, repetition_penalty=1.2, presence_penalty=0.3, frequency_penalty=-0.2)
    row = sampling_row(asked, (*range(40), 3, 3, 9), 40, (9, 9, 3, 50))
    logits = scripted_rows(row, 64, torch.float64)
    for own, path in zip(process(logits, [row]), row.paths, strict=True):
        raw = scripted_logits((*row.token_ids, *path), 64, torch.float64)
        assert torch.allclose(own, torch.tensor(process_row(raw.tolist(), row, path), dtype=torch.float64), rtol=1e-12)
