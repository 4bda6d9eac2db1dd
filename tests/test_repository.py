"""What a reader may rely on in the repository: tests beside the code, and files that mean the same on every machine."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "specdec"
TESTS = ROOT / "tests"

MACHINE_PATH = re.compile(r"(?<![\w.~$}])/(?:work|root|home|Users|mnt)(?![\w-])")
REGISTRY_HOST = re.compile(r"(?:\bpypi|\bpythonhosted|\bnpmjs|\bjfrog)\.(?:org|com|io)\b", re.IGNORECASE)


def units() -> list[Path]:
    """The folders and modules right under the package that have code in them."""
    return sorted(
        path
        for path in PACKAGE.iterdir()
        if (path.suffix == ".py" and not path.name.startswith("__")) or (path / "__init__.py").exists()
    )


def text_files() -> Iterator[tuple[Path, str]]:
    """Every file that is, or would be, committed and is text."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if not path.is_file():
            continue
        try:
            yield path, path.read_text("utf-8")
        except UnicodeDecodeError:
            continue


def lines_with(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path, text in text_files()
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


in_a_checkout = pytest.mark.skipif(
    shutil.which("git") is None or not (ROOT / ".git").exists(), reason="needs git and a checkout"
)


@pytest.mark.parametrize("unit", units(), ids=lambda unit: unit.name)
def test_every_unit_of_the_package_has_tests(unit: Path) -> None:
    tests = [*TESTS.glob(f"test_{unit.stem}*.py"), *(TESTS / unit.stem).glob("**/test_*.py")]
    assert tests, f"no tests/test_{unit.stem}*.py and no tests/{unit.stem}/test_*.py"


def test_every_folder_of_tests_is_a_package_that_mirrors_one() -> None:
    for folder in {path.parent for path in TESTS.rglob("test_*.py")}:
        assert (folder / "__init__.py").exists(), folder
        assert (PACKAGE / folder.relative_to(TESTS)).is_dir(), folder


def test_every_folder_with_code_is_a_package() -> None:
    for folder in {path.parent for path in PACKAGE.rglob("*.py")}:
        assert (folder / "__init__.py").exists(), folder


def test_files_that_are_not_code_are_installed() -> None:
    globs = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]["package-data"]["specdec"]
    installed = {path for pattern in globs for path in PACKAGE.glob(pattern)}
    others = {path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert others <= installed


def test_the_package_says_that_it_is_typed() -> None:
    assert (PACKAGE / "py.typed").is_file()


def test_the_readmes_proposer_is_the_example_and_short() -> None:
    """The file is what the tests of proposers run."""
    readme = (ROOT / "README.md").read_text("utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", readme, flags=re.MULTILINE | re.DOTALL)
    example = (ROOT / "examples" / "phrases_proposer.py").read_text("utf-8")
    assert example in blocks
    assert len(example.splitlines()) <= 30


@in_a_checkout
def test_no_file_names_a_path_of_one_machine() -> None:
    assert lines_with(MACHINE_PATH) == []


@in_a_checkout
def test_no_file_names_a_package_registry() -> None:
    assert lines_with(REGISTRY_HOST) == []


@pytest.mark.parametrize("place", ["work", "root", "home", "Users"])
def test_a_machines_path_is_found(place: str) -> None:
    assert MACHINE_PATH.search(f"open('/{place}/me/x')")
    assert MACHINE_PATH.search(f"cd /{place}")
    assert not MACHINE_PATH.search(f"~/{place} $HOME/{place} ../{place}/x a/{place} /{place}-shop")


def test_a_registrys_host_is_found() -> None:
    assert REGISTRY_HOST.search("--index-url https://py" + "pi.org/simple")
    assert not REGISTRY_HOST.search("a package on PyPI.")
