"""A module imports only from lower levels (DESIGN.md, section 3); type-only and in-function imports count."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "specdec"

LEVELS = {
    unit: level
    for level, units in enumerate(
        (
            "types config",
            "core kernels tokenizer metrics charts",
            "step",
            "models sampling",
            "proposers",
            "runner",
            "engine",
            "llm server train eval cli",
            "specdec __main__",
        )
    )
    for unit in units.split()
}
"""Unit (a folder or module right under the package; `specdec` is its own `__init__`) -> level."""

SIDEWAYS = {("config", "types"), ("cli", "eval"), ("cli", "train")}
"""(importer, imported) on the same level."""

STANDALONE = {"kernels", "charts"}
"""Units that know nothing of the rest of the package."""

WITHOUT_TORCH = {"types", "config", "core", "charts"}

VERSION = "__version__"
MODULE_NAME = re.compile(r"specdec(\.[a-z_]\w*)+")


def imports(source: str, module: str, is_package: bool = False) -> Iterator[tuple[int, str]]:
    """(line, absolute dotted name) of whatever `source` imports anywhere, names of `from` imports appended.

    A string that is nothing but a module's name counts too: tables of things to import lazily are made of them.
    """
    package = module.split(".") if is_package else module.split(".")[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{origin}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and MODULE_NAME.fullmatch(node.value):
            yield node.lineno, node.value


def unit_of(name: str) -> str:
    """`specdec.core.sequence` -> core; the package itself -> specdec."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def violations(source: str, module: str, is_package: bool = False) -> list[str]:
    """One line for each import of `source` that its place in the table does not allow."""
    unit = unit_of(module)
    if unit not in LEVELS:
        return [f"{module}: {unit} is not in the table of levels"]
    found = []
    for line, name in imports(source, module, is_package):
        if name.split(".")[0] == "specdec":
            reason = _refuse(unit, unit_of(name))
        elif name.split(".")[0] == "torch" and unit in WITHOUT_TORCH:
            reason = f"{unit} is free of torch"
        else:
            continue
        if reason:
            found.append(f"{module}:{line} imports {name}: {reason}")
    return found


def _refuse(unit: str, imported: str) -> str | None:
    """Why `unit` may not import from `imported`, or None."""
    if imported in (unit, VERSION) or (unit, imported) in SIDEWAYS:
        return None
    if unit in STANDALONE:
        return f"{unit} knows nothing of the rest"
    if imported not in LEVELS:
        return f"{imported} is not in the table of levels; a public name is imported from where it is defined"
    if LEVELS[imported] >= LEVELS[unit]:
        return f"{imported} (level {LEVELS[imported]}) is not below {unit} (level {LEVELS[unit]})"
    return None


def modules() -> list[tuple[str, Path]]:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found.append((".".join(parts[:-1] if parts[-1] == "__init__" else parts), path))
    return found


@pytest.mark.parametrize(("module", "path"), modules(), ids=[module for module, _ in modules()])
def test_imports_only_from_below(module: str, path: Path) -> None:
    assert violations(path.read_text("utf-8"), module, path.name == "__init__.py") == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("specdec.core.made_up", "from specdec.step.batch import Batch"),
        ("specdec.core.made_up", "from specdec import engine"),
        ("specdec.core.made_up", "import specdec.runner as r"),
        ("specdec.core.made_up", "import specdec"),
        ("specdec.core.made_up", "from specdec import LLM"),
        ("specdec.core.made_up", "from ..step import batch"),
        ("specdec.core.made_up", "from .. import runner"),
        ("specdec.core.made_up", "def f():\n    from specdec.engine import Engine"),
        ("specdec.core.made_up", "if TYPE_CHECKING:\n    import specdec.engine"),
        ("specdec.core.made_up", "import_module('specdec.engine')"),
        ("specdec.core.made_up", "from specdec.tokenizer import Tokenizer"),
        ("specdec.core.made_up", "def f():\n    import torch.nn"),
        ("specdec.core.made_up", "from torch import Tensor"),
        ("specdec.models.made_up", "from specdec.sampling import rng"),
        ("specdec.eval.made_up", "from specdec.cli.errors import say"),
        ("specdec.kernels.made_up", "from specdec.types import Draft"),
        ("specdec.types", "from specdec.config import EngineConfig"),
        ("specdec.made_up", "import os"),
        ("specdec.runner", "from specdec.made_up import anything"),
    ],
)
def test_a_violation_is_found(module: str, source: str) -> None:
    assert len(violations(source, module)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("specdec.core.made_up", "from specdec.types import Draft\nfrom specdec.core.sequence import Sequence"),
        ("specdec.core.made_up", "from . import sequence\nfrom .sequence import Status\nfrom ..types import Draft"),
        ("specdec.core.made_up", "import os, hashlib\n'see specdec.engine for more'"),
        ("specdec.config", "from specdec.types import MAX_SPECULATIVE_TOKENS"),
        ("specdec.cli.made_up", "from specdec import __version__\nfrom specdec.engine import Engine"),
        ("specdec.cli.made_up", "from specdec.eval.results import Result"),
        ("specdec.models.made_up", "import torch\nfrom specdec.step import batch"),
    ],
)
def test_what_is_allowed_passes(module: str, source: str) -> None:
    assert violations(source, module) == []


def test_a_package_resolves_relative_imports_from_itself() -> None:
    assert violations("from .sequence import Status", "specdec.core", is_package=True) == []
    assert len(violations("from ..engine import Engine", "specdec.core", is_package=True)) == 1
