"""From C++ sources to a shared library for this very machine, compiled once and kept.

The library's name in the cache is a hash of the sources, flags and system, and one of the compiler, so that neither an
upgrade nor another machine with the same home directory loads a library that is not its own. Where there is no compiler
any more, or none that works, the first is enough: what was compiled for this system still runs on it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path

LEVELS = ("avx512", "avx2", "portable")
"""Instruction sets that the sources have a form for, the best first."""

_FLAGS = (
    *("-std=c++20", "-O3", "-fPIC", "-shared", "-pthread"),
    *("-ffp-contract=off", "-fno-math-errno", "-fno-strict-aliasing", "-Wno-psabi"),
)
"""Contraction is off because what is fused must not depend on the tile that a line was inlined into; strict aliasing
because keys are moved as words and multiplied as floats or pairs of bfloat16."""

_AVX512 = {"avx512f": "f", "avx512bw": "bw", "avx512vl": "vl", "avx512dq": "dq"}
_AVX512_EXTRAS = {"avx512_vnni": "-mavx512vnni", "avx512_bf16": "-mavx512bf16"}

ABANDONED_SECONDS = {"tmp*": 24 * 3600, "cpu-*": 90 * 24 * 3600}
"""Since its last use, after which an entry of the folder is removed: folders of compilations that were killed, and
libraries. Who may not write in the folder leaves no sign of use, hence the months."""


class NoCompiler(Exception):
    """Why there is no library, in one line."""


def cpu_features() -> frozenset[str]:
    """The instruction sets of this CPU by Linux's names; empty where that is not known."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    line = next((line for line in text.splitlines() if line.startswith("flags")), "")
    return frozenset(line.partition(":")[2].split())


def best_level(features: frozenset[str]) -> str:
    """The best of `LEVELS` that a CPU with these features runs."""
    if platform.machine() in ("x86_64", "AMD64"):
        if features >= {*_AVX512, "fma", "f16c"}:
            return "avx512"
        if features >= {"avx2", "fma", "f16c"}:
            return "avx2"
    return "portable"


def level_flags(level: str, features: frozenset[str]) -> list[str]:
    """What the compiler is told about the machine."""
    if level == "portable":
        return []
    if level == "avx2":
        return ["-mavx2", "-mfma", "-mf16c"]
    assert level == "avx512", level
    extras = [flag for feature, flag in _AVX512_EXTRAS.items() if feature in features]
    return ["-mfma", "-mf16c", "-mprefer-vector-width=512", *(f"-mavx512{part}" for part in _AVX512.values()), *extras]


def build_library(folder: Path, *, level: str | None = None, extra_flags: Sequence[str] = ()) -> Path:
    """The library of `level` (None: this machine's best) below `folder`, compiled if it is not there yet.

    NoCompiler, with the reason, if there is none to compile it with or all of them fail.
    """
    features = cpu_features()
    flags = [*_FLAGS, *level_flags(level or best_level(features), features), *extra_flags]
    sources = {
        entry.name: entry.read_bytes()
        for entry in sorted(resources.files(__package__).joinpath("src").iterdir(), key=lambda entry: entry.name)
    }
    stem = f"cpu-{_hash(sources, flags, platform.machine(), platform.libc_ver())}"
    libraries = {folder / f"{stem}-{_hash(compiler, _version(compiler))}.so": compiler for compiler in _compilers()}
    if library := _kept(libraries):
        return library
    problems = []
    for library, compiler in libraries.items():
        try:
            _compile(compiler, flags, sources, library)
        except NoCompiler as error:
            problems.append(error)
        else:
            _sweep(folder)
            return library
    if library := _kept(sorted(folder.glob(f"{stem}-*.so"))):
        return library
    raise problems[0] if problems else NoCompiler("there is no C++ compiler (g++ or clang++)")


def _kept(libraries: Iterable[Path]) -> Path | None:
    """The first that is there, now marked as used if we may."""
    for library in libraries:
        if _is_whole(library):
            for file in (library, _checksum(library)):
                with contextlib.suppress(OSError):
                    os.utime(file)
            return library
    return None


def _sweep(folder: Path) -> None:
    """Remove what nobody has used for long."""
    for pattern, seconds in ABANDONED_SECONDS.items():
        for entry in folder.glob(pattern):
            try:
                if time.time() - entry.stat().st_mtime > seconds:
                    shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
            except OSError:
                continue  # somebody else's, or gone already


def _hash(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:20]


def _checksum(library: Path) -> Path:
    return library.with_suffix(".sha256")


def _digest(library: Path) -> str:
    return hashlib.sha256(library.read_bytes()).hexdigest()


def _is_whole(library: Path) -> bool:
    """Whether it is there as it was compiled: one that is cut off would take the process down."""
    try:
        return _checksum(library).read_text() == _digest(library)
    except (OSError, ValueError):
        return False


def _compilers() -> list[str]:
    """The best first."""
    return [found for name in ("g++", "clang++", "c++") if (found := shutil.which(name))]


def _version(compiler: str) -> str:
    return str(os.stat(os.path.realpath(compiler)).st_mtime_ns) + os.path.realpath(compiler)


def _compile(compiler: str, flags: Sequence[str], sources: dict[str, bytes], library: Path) -> None:
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            for name, content in sources.items():
                Path(folder, name).write_bytes(content)
            output = Path(folder, library.name)
            command = [compiler, *flags, str(Path(folder, "program.cpp")), "-o", str(output)]
            result = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, check=False)
            if result.returncode:
                said = result.stderr.decode(errors="replace")
                lines = [line for line in said.splitlines() if "error" in line] or ["no message"]
                raise NoCompiler(f"{compiler} could not compile the kernels: {lines[0].strip()}")
            if library.is_dir():
                shutil.rmtree(library)
            # Others may be compiling the same: whoever is last replaces a library by its equal.
            checksum = Path(folder, "checksum")
            checksum.write_text(_digest(output))
            os.replace(output, library)
            os.replace(checksum, _checksum(library))
    except OSError as error:
        raise NoCompiler(f"the kernels cannot be compiled below {library.parent}: {error.strerror or error}") from None
