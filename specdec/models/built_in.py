"""The draft heads that come with the package: which there are, where they lie, and which models they are for.

Knows nothing of what is in them. No torch here: the command line lists them before it loads anything heavy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from specdec.models.hub import ALIASES


@dataclass(frozen=True)
class WeightsFile:
    """A file of weights, by its content."""

    size: int
    """Bytes: files of other sizes need not be read."""
    sha256: str


@dataclass(frozen=True)
class BuiltInHead:
    """A trained head for one model."""

    name: str
    """Of its folder, and for `--draft-model`."""
    kind: str
    """"eagle", "eagle3" or "medusa"."""
    target: str
    """The model's alias."""
    description: str
    licence: str
    draft_length: int
    """The longest draft that `auto` asks it for."""
    confidence_threshold: float = 0.0
    """How likely, by its own law, the path must be after which it goes on drafting there."""
    acceptance: tuple[float, ...] = ()
    """Of these drafts by position, given that all before was accepted: what `auto` expects of it at first."""
    files: tuple[WeightsFile, ...] = ()
    """Other files that hold the model, beside the alias's own."""

    @property
    def target_files(self) -> tuple[WeightsFile, ...]:
        alias = ALIASES.get(self.target)
        return self.files if alias is None else (WeightsFile(alias.size, alias.sha256), *self.files)


@dataclass(frozen=True)
class HeadShelf:
    """A folder of heads, `directory`/NAME, and what is known of them. A head may be known and not be there."""

    directory: Path
    heads: tuple[BuiltInHead, ...]

    def path(self, head: BuiltInHead) -> Path:
        return self.directory / head.name

    def has(self, head: BuiltInHead) -> bool:
        """Whether it is installed."""
        return (self.path(head) / "config.json").is_file()

    def size(self, head: BuiltInHead) -> int:
        """Bytes of its files."""
        return sum(file.stat().st_size for file in self.path(head).rglob("*") if file.is_file())

    def named(self, name: str) -> Path | None:
        """The directory of the head of that name, None if none is called so; ValueError if it is not installed."""
        found = next((head for head in self.heads if head.name == name), None)
        return None if found is None else self.find(found)

    def find(self, head: BuiltInHead) -> Path:
        """The head's directory; ValueError if it is not installed."""
        if not self.has(head):
            raise ValueError(
                f"the draft head {head.name} is not installed in this copy of specdec ({self.path(head)} is missing); "
                "name another with --draft-model, or draft without one: --proposer auto, ngram or suffix"
            )
        return self.path(head)

    def of_target(self, model: str) -> tuple[BuiltInHead, ...]:
        """The heads for the model that a user calls `model`: by its alias, or by the content of its file. Models on the
        hub are not known here."""
        if model in ALIASES:
            return tuple(head for head in self.heads if head.target == model)
        file = _weights_file(Path(model).expanduser())
        if file is None:
            return ()
        size = file.stat().st_size
        digest = ""
        if any(known.size == size for head in self.heads for known in head.target_files):
            digest = file_sha256(file)
        return tuple(head for head in self.heads if WeightsFile(size, digest) in head.target_files)

    def for_target(self, model: str, kinds: tuple[str, ...], proposer: str) -> BuiltInHead:
        """The first head of one of the `kinds` for a model; ValueError, which says what there is, if it has none."""
        found = next((head for head in self.of_target(model) if head.kind in kinds), None)
        if found is None:
            known = "; ".join(f"{head.name} for {head.target}" for head in self.heads) or "none"
            raise ValueError(
                f"no head of the proposer {proposer!r} is built in for the model {model!r} (built in: {known}); name a "
                "head's directory, file or hub name with --draft-model (in speculative_config: model), train one with "
                "`specdec train`, or draft without one: --proposer auto, ngram or suffix"
            )
        return found

    def listed(self) -> Iterator[tuple[BuiltInHead, int | None]]:
        """Every head and its size in bytes, None if it is not installed."""
        for head in self.heads:
            yield head, self.size(head) if self.has(head) else None


def _weights_file(path: Path) -> Path | None:
    """The one file of weights at a path, None where there is none or several."""
    try:
        if path.is_dir():
            found = [*path.glob("*.gguf"), *path.glob("model*.safetensors")]
            path = found[0] if len(found) == 1 else path
        return path if path.is_file() else None
    except OSError:
        return None


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal; ValueError if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from None


SHELF = HeadShelf(
    Path(__file__).parents[1] / "heads",
    (
        BuiltInHead(
            name="smollm2-135m-eagle3",
            kind="eagle3",
            target="smollm2-135m",
            description="EAGLE-3 for SmolLM2-135M-Instruct, trained with specdec",
            licence="Apache-2.0",
            draft_length=7,
            confidence_threshold=0.15,
            acceptance=(0.52, 0.55, 0.58, 0.6),
        ),
    ),
)
"""What comes with this package."""
