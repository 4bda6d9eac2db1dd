"""Log probabilities and ranks against a plain count."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec.sampling.logprobs import token_logprobs


@given(st.integers(0, 2**32), st.integers(1, 5), st.integers(2, 30), st.integers(0, 35))
def test_equals_a_plain_count(seed: int, num_rows: int, vocab_size: int, num_logprobs: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(-6, 7, (num_rows, vocab_size), generator=generator) / 2  # many ties
    tokens = torch.randint(0, vocab_size, (num_rows,), generator=generator)
    before = logits.clone()
    result = token_logprobs(logits, tokens, num_logprobs)
    assert torch.equal(logits, before)
    assert result == token_logprobs(logits, tokens.tolist(), num_logprobs)
    laws = torch.log_softmax(logits.double(), dim=-1)
    for row, token, entry in zip(range(num_rows), tokens.tolist(), result, strict=True):
        values = logits[row].tolist()
        ids = list(entry)
        assert ids[0] == token
        top = [t for t in ids if t != token or num_logprobs == 0][:num_logprobs]
        top_values = sorted(values, reverse=True)[:num_logprobs]
        expected_size = num_logprobs and min(num_logprobs, vocab_size)
        assert len(ids) in (max(1, expected_size), expected_size + 1)
        assert [values[t] for t in top if t != token] == sorted((values[t] for t in top if t != token), reverse=True)
        assert all(values[t] in top_values for t in ids[1:])
        for t, logprob in entry.items():
            assert logprob.rank == 1 + sum(v > values[t] for v in values)
            assert abs(logprob.logprob - laws[row, t].item()) < 1e-5
            assert logprob.decoded_token is None


def test_only_what_is_asked() -> None:
    logits = torch.tensor([[0.0, 3.0, 2.0, 1.0], [0.0, 3.0, 2.0, 1.0]])
    assert [list(entry) for entry in token_logprobs(logits, [0, 1], 0)] == [[0], [1]]
    assert [list(entry) for entry in token_logprobs(logits, [0, 2], 2)] == [[0, 1, 2], [2, 1]]
    assert [logprob.rank for logprob in token_logprobs(logits, [0, 2], 2)[0].values()] == [4, 1, 2]


def test_no_rows() -> None:
    assert token_logprobs(torch.empty(0, 7), torch.empty(0, dtype=torch.int64), 3) == []


def test_a_row_does_not_know_its_neighbours() -> None:
    logits = torch.randn(6, 3000, generator=torch.Generator().manual_seed(3))
    tokens = [5, 0, 2999, 17, 17, 4]
    alone = [token_logprobs(logits[i : i + 1], tokens[i : i + 1], 20)[0] for i in range(6)]
    assert token_logprobs(logits, tokens, 20) == alone


def test_many_alternatives_take_memory_for_each_once() -> None:
    """The whole vocabulary may be asked for: every token has its rank, equal logits share one."""
    logits = torch.randn(2, 20_000, generator=torch.Generator().manual_seed(0)).round(decimals=2)
    for entry, row in zip(token_logprobs(logits, [3, 4], 20_000), logits, strict=True):
        assert len(entry) == 20_000
        for token in (0, 17, 19_999):
            assert entry[token].rank == 1 + int((row > row[token]).sum())
