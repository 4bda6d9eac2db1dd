"""The noise is Philox4x32-10, and a pure function of seed, sample, position, stream and token."""

from __future__ import annotations

import math
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec.kernels import reference
from specdec.kernels.noise import WORD_MASK, gumbel_at, philox4x32
from specdec.sampling.rng import NoiseKey, Stream, gumbel, gumbel_argmax, uniform
from tests.sampling.helpers import CPU

KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((WORD_MASK,) * 4, (WORD_MASK,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
"""Random123's published vectors for philox4x32 with 10 rounds."""

SEEDS = st.integers(-(2**63), 2**64 - 1)
KEYS = st.builds(NoiseKey, SEEDS, st.integers(0, 1023), st.integers(0, 2**32 - 1), st.integers(0, 63))
STREAMS = st.sampled_from(Stream)


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_known_answers_in_both_paths(counter: tuple, key: tuple, expected: tuple) -> None:
    assert philox4x32(counter, key) == expected
    tensors = philox4x32(*(tuple(torch.tensor([word]) for word in words) for words in (counter, key)))
    assert tuple(int(word) for word in tensors) == expected


@given(st.lists(st.integers(0, WORD_MASK), min_size=6, max_size=6))
def test_scalar_path_is_bit_equal_to_the_tensor_path(words: list[int]) -> None:
    as_tensors = [torch.tensor([word]) for word in words]
    drawn = philox4x32(tuple(as_tensors[:4]), tuple(as_tensors[4:]))  # type: ignore[arg-type]
    scalars = philox4x32(tuple(words[:4]), tuple(words[4:]))  # type: ignore[arg-type]
    assert tuple(int(word) for word in drawn) == scalars


@given(KEYS, STREAMS)
def test_uniform_lies_inside_the_unit_interval_and_agrees_with_the_noise_of_token_0(
    key: NoiseKey, stream: Stream
) -> None:
    value = uniform(*key[:3], stream)
    assert 0.0 < value < 1.0
    noise = gumbel([key._replace(depth=0)], stream, 9, CPU)[0]
    assert noise[0].item() == pytest.approx(-math.log(-math.log(value)), rel=1e-12)
    for index in range(9):
        value = uniform(*key[:3], stream, index)
        assert noise[index].item() == pytest.approx(-math.log(-math.log(value)), rel=1e-12)


def test_extreme_words_give_finite_noise() -> None:
    assert math.isfinite(-math.log(-math.log(0.5 / 2**32)))
    assert math.isfinite(-math.log(-math.log((WORD_MASK + 0.5) / 2**32)))


@given(
    st.lists(KEYS, min_size=1, max_size=5),
    STREAMS,
    st.integers(1, 41),
    st.integers(1, 300),
    st.randoms(use_true_random=False),
)
def test_noise_ignores_vocabulary_size_batch_and_order(
    keys: list, stream: Stream, small: int, more: int, random: Random
) -> None:
    whole = gumbel(keys, stream, small + more, CPU)
    assert torch.equal(gumbel(keys, stream, small, CPU), whole[:, :small])
    order = random.sample(range(len(keys)), len(keys))
    assert torch.equal(gumbel([keys[i] for i in order], stream, small + more, CPU), whole[order])
    assert torch.equal(gumbel(keys[-1:], stream, small + more, CPU), whole[-1:])
    rows = torch.tensor([random.randrange(len(keys)) for _ in range(30)])
    tokens = torch.tensor([random.randrange(small + more) for _ in range(30)])
    assert torch.equal(gumbel_at([key.words(stream) for key in keys], rows, tokens), whole[rows, tokens])


def test_chunked_generation_equals_one_row_at_a_time() -> None:
    keys = [NoiseKey(seed, seed % 3, 7 * seed) for seed in range(13)]
    size = 49_157
    rows = torch.cat([gumbel([key], Stream.RESAMPLE, size, CPU) for key in keys])
    assert torch.equal(gumbel(keys, Stream.RESAMPLE, size, CPU), rows)


@given(KEYS, STREAMS)
def test_every_part_of_the_key_matters(key: NoiseKey, stream: Stream) -> None:
    others = [
        (key._replace(seed=key.seed ^ 1), stream),
        (key._replace(seed=key.seed ^ (1 << 40)), stream),
        (key._replace(sample=key.sample + 1), stream),
        (key._replace(position=key.position ^ 1), stream),
        (key._replace(depth=key.depth + 1), stream),
        *((key, other) for other in Stream if other is not stream),
    ]
    own = gumbel([key], stream, 8, CPU)
    for other, other_stream in others:
        assert not torch.isin(gumbel([other], other_stream, 8, CPU), own).any()


def test_seeds_are_taken_modulo_two_to_the_64() -> None:
    assert uniform(-1, 0, 5, Stream.ACCEPT) == uniform(2**64 - 1, 0, 5, Stream.ACCEPT)
    assert uniform(3, 0, 5, Stream.ACCEPT) == uniform(3 + 2**64, 0, 5, Stream.ACCEPT)
    keys = [NoiseKey(-5, 0, 1), NoiseKey(2**64 - 5, 0, 1)]
    assert gumbel(keys, Stream.DRAFT, 9, CPU).unique(dim=0).shape[0] == 1


def test_noise_has_the_moments_of_a_gumbel_and_a_uniform() -> None:
    noise = gumbel([NoiseKey(11, 0, position) for position in range(20)], Stream.RESAMPLE, 20_000, CPU)
    assert abs(noise.mean().item() - 0.5772156649) < 0.01
    assert abs(noise.var().item() - math.pi**2 / 6) < 0.02
    values = torch.tensor([uniform(11, 0, position, Stream.ACCEPT) for position in range(20_000)])
    assert abs(values.mean().item() - 0.5) < 0.01
    assert abs(values.var().item() - 1 / 12) < 0.003


@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(0, 30))
def test_argmax_over_few_possible_tokens_equals_the_dense_one(seed: int, num_rows: int, num_possible: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(num_rows, 500, generator=generator)
    scattered = torch.full_like(logits, float("-inf"))
    columns = torch.randperm(500, generator=generator)[:num_possible]
    scattered[:, columns] = logits[:, columns]
    keys = [NoiseKey(seed, 0, position) for position in range(num_rows)]
    noise = gumbel(keys, Stream.RESAMPLE, 500, CPU)
    for rows in (logits, scattered):
        tokens, scores = gumbel_argmax(rows, keys, Stream.RESAMPLE, reference)
        best, expected = (rows + noise).max(dim=-1)
        assert torch.equal(scores, best)
        assert num_possible == 0 or torch.equal(tokens, expected)


@pytest.mark.parametrize("num_possible", [2, 400])
def test_scores_show_rows_that_have_no_law(num_possible: int) -> None:
    logits = torch.full((4, 400), float("-inf"))
    logits[:3, :num_possible] = 0.0
    logits[1, 1], logits[2, 1] = float("nan"), float("inf")
    _, scores = gumbel_argmax(logits, [NoiseKey(0, 0, i) for i in range(4)], Stream.RESAMPLE, reference)
    assert scores.isfinite().tolist() == [True, False, False, False]
    assert scores[1].isnan()
    assert scores[2:].tolist() == [float("inf"), float("-inf")]
