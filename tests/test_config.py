"""The configuration: refused in one line before any model work, with the nearest valid name."""

import os
from pathlib import Path

import pytest
import yaml

from specdec.config import (
    EngineConfig,
    SpeculativeConfig,
    cache_dir,
    calm_threads,
    check_verifier,
    unknown_name,
)
from specdec.proposers.registry import check_settings

CONFIGS = sorted((Path(__file__).parent.parent / "configs").glob("*.yaml"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"modle": "x"}, "unknown config key 'modle'; did you mean 'model'?"),
        ({"model": ""}, "model must be"),
        ({"dtype": "fp32"}, "unknown dtype 'fp32'"),
        ({"verifier": "couple"}, "unknown verifier 'couple'; did you mean 'coupled'?"),
        ({"max_model_len": 0}, "max_model_len must be a positive integer"),
        ({"max_num_seqs": 2.0}, "max_num_seqs must be a positive integer"),
        ({"block_size": True}, "block_size must be a positive integer"),
        ({"num_threads": 2**32}, "num_threads must be at most 512; got 4294967296"),
        ({"kv_cache_tokens": 16}, "kv_cache_tokens (16) must hold at least two blocks of 16"),
        ({"max_num_batched_tokens": 8}, "max_num_batched_tokens (8) must be at least max_num_seqs (64)"),
        ({"gpu_memory_utilization": 0}, "gpu_memory_utilization must be above 0"),
        ({"gpu_memory_utilization": "half"}, "gpu_memory_utilization must be"),
        ({"enable_prefix_caching": 1}, "enable_prefix_caching must be true or false"),
        ({"seed": None}, "seed must be an integer"),
        ({"gpu_memory_utilization": True}, "gpu_memory_utilization must be"),
        ({"speculative": (), "speculative_config": None}, "give speculative_config or speculative, not both"),
        (
            {"verifier": "coupled", "speculative_config": {"method": "ngram", "verifier": "rejection"}},
            "the verifier is 'coupled' in one place and 'rejection' in another",
        ),
        ({"speculative_config": [{"method": "ngram"}] * 2}, "names the proposer 'ngram' twice; give it one entry"),
        ({"speculative_config": "ngram"}, "speculative_config must be a mapping or a list of them"),
        ({"speculative_config": {"num_speculative_tokens": 3}}, "speculative_config needs a method"),
        ({"speculative_config": {"method": 3}}, "method must be the name of a proposer"),
        ({"speculative_config": {"method": "ngram", "num_speculative_tokens": 33}}, "between 0 and 32; got 33"),
        (
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 9}, "max_num_seqs": 1}
            | {"max_num_batched_tokens": 9},
            "do not fit max_num_batched_tokens (9)",
        ),
        (
            {"speculative_config": {"method": "ngram", "rejection_sample_method": "blok"}},
            "unknown rejection_sample_method 'blok'",
        ),
    ],
)
def test_bad_options_get_one_line(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=r".") as error:
        EngineConfig.from_mapping(options)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("speculative", [5, [SpeculativeConfig()], ({"method": "ngram"},)])
def test_speculative_is_a_tuple_of_configurations(speculative: object) -> None:
    with pytest.raises(ValueError, match="speculative must be a tuple of SpeculativeConfig"):
        EngineConfig(speculative=speculative)


def test_wrong_kinds_are_refused() -> None:
    with pytest.raises(ValueError, match="an engine configuration must be a mapping"):
        EngineConfig.from_mapping(5)
    with pytest.raises(ValueError, match="settings must be a mapping"):
        SpeculativeConfig("ngram", 4, 5)


def test_vllms_dictionary_is_read() -> None:
    config = EngineConfig.from_mapping(
        {
            "speculative_config": {
                "method": "ngram",
                "num_speculative_tokens": 3,
                "prompt_lookup_max": 5,
                "rejection_sample_method": "standard",
            }
        }
    )
    assert config.speculative == (SpeculativeConfig("ngram", 3, {"prompt_lookup_max": 5}),)
    assert config.verifier == "rejection"


@pytest.mark.parametrize(("method", "verifier"), [("standard", "rejection"), ("block", "block")])
def test_vllms_names_of_rejection_methods(method: str, verifier: str) -> None:
    entry = {"method": "ngram", "rejection_sample_method": method}
    assert EngineConfig.from_mapping({"speculative_config": entry}).verifier == verifier
    with pytest.raises(ValueError, match="in one place"):
        EngineConfig.from_mapping({"speculative_config": entry, "verifier": "coupled"})


def test_a_list_loads_several_proposers() -> None:
    config = EngineConfig.from_mapping({"speculative_config": [{"method": "ngram"}, {"method": "none"}]})
    assert [proposer.method for proposer in config.speculative] == ["ngram", "none"]


@pytest.mark.parametrize("path", CONFIGS, ids=[path.name for path in CONFIGS])
def test_the_shipped_configurations_load(path: Path) -> None:
    config = EngineConfig.from_mapping(yaml.safe_load(path.read_text()))
    for proposer in config.speculative:
        check_settings(proposer)


def test_there_is_a_shipped_configuration() -> None:
    assert CONFIGS


def test_the_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECDEC_CACHE", "/a/b")
    assert cache_dir() == Path("/a/b")
    monkeypatch.delenv("SPECDEC_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/c")
    assert cache_dir() == Path("/c/specdec")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_dir() == Path.home() / ".cache" / "specdec"


def test_a_cache_folder_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPECDEC_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "~no-such-user/cache")
    with pytest.raises(ValueError, match="no home directory for ~no-such-user/cache/specdec; set SPECDEC_CACHE"):
        cache_dir()


def test_the_greedy_verifier_takes_temperature_0_alone() -> None:
    for verifier in ("auto", "rejection", "coupled"):
        check_verifier(verifier, 1.0)
    check_verifier("greedy", 0.0)
    check_verifier("greedy", 1e-6)
    with pytest.raises(ValueError, match=r"the verifier 'greedy' needs temperature 0, got "):
        check_verifier("greedy", 0.5)


def test_no_near_name_no_guess() -> None:
    assert unknown_name("thing", "zzz", ["abc"]) == "unknown thing 'zzz' (valid: abc)"


def test_threads_are_calmed_unless_the_user_has_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    calm_threads()
    assert "GOMP_SPINCOUNT" not in os.environ
    monkeypatch.delenv("OMP_WAIT_POLICY")
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    calm_threads()
    assert os.environ["GOMP_SPINCOUNT"] == "7"
    monkeypatch.delenv("GOMP_SPINCOUNT")
    calm_threads()
    assert os.environ.pop("GOMP_SPINCOUNT") == "2000"
