"""The table of proposers and what it says to a wrong name or value."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError
from importlib import import_module
from typing import Any

import pytest

from specdec.config import SpeculativeConfig
from specdec.proposers.base import NoProposer, NoSettings, ProposalInput
from specdec.proposers.ngram import NgramProposer, NgramSettings
from specdec.proposers.registry import PROPOSERS, build_proposer, check_settings, num_nodes
from specdec.types import EMPTY_DRAFT
from tests.proposers.helpers import SETTINGS, make_context, make_sequence


@pytest.mark.parametrize("method", PROPOSERS)
def test_every_entry_of_the_table_imports(method: str) -> None:
    module_name, settings_name, class_name = PROPOSERS[method]
    module = import_module(module_name)
    settings_class: Any = getattr(module, settings_name)
    with pytest.raises(FrozenInstanceError):
        settings_class(**SETTINGS.get(method, {})).anything = 1
    assert callable(getattr(module, class_name).propose)
    assert callable(getattr(module, class_name).forget)


def test_build_takes_the_methods_own_settings() -> None:
    config = SpeculativeConfig("ngram", 4, {"prompt_lookup_max": 7})
    assert check_settings(config) == NgramSettings(prompt_lookup_max=7)
    proposer = build_proposer(config, make_context())
    assert isinstance(proposer, NgramProposer)
    assert proposer.settings.prompt_lookup_max == 7


def test_the_most_nodes_of_a_draft_are_known_before_the_proposer_is_built() -> None:
    assert num_nodes(SpeculativeConfig("none", 4)) == 0
    assert num_nodes(SpeculativeConfig("ngram", 7)) == 7


def test_no_proposer_answers_empty_drafts() -> None:
    proposer = build_proposer(SpeculativeConfig("none"), make_context())
    assert isinstance(proposer, NoProposer)
    assert check_settings(SpeculativeConfig("none")) == NoSettings()
    sequences = [make_sequence([1, 2, 1, 2], "a"), make_sequence([3], "b")]
    assert proposer.propose(sequences, ProposalInput([4, 4])) == [EMPTY_DRAFT, EMPTY_DRAFT]
    proposer.forget(sequences[0])


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (SpeculativeConfig("ngarm"), ["unknown proposer 'ngarm'", "did you mean 'ngram'?", "none"]),
        (SpeculativeConfig("ngram", 4, {"prompt_lookup_mx": 3}), ["'prompt_lookup_mx'", "'prompt_lookup_max'?"]),
        (SpeculativeConfig("ngram", 4, {"num_spec_tokens": 3}), ["'num_spec_tokens'", "'num_speculative_tokens'?"]),
        (SpeculativeConfig("none", 4, {"prompt_lookup_max": 3}), ["'prompt_lookup_max'", "'none'", "valid: "]),
        (SpeculativeConfig("draft"), ["needs one of model", "num_draft_layers"]),
        (SpeculativeConfig("draft", 4, {"model": "m", "num_draft_layers": 1}), ["needs one of model"]),
        (SpeculativeConfig("draft", 4, {"model": ""}), ["the draft's model must be", "got ''"]),
        (SpeculativeConfig("draft", 4, {"num_draft_layers": True}), ["num_draft_layers must be", "got True"]),
        (
            SpeculativeConfig("draft", 4, {"model": "m", "draft_sample_method": "greed"}),
            ["unknown draft_sample_method 'greed'", "did you mean 'greedy'?"],
        ),
        (SpeculativeConfig("ngram", 4, {"prompt_lookup_max": 0}), ["prompt_lookup_max must be", "got 0"]),
    ],
)
def test_wrong_names_and_values_get_one_clear_line(config: SpeculativeConfig, words: list[str]) -> None:
    for refuse in (check_settings, lambda config: build_proposer(config, make_context())):
        with pytest.raises(ValueError, match=re.escape(words[0])) as refused:
            refuse(config)
        message = str(refused.value)
        assert "\n" not in message
        assert all(word in message for word in words), message
