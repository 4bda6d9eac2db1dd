"""Compiling: once, for this machine, and what happens where it cannot be done."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from specdec.kernels import choose_backend, reference
from specdec.kernels.cpu import build
from specdec.kernels.cpu.backend import CpuKernels
from specdec.kernels.cpu.build import NoCompiler, best_level, build_library, level_flags


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a compiler")
def test_a_library_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    compile_one = build._compile
    monkeypatch.setattr(build, "_compile", lambda *args: compiled.append(args) or compile_one(*args))
    first = build_library(tmp_path, level="portable", extra_flags=("-O0",))
    assert build_library(tmp_path, level="portable", extra_flags=("-O0",)) == first
    assert len(compiled) == 1
    assert {path.suffix for path in tmp_path.iterdir()} == {".so", ".sha256"}, "nothing is left over"
    whole = first.read_bytes()
    for broken in (whole[:5000], b"", b"no library", None):
        first.unlink()
        if broken is None:
            first.mkdir()
        else:
            first.write_bytes(broken)
        assert build_library(tmp_path, level="portable", extra_flags=("-O0",)) == first
        assert first.stat().st_size == len(whole), "made anew, not loaded as it is"
    monkeypatch.setattr(build, "_compile", lambda compiler, flags, sources, library: library.write_bytes(b""))
    assert build_library(tmp_path, level="portable") != first, "other flags are another library"


def test_without_a_compiler_the_reference_runs_and_a_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    told: list[str] = []
    assert choose_backend("cpu", folder=tmp_path, notify=told.append) is reference
    assert told == [
        "decoding with plain torch, many times as slow as compiled kernels: there is no C++ compiler (g++ or clang++)"
    ]
    with pytest.raises(ValueError, match="no native kernels: there is no C"):
        choose_backend("cpu", folder=tmp_path, name="native")


def test_a_compiler_that_fails_is_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "g++"
    compiler.write_text("#!/bin/sh\necho 'x.h:1: error: it is broken' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(NoCompiler, match=r"could not compile the kernels: x\.h:1: error: it is broken"):
        build_library(tmp_path / "cache", level="portable")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NoCompiler, match="cannot be compiled below"):
        build_library(tmp_path / "file" / "below")


def test_a_library_that_cannot_be_loaded_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"not a library")
    monkeypatch.setattr(build, "build_library", lambda folder: broken)
    told: list[str] = []
    assert choose_backend("cpu", folder=tmp_path, notify=told.append) is reference
    assert "cannot be loaded" in told[0]


def test_the_reference_and_wide_numbers_need_no_compiler(tmp_path: Path) -> None:
    assert choose_backend("cpu", folder=tmp_path, name="reference") is reference
    assert choose_backend("cpu", folder=tmp_path, dtype="float64") is reference
    assert choose_backend("cpu") is reference
    with pytest.raises(ValueError, match="float64"):
        choose_backend("cpu", folder=tmp_path, dtype="float64", name="native")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("asked", [{"name": "reference"}, {"dtype": "float64"}, {"folder": None}, {}])
def test_the_reference_takes_the_threads_that_are_asked_for(
    asked: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    before = torch.get_num_threads()
    try:
        for threads in (before + 2, before + 1, None):
            kernels = choose_backend("cpu", **{"folder": tmp_path, **asked}, num_threads=threads)
            assert kernels.num_threads() == torch.get_num_threads() == (threads or before + 1)
    finally:
        torch.set_num_threads(before)


def test_levels_go_by_the_features(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build.platform, "machine", lambda: "x86_64")
    everything = frozenset({"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni", "avx2", "fma", "f16c"})
    assert best_level(everything) == "avx512"
    assert best_level(everything - {"avx512bw"}) == "avx2"
    assert best_level(everything - {"avx512f", "f16c"}) == "portable"
    flags = level_flags("avx512", everything)
    assert "-mavx512vnni" in flags
    assert "-mavx512bf16" not in flags
    assert level_flags("portable", everything) == []
    monkeypatch.setattr(build.platform, "machine", lambda: "aarch64")
    assert best_level(everything) == "portable"


def test_two_backends_have_threads_of_their_own(tmp_path: Path, native) -> None:  # type: ignore[no-untyped-def]
    first, second = native.backend(num_threads=1), native.backend(num_threads=2)
    assert isinstance(first, CpuKernels)
    assert (first.library.num_threads, second.library.num_threads) == (1, 2)
