"""For every field of SamplingParams, drafted rows = plain rows: nothing works without speculation and fails with it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import pytest
import torch

from specdec.kernels import reference
from specdec.sampling.process import SamplingRow
from specdec.sampling.verify import verify
from specdec.types import Draft, SamplingParams
from tests.sampling.helpers import process, sampling_row, scripted_logits, scripted_rows

VOCAB = 23
ELSEWHERE = "does not move logits"
TREATMENT: dict[str, Any] = {
    "n": ELSEWHERE,
    "presence_penalty": [0.8, -1.0],
    "frequency_penalty": [0.5, -0.5],
    "repetition_penalty": [1.5, 0.7],
    "temperature": [0.0, 0.5, 2.0],
    "top_p": [0.4, 0.9],
    "top_k": [1, 4],
    "min_p": [0.1, 0.9],
    "seed": ELSEWHERE,
    "stop": ELSEWHERE,
    "stop_token_ids": ELSEWHERE,
    "ignore_eos": ELSEWHERE,
    "max_tokens": ELSEWHERE,
    "min_tokens": [4, 12],
    "logprobs": ELSEWHERE,
    "prompt_logprobs": ELSEWHERE,
    "detokenize": ELSEWHERE,
    "skip_special_tokens": ELSEWHERE,
    "include_stop_str_in_output": ELSEWHERE,
    "logit_bias": [{3: 6.0, 5: -100.0}],
    "allowed_token_ids": [[1, 2, 3, 5, 8, 13]],
    "bad_words": [["reach the pipeline as bad_word_ids"]],
}
"""What each field is tried with; a field without an entry fails the first test."""

MOVING = [(name, value) for name, values in TREATMENT.items() if values is not ELSEWHERE for value in values]
BASES = [SamplingParams(temperature=0, max_tokens=None), SamplingParams(temperature=1.0, max_tokens=None)]


def _row(params: SamplingParams, token_ids: Sequence[int], draft: Sequence[int], seed: int = 0) -> SamplingRow:
    """With bad words, if asked for, that apply after every token."""
    pairs = [(first, last) for first in range(VOCAB) for last in (2 * (first % 4), 11)]
    bad = (*pairs, (4,), (6, 7, 9)) if params.bad_words else ()
    return sampling_row(params, token_ids, 3, draft, seed=seed, min_tokens_ban=range(0, VOCAB, 2), bad_word_ids=bad)


def test_every_field_has_a_treatment() -> None:
    assert {f.name for f in fields(SamplingParams)} == set(TREATMENT)


@pytest.mark.parametrize("base", BASES, ids=["greedy", "sampled"])
@pytest.mark.parametrize(("name", "value"), MOVING)
def test_drafted_rows_are_bit_equal_to_plain_rows(name: str, value: Any, base: SamplingParams) -> None:
    params = replace(base, **{name: value})
    row = _row(params, (3, 1, 4, 1, 5), (9, 2, 6, 5, 3, 5))
    raw = scripted_rows(row, VOCAB)
    processed = process(raw, [row])
    for i, path in enumerate(row.paths):
        plain = _row(params, (*row.token_ids, *path), ())
        assert torch.equal(process(raw[i : i + 1], [plain])[0], processed[i])
    skipped = params.is_greedy and name in ("temperature", "top_p", "top_k", "min_p")
    assert torch.equal(processed, raw) == skipped


@pytest.mark.parametrize("base", BASES, ids=["greedy", "sampled"])
@pytest.mark.parametrize(("name", "value"), MOVING)
def test_a_sweep_of_oracles_emits_the_plain_tokens(name: str, value: Any, base: SamplingParams) -> None:
    params = replace(base, **{name: value})
    truth = _decode(params, [], 0, 0)
    for k in (1, 4):
        for right in range(k + 1):
            assert _decode(params, truth, k, right) == truth


def _decode(params: SamplingParams, truth: Sequence[int], k: int, right: int, length: int = 16) -> list[int]:
    """Coupled decoding with drafts that are right for `right` tokens, then wrong."""
    token_ids = [3, 1, 4]
    while len(token_ids) < length:
        ahead = truth[len(token_ids) : len(token_ids) + k]
        draft = tuple(token if i < right else (token + 1) % VOCAB for i, token in enumerate(ahead))
        row = _row(params, token_ids, draft, seed=21)
        processed = process(scripted_rows(row, VOCAB), [row])
        (verdict,) = verify(processed, [row], "coupled", reference)
        assert verdict.error is None
        token_ids += verdict.token_ids
    return token_ids[:length]


@pytest.mark.parametrize(("name", "value"), MOVING)
def test_tree_rows_are_bit_equal_to_plain_rows(name: str, value: Any) -> None:
    params = replace(BASES[1], **{name: value})
    tree = Draft((9, 2, 6, 5, 3, 5), parents=(-1, 0, -1, 2, 0, 4))
    row = _row(params, (3, 1, 4, 1, 5), ())._replace(draft=tree)
    raw = scripted_rows(row, VOCAB)
    for i, (path, own) in enumerate(zip(row.paths, process(raw, [row]), strict=True)):
        assert torch.equal(process(raw[i : i + 1], [_row(params, (*row.token_ids, *path), ())])[0], own)


def _random_params(generator: random.Random) -> SamplingParams:
    options: dict[str, Any] = {
        "temperature": generator.choice([0.0, 1e-5, 0.7, 1.0, 50.0, 1e300]),
        "presence_penalty": generator.choice([0, 0, -2, 2, 0.1]),
        "frequency_penalty": generator.choice([0, 0, -2, 2, 0.1]),
        "repetition_penalty": generator.choice([1, 1, 1e-3, 100, 1.1]),
        "top_p": generator.choice([1, 1, 1e-9, 0.5, 0.999999]),
        "top_k": generator.choice([0, -1, 1, 2, VOCAB - 1, VOCAB, 10**9]),
        "min_p": generator.choice([0, 0, 1e-9, 0.3, 1]),
        "min_tokens": generator.choice([0, 0, 3, 1000]),
        "max_tokens": None,
    }
    if generator.random() < 0.3:
        bias = {generator.randrange(2 * VOCAB): generator.choice([-100.0, 100.0, 1.0]) for _ in range(6)}
        options["logit_bias"] = bias
    if generator.random() < 0.3:
        options["allowed_token_ids"] = [generator.randrange(2 * VOCAB) for _ in range(generator.randint(1, 30))]
    if generator.random() < 0.3:
        options["bad_words"] = ["x"]
    return SamplingParams(**options)


def _banned(row: SamplingRow, before: Sequence[int]) -> set[int]:
    """The tokens that no parameter set lets through after the tokens `before`."""
    params = row.params
    output = tuple(before[row.num_prompt_tokens :])
    banned = {word[-1] for word in row.bad_word_ids if len(word) == 1 or output[-len(word) + 1 :] == word[:-1]}
    if params.allowed_token_ids is not None:
        banned |= set(range(VOCAB)) - set(params.allowed_token_ids)
    return banned | (row.min_tokens_ban if len(before) - row.num_prompt_tokens < params.min_tokens else set())


@pytest.mark.parametrize("seed", range(60))
def test_random_parameters_on_mixed_batches_never_raise_and_never_emit_a_banned_token(seed: int) -> None:
    generator = random.Random(seed)
    rows = []
    for i in range(generator.randint(1, 16)):
        tokens = [generator.randrange(VOCAB) for _ in range(generator.randint(3, 12))]
        draft = [generator.randrange(VOCAB) for _ in range(generator.randint(0, 6))]
        rows.append(_row(_random_params(generator), tokens, draft, seed=i))
    logits = torch.cat([scripted_rows(row, VOCAB) for row in rows])
    processed = process(logits, rows)
    assert not processed.isnan().any()
    for verifier in ("auto", "rejection", "block", "coupled", "typical", "greedy"):
        for row, verdict in zip(rows, verify(processed, rows, verifier, reference), strict=True):
            tokens = list(row.token_ids)
            for token in verdict.token_ids:
                assert token not in _banned(row, tokens)
                tokens.append(token)
            if verdict.error is None:
                assert verdict.num_accepted == len(verdict.token_ids) - 1
            else:
                assert verdict.token_ids == ()


def test_scripted_logits_depend_on_the_whole_prefix() -> None:
    assert torch.equal(scripted_logits((1, 2), 5), scripted_logits((1, 2), 5))
    assert not torch.equal(scripted_logits((1, 2), 5), scripted_logits((2, 2), 5))
