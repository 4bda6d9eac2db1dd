"""Compiling: once, for this machine, and what happens where it cannot be done."""

from __future__ import annotations

import os
import shutil
import time
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


def compilers(folder: Path, monkeypatch: pytest.MonkeyPatch, **scripts: str) -> None:
    """These are all the compilers that there are: shell scripts."""
    for name in ("g++", "clang++"):
        if script := scripts.get(name.replace("++", "")):
            (folder / name).write_text(f"#!/bin/sh\n{script}\n")
            (folder / name).chmod(0o755)
    found = {name: str(folder / name) for name in ("g++", "clang++") if (folder / name).exists()}
    monkeypatch.setattr(shutil, "which", found.get)


def test_a_compiler_that_fails_is_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compilers(tmp_path, monkeypatch, g="echo 'x.h:1: error: it is broken' >&2; exit 1", clang="exit 1")
    with pytest.raises(NoCompiler, match=r"g\+\+ could not compile the kernels: x\.h:1: error: it is broken"):
        build_library(tmp_path / "cache", level="portable")
    assert list((tmp_path / "cache").iterdir()) == []


WRITES = """while [ $# -gt 0 ]; do if [ "$1" = -o ]; then echo library > "$2"; fi; shift; done"""


def test_where_one_compiler_fails_the_next_is_asked_and_not_the_first_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compilers(tmp_path, monkeypatch, g=f"echo g >> {tmp_path}/asked; exit 1", clang=WRITES)
    library = build_library(tmp_path / "cache", level="portable")
    assert library.read_text() == "library\n"
    assert build_library(tmp_path / "cache", level="portable") == library
    assert (tmp_path / "asked").read_text() == "g\n"


def test_what_was_compiled_needs_no_compiler_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compilers(tmp_path, monkeypatch, g=WRITES)
    library = build_library(tmp_path / "cache", level="portable")
    compilers(tmp_path / "nowhere", monkeypatch)
    assert build_library(tmp_path / "cache", level="portable") == library
    with pytest.raises(NoCompiler, match="there is no C"):
        build_library(tmp_path / "cache", level="portable", extra_flags=("-DOTHER",))
    library.write_text("damaged")
    with pytest.raises(NoCompiler, match="there is no C"):
        build_library(tmp_path / "cache", level="portable")


def test_another_version_of_a_compiler_compiles_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compilers(tmp_path, monkeypatch, g=WRITES)
    library = build_library(tmp_path / "cache", level="portable")
    os.utime(tmp_path / "g++", (1, 1))
    newer = build_library(tmp_path / "cache", level="portable")
    assert newer != library
    compilers(tmp_path, monkeypatch, g="exit 1")
    assert build_library(tmp_path / "cache", level="portable") in (library, newer), "if it can"


def test_what_a_compiler_says_in_another_encoding_is_one_line_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compilers(tmp_path, monkeypatch, g=r"printf 'error: \351tat\n' >&2; exit 1")
    told: list[str] = []
    assert choose_backend("cpu", folder=tmp_path / "cache", notify=told.append) is reference
    assert told[0].endswith("could not compile the kernels: error: \ufffdtat")


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a compiler")
def test_a_library_of_something_else_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = shutil.which("g++")
    foreign = f"""while [ "$1" != -o ]; do shift; done; echo 'int x;' | {real} -shared -fPIC -x c++ - -o "$2" """
    compilers(tmp_path, monkeypatch, g=foreign)
    told: list[str] = []
    assert choose_backend("cpu", folder=tmp_path / "cache", notify=told.append) is reference
    assert "the compiled kernels cannot be used" in told[0]
    assert "lacks specdec_open" in told[0]


def test_a_build_sweeps_what_was_not_used_for_months(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compilers(tmp_path, monkeypatch, g=WRITES)
    cache = tmp_path / "cache"
    used, unused = (build_library(cache, level="portable", extra_flags=(flag,)) for flag in ("-DA", "-DB"))
    (cache / "tmpkilled").mkdir()
    (cache / "tmpkilled" / "program.cpp").write_text("")
    (cache / "notes").write_text("")
    old = time.time() - 91 * 24 * 3600
    for entry in cache.iterdir():
        os.utime(entry, (old, old))
    (cache / "tmprunning").mkdir()
    build_library(cache, level="portable", extra_flags=("-DA",))
    assert unused.exists(), "nothing was compiled, nothing is swept"
    new = build_library(cache, level="portable", extra_flags=("-DC",))
    left = {used, new, used.with_suffix(".sha256"), new.with_suffix(".sha256"), cache / "notes", cache / "tmprunning"}
    assert set(cache.iterdir()) == left


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
