"""The kernels under the compiler's sanitizers: addresses, undefined behaviour, and threads."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from specdec.kernels.cpu import build

SOURCES = Path(build.__file__).parent / "src"
DRIVERS = Path(__file__).parent

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")]


def run(folder: Path, driver: str, sanitizers: str, *flags: str) -> subprocess.CompletedProcess[str]:
    features = build.cpu_features()
    machine = build.level_flags(build.best_level(features), features)
    command = ["g++", "-std=c++20", "-O1", "-g", "-pthread", "-w", "-ffp-contract=off", "-fno-strict-aliasing"]
    binary, source = folder / "sanitized", DRIVERS / driver
    command += [f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all", *machine, *flags, f"-I{SOURCES}", str(source)]
    subprocess.run([*command, "-o", str(binary)], check=True, capture_output=True)
    return subprocess.run([str(binary)], capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
@pytest.mark.parametrize("driver", ["sanitized.cpp", "pool_stress.cpp"])
def test_they_find_nothing(driver: str, sanitizers: str, tmp_path: Path) -> None:
    done = run(tmp_path, driver, sanitizers)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_a_read_past_the_cache_is_found(tmp_path: Path) -> None:
    done = run(tmp_path, "sanitized.cpp", "address,undefined", "-DPLANTED_FAULT")
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stderr
