"""The values of the API: vLLM's names and defaults, and one clear line for whatever is out of range."""

import math
from dataclasses import fields

import pytest

from specdec.types import Draft, SamplingParams, SpeculationParams, SpeculationStats, Verdict


def test_names_and_defaults_are_vllms() -> None:
    assert {f.name: f.default for f in fields(SamplingParams)} == {
        "n": 1,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "seed": None,
        "stop": None,
        "stop_token_ids": None,
        "ignore_eos": False,
        "max_tokens": 16,
        "min_tokens": 0,
        "logprobs": None,
        "prompt_logprobs": None,
        "detokenize": True,
        "skip_special_tokens": True,
        "include_stop_str_in_output": False,
        "logit_bias": None,
        "allowed_token_ids": None,
        "bad_words": None,
    }


BAD = [
    ("n", 0),
    ("n", True),
    ("presence_penalty", 2.1),
    ("frequency_penalty", -3),
    ("repetition_penalty", 0),
    ("repetition_penalty", 1e-300),
    ("repetition_penalty", "1"),
    ("temperature", -0.1),
    ("temperature", math.nan),
    ("temperature", math.inf),
    ("temperature", 10**400),
    ("top_p", 0),
    ("top_p", 1.01),
    ("top_k", -2),
    ("top_k", 1.5),
    ("min_p", -0.1),
    ("min_p", 1.1),
    ("seed", 1.5),
    ("seed", 2**64),
    ("stop", ""),
    ("stop", ["a", ""]),
    ("stop", [1]),
    ("stop", ["a\ud800"]),
    ("stop_token_ids", [-1]),
    ("stop_token_ids", ["a"]),
    ("stop_token_ids", 5),
    ("ignore_eos", 1),
    ("max_tokens", 0),
    ("max_tokens", 2.0),
    ("min_tokens", -1),
    ("logprobs", -1),
    ("prompt_logprobs", True),
    ("detokenize", "yes"),
    ("skip_special_tokens", None),
    ("include_stop_str_in_output", 0),
    ("logit_bias", [1]),
    ("logit_bias", {"a": 1}),
    ("logit_bias", {1: 101}),
    ("logit_bias", {1.7: 1}),
    ("logit_bias", {1: 10**400}),
    ("logit_bias", {-1: 1}),
    ("allowed_token_ids", []),
    ("allowed_token_ids", "ab"),
    ("bad_words", [""]),
    ("bad_words", 3),
    ("bad_words", "\udfff"),
]


@pytest.mark.parametrize(("name", "value"), BAD, ids=[f"{n}={v!r}" for n, v in BAD])
def test_out_of_range_parameters_name_themselves(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name) as error:
        SamplingParams(**{name: value})
    assert "\n" not in str(error.value)


def test_every_parameter_is_checked() -> None:
    assert {f.name for f in fields(SamplingParams)} == {name for name, _ in BAD}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_tokens": 20, "max_tokens": 10}, "min_tokens must be at most max_tokens"),
        ({"n": 2, "temperature": 0}, "n must be 1 when temperature is 0"),
        ({"stop": "a", "detokenize": False}, "stop strings need detokenize=True"),
    ],
)
def test_contradictions_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SamplingParams(**options)


def test_one_stop_string_is_a_list_of_one_and_json_keys_become_ids() -> None:
    assert SamplingParams(stop="ab").stop_strings == ("ab",)
    assert SamplingParams(logit_bias={"12": 1}).logit_bias == {12: 1.0}
    assert SamplingParams(temperature=1e-6).is_greedy
    assert not SamplingParams(temperature=1e-4).is_greedy


def test_speculation_parameters() -> None:
    with pytest.raises(ValueError, match="proposer must be a name"):
        SpeculationParams(proposer=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="num_speculative_tokens must be an integer, between 0 and 32; got 40"):
        SpeculationParams(num_speculative_tokens=40)


def test_a_trimmed_draft_is_a_draft() -> None:
    tree = Draft((5, 6, 7), parents=(-1, 0, 0), draft_probs=[[1], [2], [3]], proposer="x")
    assert tree.trimmed(2) == Draft((5, 6), (-1, 0), [[1], [2]], "x")
    assert tree.trimmed(9) is tree
    assert len(tree.trimmed(0)) == 0
    assert not tree.trimmed(0)


def test_statistics_add_up() -> None:
    stats = SpeculationStats()
    assert (stats.mean_acceptance_length, stats.acceptance_rate) == (1.0, 0.0)
    for drafted, accepted in ((0, 0), (4, 2), (4, 0), (2, 2)):
        stats.record(drafted, accepted)
    assert (stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens) == (3, 10, 4)
    assert stats.accepted_per_position == [2, 2]
    assert stats.mean_acceptance_length == 1 + 4 / 3
    total = SpeculationStats()
    total.add(stats)
    total.add(stats)
    assert total.accepted_per_position == [4, 4]
    assert total.acceptance_rate == 0.4


def test_a_verdict_counts_its_path() -> None:
    assert Verdict((1, 2, 3), (0, 1)).num_accepted == 2


def test_depths_children_and_limits_of_trees_and_chains() -> None:
    tree, chain = Draft((1, 2, 3, 4, 5), parents=(-1, 0, -1, 1, 2)), Draft((1, 2, 3))
    assert (tree.depths, tree.depth) == ((1, 2, 1, 3, 2), 3)
    assert (chain.depths, chain.depth, Draft().depth) == ((1, 2, 3), 3, 0)
    assert [tree.children(node) for node in range(-1, 5)] == [[0, 2], [1], [3], [4], [], []]
    assert [chain.children(node) for node in range(-1, 3)] == [[0], [1], [2], []]
    assert Draft().children(-1) == []
    assert tree.limited(2) == tree.trimmed(3)
    assert tree.limited(3) is tree
    assert [len(chain.limited(depth)) for depth in range(5)] == [0, 1, 2, 3, 3]
