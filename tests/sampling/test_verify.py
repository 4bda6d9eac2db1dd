"""What `verify` commits, sequence by sequence: against plain decoding, against its own definition, and under faults."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec.kernels import reference
from specdec.sampling.emission import law, residual
from specdec.sampling.process import SamplingRow
from specdec.sampling.rng import NoiseKey, Stream, gumbel, gumbel_argmax, uniform
from specdec.sampling.verify import verify
from specdec.types import Draft, SamplingParams, Verdict
from tests.sampling.helpers import CPU, fingerprint, process, sampling_row, scripted_logits, scripted_rows

VOCAB = 7
LENGTH = 14
GREEDY, SAMPLED = SamplingParams(temperature=0), SamplingParams(temperature=0.9, top_p=0.95)
Proposal = Callable[[Sequence[int], int], tuple[int, ...]]


def _verify(rows: Sequence[SamplingRow], verifier: str, vocab_size: int = VOCAB) -> list[Verdict]:
    logits = torch.cat([scripted_rows(row, vocab_size) for row in rows])
    return verify(process(logits, rows), rows, verifier, reference)


def _decode(params: SamplingParams, verifier: str, seed: int, propose: Proposal, k: int) -> list[int]:
    """The first LENGTH tokens of a scripted sequence, drafts and all."""
    token_ids = [1, 2]
    while len(token_ids) < LENGTH:
        (verdict,) = _verify([sampling_row(params, token_ids, 2, propose(token_ids, k), seed=seed)], verifier)
        token_ids += verdict.token_ids
    return token_ids[:LENGTH]


def _plain(params: SamplingParams, verifier: str, seed: int) -> list[int]:
    return _decode(params, verifier, seed, lambda token_ids, k: (), 0)


def _oracle(truth: Sequence[int], right: int) -> Proposal:
    """Right for exactly `right` tokens, then wrong."""

    def propose(token_ids: Sequence[int], k: int) -> tuple[int, ...]:
        ahead = list(truth[len(token_ids) : len(token_ids) + k])
        return tuple(token if i < right else (token + 1) % VOCAB for i, token in enumerate(ahead))

    return propose


def _adversary(token_ids: Sequence[int], k: int) -> tuple[int, ...]:
    generator = random.Random(len(token_ids))
    return tuple(generator.randrange(VOCAB) for _ in range(k))


@pytest.mark.parametrize(("params", "verifier"), [(GREEDY, "auto"), (GREEDY, "coupled"), (SAMPLED, "coupled")])
@pytest.mark.parametrize("k", [1, 2, 3, 5, 8])
def test_the_bytes_do_not_depend_on_the_draft(params: SamplingParams, verifier: str, k: int) -> None:
    for seed in range(4):
        truth = _plain(params, verifier, seed)
        for right in range(k + 1):
            assert _decode(params, verifier, seed, _oracle(truth, right), k) == truth
        assert _decode(params, verifier, seed, _adversary, k) == truth


def test_the_oracle_is_accepted_for_exactly_as_long_as_it_is_right() -> None:
    for params, verifier in ((GREEDY, "auto"), (SAMPLED, "coupled")):
        truth = _plain(params, verifier, 3)
        for right in range(5):
            row = sampling_row(params, truth[:4], 2, _oracle(truth, right)(truth[:4], 4), seed=3)
            (verdict,) = _verify([row], verifier)
            assert verdict == Verdict(tuple(truth[4 : 5 + right]), tuple(range(right)))
            assert verdict.num_accepted == right


def test_plain_decoding_gives_the_same_tokens_under_both_verifiers() -> None:
    for seed in range(10):
        tokens = _plain(SAMPLED, "rejection", seed)
        assert tokens == _plain(SAMPLED, "auto", seed) == _plain(SAMPLED, "coupled", seed)
    assert len({tuple(_plain(SAMPLED, "rejection", seed)) for seed in range(10)}) > 5


def _reference_rejection(logits: torch.Tensor, row: SamplingRow) -> Verdict:
    """The textbook loop, one token at a time, with the same noise."""
    draft, at = row.draft, row.num_tokens
    for node, token in enumerate(draft.token_ids):
        target = law(logits[node][None])
        probs = torch.eye(VOCAB, dtype=torch.float64)[token] if draft.draft_probs is None else draft.draft_probs[node]
        if uniform(row.seed, row.sample, at + node, Stream.ACCEPT) < min(1.0, float(target[0, token] / probs[token])):
            continue
        weights = residual(target, probs[None]).log()[0]
        break
    else:
        node, weights = len(draft), logits[len(draft)].double()
    noise = gumbel([NoiseKey(row.seed, row.sample, at + node)], Stream.RESAMPLE, VOCAB, CPU)[0]
    return Verdict((*draft.token_ids[:node], int((weights + noise).argmax())), tuple(range(node)))


@given(st.integers(0, 2**32), st.integers(1, 6))
def test_rejection_equals_the_textbook_loop(seed: int, num_rows: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for i in range(num_rows):
        k = int(torch.randint(0, 5, (), generator=generator))
        probs = torch.softmax(2 * torch.randn(k, VOCAB, generator=generator, dtype=torch.float64), dim=-1)
        tokens = tuple(probs.multinomial(1, generator=generator)[:, 0].tolist()) if k else ()
        draft = Draft(tokens, None, probs if i % 2 else None)
        rows.append(sampling_row(SAMPLED, (0,) * (1 + i), 1, draft, seed=seed + i % 3, sample=i))
    logits = torch.randn(sum(row.num_logits for row in rows), VOCAB, generator=generator)
    expected, start = [], 0
    for row in rows:
        expected.append(_reference_rejection(logits[start : start + row.num_logits], row))
        start += row.num_logits
    before = fingerprint(logits, *(row.draft.draft_probs for row in rows if row.draft.draft_probs is not None))
    assert verify(logits, rows, "rejection", reference) == expected
    assert fingerprint(logits, *(r.draft.draft_probs for r in rows if r.draft.draft_probs is not None)) == before


def test_a_rejection_never_emits_the_rejected_token() -> None:
    for seed in range(300):
        row = sampling_row(SAMPLED, (0,), 1, (seed % VOCAB,), seed=seed)
        (verdict,) = _verify([row], "rejection")
        assert verdict.num_accepted == 1 or verdict.token_ids[0] != seed % VOCAB


@pytest.mark.parametrize("verifier", ["rejection", "coupled"])
@pytest.mark.parametrize("position", range(4))
def test_a_forced_rejection_is_corrected_from_its_own_row(verifier: str, position: int) -> None:
    draft = tuple(range(4))
    logits = torch.full((5, VOCAB), float("-inf"))
    for node, token in enumerate(draft):
        logits[node, token if node < position else 5] = 0.0
    logits[4, 6] = 0.0
    row = sampling_row(SAMPLED, draft=draft)
    expected = Verdict((*draft[:position], 5), tuple(range(position)))
    assert verify(logits, [row], verifier, reference) == [expected]


@pytest.mark.parametrize("verifier", ["rejection", "coupled"])
def test_eight_seeds_in_a_batch_equal_eight_solo_runs(verifier: str) -> None:
    rows = [sampling_row(SAMPLED, (3, 4), 2, (1, 2, 3), seed=1000 * seed + 7) for seed in range(8)]
    together = _verify(rows, verifier, 900)
    assert together == [_verify([row], verifier, 900)[0] for row in rows]
    assert len({verdict.token_ids for verdict in together}) > 4


def test_samples_of_one_request_differ() -> None:
    rows = [sampling_row(SAMPLED, (3, 4), 2, seed=5, sample=sample) for sample in range(16)]
    assert len({verdict.token_ids for verdict in _verify(rows, "rejection", 900)}) > 8


@pytest.mark.parametrize("verifier", ["auto", "rejection", "coupled"])
def test_greedy_and_sampled_sequences_share_a_batch(verifier: str) -> None:
    rows = [
        sampling_row(SAMPLED if i % 3 else GREEDY, (1, i), 1, tuple(range(i % 4)), seed=i, sample=i % 2)
        for i in range(11)
    ]
    assert _verify(rows, verifier) == [_verify([row], verifier)[0] for row in rows]


@pytest.mark.parametrize("top_k", [0, 5])
def test_the_target_as_its_own_draft_is_always_accepted(top_k: int) -> None:
    params, k, size = SamplingParams(temperature=0.8, top_k=top_k, presence_penalty=0.5), 8, 64
    for seed in range(25):
        token_ids, probs = [1, 2], []
        for _ in range(k):
            row = sampling_row(params, token_ids, 2)
            processed = process(scripted_rows(row, size), [row])
            probs.append(law(processed)[0])
            key = NoiseKey(seed, 0, len(token_ids))
            token_ids.append(int(gumbel_argmax(probs[-1].log()[None], [key], Stream.DRAFT, reference)[0]))
        draft = Draft(tuple(token_ids[2:]), None, torch.stack(probs))
        (verdict,) = _verify([sampling_row(params, token_ids[:2], 2, draft, seed=seed)], "rejection", size)
        assert verdict.num_accepted == k


def test_a_coupled_self_draft_is_always_accepted() -> None:
    for seed in range(25):
        truth = _plain(SAMPLED, "coupled", seed)
        row = sampling_row(SAMPLED, truth[:3], 2, truth[3:9], seed=seed)
        assert _verify([row], "coupled")[0].num_accepted == 6


FAULTS = {"NaN": float("nan"), "infinite": float("inf"), "no token is possible": float("-inf")}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(("params", "verifier"), [(GREEDY, "auto"), (SAMPLED, "rejection"), (SAMPLED, "coupled")])
@pytest.mark.parametrize("whole", [True, False])
def test_a_bad_row_ends_its_own_sequence_only(fault: str, params: SamplingParams, verifier: str, whole: bool) -> None:
    whole = whole or fault == "no token is possible"
    rows = [sampling_row(params, (1, 2, i), 1, seed=i) for i in range(3)]
    logits = torch.cat([scripted_rows(row, VOCAB) for row in rows])
    clean = verify(logits, rows, verifier, reference)
    logits[1, slice(None) if whole else 4] = FAULTS[fault]
    verdicts = verify(logits, rows, verifier, reference)
    assert (verdicts[0], verdicts[2]) == (clean[0], clean[2])
    assert verdicts[1].token_ids == ()
    assert fault in (verdicts[1].error or "")
    assert "position 3" in (verdicts[1].error or "")


@pytest.mark.parametrize("value", FAULTS.values())
@pytest.mark.parametrize(("params", "verifier"), [(GREEDY, "auto"), (SAMPLED, "rejection"), (SAMPLED, "coupled")])
@pytest.mark.parametrize("drafted", [0, 5])
def test_a_bad_row_counts_only_if_it_is_reached(
    value: float, params: SamplingParams, verifier: str, drafted: int
) -> None:
    logits = torch.full((3, VOCAB), float("-inf"))
    logits[0, 5] = 0.0
    logits[1:] = value
    (verdict,) = verify(logits, [sampling_row(params, draft=(drafted, 1))], verifier, reference)
    assert (verdict.error is None) == (drafted == 0)
    assert verdict.token_ids == (5,)  # what was accepted before stands


def test_an_infinite_logit_at_the_drafted_token_is_an_error() -> None:
    logits = torch.zeros(2, VOCAB)
    logits[0, 3] = float("inf")
    for params, verifier in ((GREEDY, "auto"), (SAMPLED, "rejection"), (SAMPLED, "coupled")):
        (verdict,) = verify(logits, [sampling_row(params, draft=(3,))], verifier, reference)
        assert "infinite" in (verdict.error or "")


def test_equal_laws_that_differ_by_rounding_still_emit() -> None:
    target = torch.tensor([[0.5, 0.5, 0.0]], dtype=torch.float64)
    assert torch.equal(residual(target, target * (1 + 1e-9)), target)
    assert torch.equal(residual(target, target.flip(-1)), torch.tensor([[0.5, 0.0, 0.0]], dtype=torch.float64))


def test_the_verifier_greedy_refuses_rows_with_a_temperature_one_by_one() -> None:
    verdicts = _verify([sampling_row(SAMPLED), sampling_row(GREEDY)], "greedy")
    assert "temperature 0.9" in (verdicts[0].error or "")
    assert verdicts[1].error is None


def test_an_unknown_verifier_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="unknown verifier 'couple'; did you mean 'coupled'"):
        verify(torch.zeros(1, VOCAB), [sampling_row(GREEDY)], "couple", reference)


def test_no_rows() -> None:
    for verifier in ("auto", "coupled", "greedy"):
        assert verify(torch.empty(0, VOCAB), [], verifier, reference) == []


def test_a_missing_row_of_logits_is_caught() -> None:
    with pytest.raises(AssertionError, match="a row of logits"):
        verify(torch.zeros(1, VOCAB), [sampling_row(GREEDY, draft=(1,))], "auto", reference)


def test_drafts_with_a_law_are_verified_beside_those_without() -> None:
    probs = torch.softmax(scripted_logits((9,), VOCAB, torch.float64), dim=-1).repeat(2, 1)
    rows = [
        sampling_row(SAMPLED, (1,), 1, Draft((2, 3), None, probs), seed=4),
        sampling_row(SAMPLED, (1,), 1, (2, 3), seed=4),
        sampling_row(SAMPLED, (1,), 1, seed=4),
        sampling_row(SAMPLED, (1,), 1, Draft((), None, probs[:0]), seed=4),
    ]
    verdicts = _verify(rows, "rejection")
    assert verdicts == [_verify([row], "rejection")[0] for row in rows]
    assert verdicts[2] == verdicts[3]
