"""Proposers from outside: found by path and by entry point; whatever is wrong with one is said in one line."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from specdec.config import SpeculativeConfig
from specdec.proposers.base import ProposalInput, Proposer
from specdec.proposers.outside import entry_point_names
from specdec.proposers.registry import build_proposer, check_settings, num_nodes
from tests.proposers.helpers import make_context, make_sequence

GOOD = """
from dataclasses import dataclass
from specdec.proposers.base import NOTHING
from specdec.types import Draft

class Good:
    kv_caches = ()
    wants = NOTHING
    def __init__(self, settings, context):
        self.settings, self.context = settings, context
    def propose(self, sequences, inp):
        return [Draft((1,) * length) for length in inp.lengths]
    def forget(self, sequence):
        pass

class Tuned(Good):
    @dataclass(frozen=True)
    class Settings:
        depth: int
        greedy: bool = False
        def __post_init__(self):
            if self.depth < 1:
                raise ValueError(f"depth must be at least 1; got {self.depth}")
"""

Package = Callable[..., None]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Package]:
    """Writes modules that can be imported, and installs packages that bring entry points."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)

    def write(source: str = GOOD, name: str = "mine", *, distribution: str = "", entry_points: str = "") -> None:
        (tmp_path / f"{name}.py").write_text(source)
        if distribution:
            folder = tmp_path / f"{distribution}-1.0.dist-info"
            folder.mkdir()
            (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
            (folder / "entry_points.txt").write_text(f"[specdec.proposers]\n{entry_points}\n")

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


def built(method: str, **settings: object) -> Proposer:
    return build_proposer(SpeculativeConfig(method, 4, settings), make_context())


def refusal(act: Callable[[SpeculativeConfig], object], method: str, **settings: object) -> str:
    """What is said, in its one line."""
    with pytest.raises(ValueError, match=r".") as refused:
        act(SpeculativeConfig(method, 4, settings))
    message = str(refused.value)
    assert "\n" not in message
    return message


def test_a_class_is_found_by_its_path_and_built_for_the_engine(package: Package) -> None:
    package()
    context = make_context()
    proposer = build_proposer(SpeculativeConfig("mine:Good"), context)
    assert vars(proposer) == {"settings": None, "context": context}
    (draft,) = proposer.propose([make_sequence([1])], ProposalInput([3]))
    assert draft.token_ids == (1, 1, 1)
    assert check_settings(SpeculativeConfig("mine:Good")) is None


def test_its_own_settings_are_made_and_checked_as_for_a_built_in_one(package: Package) -> None:
    package()
    settings = check_settings(SpeculativeConfig("mine:Tuned", 4, {"depth": 2}))
    assert (settings.depth, settings.greedy) == (2, False)
    assert vars(built("mine:Tuned", depth=2))["settings"] == settings
    for act in (check_settings, lambda config: build_proposer(config, make_context())):
        assert refusal(act, "mine:Tuned", dept=2).startswith(
            "unknown key of speculative_config for 'mine:Tuned': 'dept'; did you mean 'depth'? (valid: depth, greedy, "
        )
        assert refusal(act, "mine:Tuned") == "the proposer 'mine:Tuned' needs the key 'depth' in speculative_config"
        assert refusal(act, "mine:Tuned", depth=0) == "depth must be at least 1; got 0"
        assert "the settings of the proposer 'mine:Tuned' are wrong: TypeError:" in refusal(
            act, "mine:Tuned", depth="many"
        )
        assert "unknown key of speculative_config for 'mine:Good': 'depth'" in refusal(act, "mine:Good", depth=1)


def test_its_drafts_are_chains_unless_its_settings_tell(package: Package) -> None:
    told = "\nclass Tree(Good):\n    @dataclass(frozen=True)\n    class Settings:\n        width: int = 3\n"
    package(
        GOOD
        + told
        + "        def num_nodes(self, num_speculative_tokens):\n            return 2 // self.width or 9 * 9"
    )
    assert num_nodes(SpeculativeConfig("mine:Good", 5)) == 5
    assert num_nodes(SpeculativeConfig("mine:Tuned", 6, {"depth": 1})) == 6
    assert num_nodes(SpeculativeConfig("mine:Tree", 5, {"width": 1})) == 2
    assert refusal(num_nodes, "mine:Tree") == "the proposer 'mine:Tree' means to draft 81 nodes; a draft has at most 64"
    assert "'mine:Tree' are wrong: ZeroDivisionError" in refusal(num_nodes, "mine:Tree", width=0)


def test_a_class_may_lie_deep(package: Package) -> None:
    package(GOOD + "\nclass Outer:\n    Inner = Good\n")
    assert type(built("mine:Outer.Inner")).__name__ == "Good"


@pytest.mark.parametrize("method", ["mine:", ":Good", ":", "mine:Good:x", ".mine:Good", "my-ne:Good", "mine:Go od"])
def test_what_is_no_path_is_refused(method: str) -> None:
    expected = f"the proposer {method!r} is no path to a class; expected one such as 'my_package.module:Class'"
    assert refusal(check_settings, method) == expected


@pytest.mark.parametrize(
    ("source", "method", "words"),
    [
        (GOOD, "nowhere:Good", "there is no module 'nowhere'; is its folder in PYTHONPATH?"),
        (GOOD, "mine.sub:Good", "there is no module 'mine.sub'; is its folder in PYTHONPATH?"),
        ("import absent_package", "mine:A", "its module cannot be imported: ModuleNotFoundError: No module named 'abs"),
        ("1 / 0", "mine:A", "its module cannot be imported: ZeroDivisionError: division by zero"),
        ("def", "mine:A", "its module cannot be imported: SyntaxError: "),
        ("raise ValueError('two\\n  lines')", "mine:A", "its module cannot be imported: ValueError: two lines"),
        ("raise SystemExit(0)", "mine:A", "its module cannot be imported: SystemExit: 0"),
        (GOOD, "mine:Best", "the module 'mine' has no 'Best'; its proposers are Good, Tuned"),
        ("", "mine:Best", "the module 'mine' has no 'Best'; nor any other proposer; a proposer is a class, built as"),
        (GOOD, "mine:Good.Inner", "the module 'mine' has no 'Good.Inner'"),
        ("def make(): pass", "mine:make", "is no class but a function; a proposer is a class"),
        ("class A:\n    def forget(self, s): pass", "mine:A", "has no method propose; a proposer is a class"),
        ("class A:\n    propose = 1", "mine:A", "has no method propose and no forget; a proposer is a class"),
        (
            GOOD + "\nclass A(Good):\n    def __init__(self): pass",
            "mine:A",
            "cannot be built as A(settings, context): ",
        ),
        (GOOD + "\nclass A(Good):\n    Settings = dict", "mine:A", "its Settings must be a frozen dataclass"),
        (GOOD + "\n@dataclass\nclass B: pass\nGood.Settings = B", "mine:Good", "its Settings must be a frozen"),
    ],
)
def test_a_wrong_module_or_class_is_told_before_any_model_work(
    package: Package, source: str, method: str, words: str
) -> None:
    package(source)
    message = refusal(check_settings, method)
    assert message.startswith(f"the proposer {method!r}")
    assert words in message
    assert refusal(lambda config: build_proposer(config, make_context()), method) == message


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("def __init__(self, s, c): raise RuntimeError('no\\nGPU')", "cannot be built: RuntimeError: no GPU"),
        ("def __init__(self, s, c): c.no_such_fact", "cannot be built: AttributeError: 'ProposerContext' object has"),
        ("kv_caches = property(lambda self: 1 / 0)", "has no kv_caches; kv_caches = () says that it keeps no KV"),
        ("kv_caches = None", "kv_caches must be a sequence of KVCache, () where it keeps no KV of its own"),
        ("kv_caches = [1]", "kv_caches must be a sequence of KVCache, () where it keeps no KV of its own"),
        ("wants = ()", "wants must be specdec.proposers.base.Wants, or its NOTHING; got ()"),
        ("wants = type(NOTHING)(aux_layers=('last',))", "wants must be specdec.proposers.base.Wants"),
    ],
)
def test_a_wrong_instance_is_told_when_the_engine_is_built(package: Package, body: str, words: str) -> None:
    package(f"{GOOD}\nclass A(Good):\n    {body}\n")
    check_settings(SpeculativeConfig("mine:A"))
    message = refusal(lambda config: build_proposer(config, make_context()), "mine:A")
    assert message.startswith("the proposer 'mine:A'")
    assert words in message


@pytest.mark.parametrize("name", ["kv_caches", "wants"])
def test_what_an_instance_lacks_is_named(package: Package, name: str) -> None:
    package(re.sub(f"    {name} = .*", "", GOOD))
    message = refusal(lambda config: build_proposer(config, make_context()), "mine:Good")
    assert message.startswith(f"the proposer 'mine:Good' has no {name}; {name} = ")


def test_an_installed_package_names_its_proposer(package: Package) -> None:
    package(distribution="acme", entry_points="acme-good = mine:Good [extra]\nacme-tuned = mine : Tuned")
    assert entry_point_names() == ["acme-good", "acme-tuned"]
    assert type(built("acme-good")).__name__ == "Good"
    assert check_settings(SpeculativeConfig("acme-tuned", 4, {"depth": 3})).depth == 3
    unknown = refusal(check_settings, "acme-god")
    assert (
        "unknown proposer 'acme-god'; did you mean 'acme-good'? (valid: acme-good, acme-tuned, auto, draft, " in unknown
    )


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("nowhere:Good", "there is no module 'nowhere'"),
        ("mine:Best", "the module 'mine' has no 'Best'"),
        ("mine", "is no path to a class; expected one such as 'my_package.module:Class'"),
        ("mine:GOOD", "is no class but a str"),
    ],
)
def test_an_entry_point_that_does_not_load_names_its_package(package: Package, value: str, words: str) -> None:
    package(GOOD + "\nGOOD = 'good'", distribution="acme", entry_points=f"acme = {value}")
    message = refusal(check_settings, "acme")
    assert message.startswith(f"the proposer 'acme' of the package 'acme' ({value})")
    assert words in message


def test_a_name_that_is_built_in_is_refused_only_when_it_is_asked_for(package: Package) -> None:
    package(distribution="acme", entry_points="ngram = mine:Good\nnone = mine:Good")
    assert refusal(check_settings, "ngram") == (
        "the proposer 'ngram' is built in, and the package 'acme' has one of the same name; uninstall it, or ask for "
        "its proposer by the class, 'mine:Good'"
    )
    check_settings(SpeculativeConfig("suffix"))
    built("none")
    built("mine:Good")


def test_a_name_of_two_packages_is_refused_and_one_place_twice_is_one(package: Package) -> None:
    package(distribution="acme", entry_points="fast = mine:Good\nsame = mine:Good")
    package(distribution="other", entry_points="fast = mine:Tuned\nsame = mine:Good")
    message = refusal(check_settings, "fast")
    assert re.fullmatch(
        r"the package '(acme|other)' and the package '(acme|other)' each have a proposer 'fast'; ask for one by its "
        r"class, 'mine:(Good|Tuned)'",
        message,
    )
    built("same")


def test_a_forgotten_colon_is_put_in() -> None:
    assert refusal(check_settings, "my_package.module.Class").endswith("a class is named 'my_package.module:Class'")
    assert refusal(check_settings, "ngarm").endswith("a class of your own is named 'package.module:Class'")
