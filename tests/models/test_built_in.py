"""Heads that come with the package: whom they are for, whether they are there, and that they stay small."""

from __future__ import annotations

import hashlib
import tomllib
from pathlib import Path

import pytest

from specdec.models.built_in import SHELF, BuiltInHead, HeadShelf, WeightsFile, file_sha256
from specdec.models.hub import ALIASES
from specdec.proposers.registry import PROPOSERS

CONTENT = b"weights of a model"
MOST_BYTES = 16_000_000
"""Of a head in the package."""


def head(name: str = "tiny-eagle3", kind: str = "eagle3", content: bytes = CONTENT) -> BuiltInHead:
    digest = hashlib.sha256(content).hexdigest()
    files = (WeightsFile(len(content), digest),)
    return BuiltInHead(name, kind, "tiny", "a head", "Apache-2.0", draft_length=5, files=files)


def install(shelf: HeadShelf, which: BuiltInHead, size: int = 1) -> Path:
    folder = shelf.path(which)
    folder.mkdir(parents=True)
    for name in ("config.json", "README.md"):
        (folder / name).write_text("{}")
    (folder / "model.safetensors").write_bytes(bytes(size))
    return folder


def faults(shelf: HeadShelf) -> list[str]:
    """What is wrong with the heads that lie in a shelf's folder."""
    found = []
    names = {each.name for each in shelf.heads}
    for folder in sorted(shelf.directory.iterdir()) if shelf.directory.exists() else ():
        size = sum(file.stat().st_size for file in folder.rglob("*"))
        missing = {"config.json", "model.safetensors", "README.md"} - {file.name for file in folder.iterdir()}
        if folder.name not in names:
            found.append(f"{folder.name} is no head that is known")
        if size > MOST_BYTES:
            found.append(f"{folder.name} has {size} bytes")
        found += [f"{folder.name} has no {name}" for name in sorted(missing)]
    return found


def test_the_heads_of_a_model_are_found_by_its_content_wherever_it_lies(tmp_path: Path) -> None:
    shelf = HeadShelf(tmp_path, (head(), head("other", content=b"weights of b model"), head("tiny-medusa", "medusa")))
    for place in ("a.gguf", "b/model.gguf", "c/model.safetensors"):
        path = tmp_path / place
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(CONTENT)
        for model in {path, path.parent if "/" in place else path}:
            assert [each.name for each in shelf.of_target(str(model))] == ["tiny-eagle3", "tiny-medusa"]
    (tmp_path / "a.gguf").write_bytes(CONTENT[:-1] + b"!")
    (tmp_path / "c" / "model-2.safetensors").write_bytes(CONTENT)
    for model in (tmp_path / "a.gguf", tmp_path / "c", tmp_path / "nowhere", "org/name", tmp_path):
        assert shelf.of_target(str(model)) == ()


def test_an_alias_needs_no_file() -> None:
    """Its content is known."""
    (found,) = SHELF.of_target("smollm2-135m")
    assert found.name == "smollm2-135m-eagle3"
    alias = ALIASES["smollm2-135m"]
    assert found.target_files == (WeightsFile(alias.size, alias.sha256),)


def test_files_are_only_read_where_their_size_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.gguf").write_bytes(CONTENT + b"!")

    def fail(path: Path) -> str:
        raise AssertionError(path)

    monkeypatch.setattr("specdec.models.built_in.file_sha256", fail)
    shelf = HeadShelf(tmp_path, (head(),))
    assert shelf.of_target(str(tmp_path / "a.gguf")) == ()
    (tmp_path / "a.gguf").write_bytes(CONTENT)
    with pytest.raises(AssertionError):
        shelf.of_target(str(tmp_path / "a.gguf"))


def test_the_hash_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(CONTENT)
    assert file_sha256(tmp_path / "a") == hashlib.sha256(CONTENT).hexdigest()
    with pytest.raises(ValueError, match=r"nowhere cannot be read: No such file"):
        file_sha256(tmp_path / "nowhere")


def test_a_head_is_there_or_it_is_said_that_it_is_not(tmp_path: Path) -> None:
    shelf = HeadShelf(tmp_path, (head(),))
    assert [*shelf.listed()] == [(head(), None)]
    with pytest.raises(ValueError, match=r"^the draft head tiny-eagle3 is not installed .* is missing\); name another"):
        shelf.named("tiny-eagle3")
    folder = install(shelf, head(), size=100)
    assert shelf.named("tiny-eagle3") == folder
    assert shelf.named("tiny") is None
    assert [*shelf.listed()] == [(head(), 104)]


# The package's own


def test_what_is_in_the_package_is_known_complete_and_small() -> None:
    assert faults(SHELF) == []
    for each in SHELF.heads:
        assert each.target in ALIASES
        assert each.kind in PROPOSERS
        assert 1 <= each.draft_length <= 16


def test_what_would_be_wrong_is_seen(tmp_path: Path) -> None:
    shelf = HeadShelf(tmp_path, (head(), head("second")))
    install(shelf, head())
    assert faults(shelf) == []
    (install(shelf, head("second"), size=MOST_BYTES) / "README.md").unlink()
    install(shelf, head("third"))
    assert faults(shelf) == [
        f"second has {MOST_BYTES + 2} bytes",
        "second has no README.md",
        "third is no head that is known",
    ]


def test_the_folder_belongs_to_the_installed_package() -> None:
    root = Path(__file__).parents[2]
    assert root / "specdec" / "heads" == SHELF.directory
    assert (
        "heads/*/*"
        in tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["specdec"]
    )
