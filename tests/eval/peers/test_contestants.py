"""Who is started how."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from specdec.config import EngineConfig, SpeculativeConfig
from specdec.eval.peers.contestants import FOLDER, MODULES, own, peer
from tests.eval.peers.helpers import FAKE


@pytest.mark.parametrize("name", MODULES)
def test_a_peer_runs_isolated_in_its_own_environment(name: str) -> None:
    found = peer(f"{name}:again", Path("env"), "m", {"a": "b"})
    assert found.argv == (str(Path("env/bin/python")), "-I", str(FOLDER / "worker.py"), MODULES[name])
    assert (FOLDER / f"{MODULES[name]}.py").is_file()
    assert (found.label, found.model, found.options, found.env) == (f"{name}:again", "m", {"a": "b"}, {})


def test_a_python_may_stand_for_its_environment_and_a_file_for_a_peer() -> None:
    assert peer(str(FAKE), Path(sys.executable), "m", {}).argv == (
        *(sys.executable, "-I", str(FOLDER / "worker.py"), str(FAKE.resolve())),
    )


@pytest.mark.parametrize(
    ("name", "said"), [("llamacpp", "did you mean 'llama-cpp'"), ("./none.py", "there is no file ./none.py")]
)
def test_what_there_is_not_is_refused(name: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        peer(name, Path("env"), "m", {})


def test_specdec_is_imported_from_where_this_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    found = own("specdec", EngineConfig("m", speculative=(SpeculativeConfig("ngram", 3),)))
    assert found.argv == (sys.executable, "-P", str(FOLDER / "worker.py"), "run_specdec")
    assert found.env["PYTHONPATH"] == os.pathsep.join((str(FOLDER.parents[2]), "elsewhere"))
