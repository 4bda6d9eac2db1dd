"""The public surface: what `specdec` exports, and what importing it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import specdec
from tests.test_layering import modules

PUBLIC_NAMES = {
    "LLM",
    "SamplingParams",
    "Engine",
    "EngineConfig",
    "SpeculativeConfig",
    "SpeculationParams",
    "RequestOutput",
    "CompletionOutput",
    "__version__",
}

HEAVY = {"torch", "numpy", "transformers", "tokenizers", "click", "prometheus_client"}


def imported_by(statement: str) -> set[str]:
    """Top-level modules that a fresh interpreter holds after `statement`."""
    code = f"{statement}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return set(ran.stdout.split())


def test_the_exported_names_are_these() -> None:
    assert len(specdec.__all__) == len(PUBLIC_NAMES)
    assert set(specdec.__all__) == PUBLIC_NAMES


@pytest.mark.parametrize("name", sorted(PUBLIC_NAMES - {"__version__"}))
def test_a_public_name_is_the_class_of_that_name(name: str) -> None:
    value = getattr(specdec, name)
    assert isinstance(value, type)
    assert value.__name__ == name
    assert value.__module__.startswith("specdec.")
    assert name in dir(specdec)


def test_the_version_is_text() -> None:
    assert specdec.__version__.count(".") >= 2


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="LMM"):
        _ = specdec.LMM


def test_importing_the_package_is_light() -> None:
    assert not HEAVY & imported_by("import specdec")


def test_parameters_and_configuration_need_no_torch() -> None:
    names = "SamplingParams, EngineConfig, SpeculativeConfig, SpeculationParams, RequestOutput, CompletionOutput"
    assert not HEAVY & imported_by(f"from specdec import {names}")


def test_prometheus_is_imported_when_metrics_are_read_and_no_sooner() -> None:
    assert not HEAVY & imported_by("import specdec.metrics")
    assert "prometheus_client" not in imported_by("import specdec.engine, specdec.llm, specdec.cli.app")


def test_the_core_needs_no_torch() -> None:
    core = [name for name, _ in modules() if name.split(".")[1:2] in (["core"], ["types"], ["config"])]
    assert len(core) > 3
    assert not {"torch", "transformers"} & imported_by(f"import {', '.join(core)}")


def test_a_heavy_import_is_seen() -> None:
    assert "click" in imported_by("import click")
