"""Prompts about documents: passages of texts, each with a task, so that answers copy from a long context.

Which passages there are and which task each gets depend on the texts and a seed alone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser
from pathlib import Path

from specdec.train.data.filters import digest
from specdec.train.data.prompts import Message, Prompt, Source, decoded, read_file, sha256

HTML = (".html", ".htm")
SUFFIXES = (".txt", ".md", ".markdown", ".rst", *HTML)
DOCUMENTS = "documents"

SIZES = (60, 120, 220, 380)
"""Words of a passage: it ends with the paragraph that reaches one of these."""
FEWEST_WORDS, MOST_WORDS = 30, 500
LEAST_LETTERS = 0.6
"""Of a passage's characters, so many are letters or spaces: tables of numbers make no text."""

FURNITURE = 3
"""A paragraph that stands in so many files is a site's menu or footer, and no text."""

TASKS = (
    "Summarize the following text in two or three sentences.\n\n{}",
    "{}\n\nSummarize the text above in one paragraph.",
    "List the key points of this text.\n\n{}",
    "Read the text and answer the question.\n\nText: {}\n\nQuestion: What is this about, and what is said of it?",
    "{}\n\nWhat is the most important statement in this text? Quote it, and say why it matters.",
    "Write three questions that this text answers, each with its answer.\n\n{}",
    "Extract all names, places, dates and numbers from the text below, as a list.\n\n{}",
    "Extract the terms that this text explains or uses, each with the sentence where it stands.\n\n{}",
    "Rewrite this text in simpler words.\n\n{}",
    "Correct the spelling and the grammar of the following text, and change nothing else.\n\n{}",
    "Rewrite the following text as a list of short sentences.\n\n{}",
    "Make this text shorter by half, and keep its wording where you can.\n\n{}",
    "Translate to German: {}",
    "Translate the following text into French.\n\n{}",
    "Translate the following text into Spanish.\n\n{}",
    "Continue this text in the same style.\n\n{}",
    "Give this text a title, and then repeat its first two sentences.\n\n{}",
    "Explain the following text to someone who has never heard of it.\n\n{}",
)
"""What is asked of a passage, which stands at the braces."""

_BLOCKS = frozenset(
    (
        *("p", "div", "li", "h1", "h2", "h3", "h4", "h5", "h6", "pre", "td", "th", "tr", "dt", "dd", "br", "section"),
        *("article", "blockquote", "figcaption"),
    )
)
_SILENT = frozenset(("script", "style", "head", "nav", "footer", "svg", "noscript", "template"))


def read_documents(path: Path, seed: int) -> Source:
    """A prompt for each passage of a file, or of all files below a folder. ValueError where there are none."""
    contents = {file: read_file(file) for file in _files(path)}
    paragraphs = [list(_paragraphs(_text(file, content))) for file, content in contents.items()]
    furniture = {
        each for each, count in Counter(p for own in paragraphs for p in set(own)).items() if count >= FURNITURE
    }
    prompts = [
        Prompt(DOCUMENTS, (Message("user", _task(passage, seed)),))
        for own in paragraphs
        for passage in passages(paragraph for paragraph in own if paragraph not in furniture)
    ]
    if not prompts:
        raise ValueError(f"{path} holds no passages of at least {FEWEST_WORDS} words")
    hashes = "\n".join(sha256(content) for content in contents.values())
    return Source(str(path), tuple(prompts), sha256(hashes.encode()))


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    found = sorted(each for each in path.rglob("*") if each.suffix.lower() in SUFFIXES and each.is_file())
    if not found:
        raise ValueError(f"{path} holds no documents; their names end in {', '.join(SUFFIXES)}")
    return found


def _text(path: Path, content: bytes) -> str:
    text = decoded(content, str(path)).replace("\r\n", "\n")
    if path.suffix.lower() not in HTML:
        return text
    reader = _HTMLText()
    reader.feed(text)
    reader.close()
    return "".join(reader.parts)


class _HTMLText(HTMLParser):
    """The text of a page, a blank line between its blocks; scripts and the like are passed over."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self._silent = self._verbatim = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._silent += tag in _SILENT
        self._verbatim += tag == "pre"
        if tag in _BLOCKS:
            self.parts.append("\n\n")

    def handle_endtag(self, tag: str) -> None:
        self._silent = max(0, self._silent - (tag in _SILENT))
        self._verbatim = max(0, self._verbatim - (tag == "pre"))
        if tag in _BLOCKS:
            self.parts.append("\n\n")

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self.parts.append(data if self._verbatim else re.sub(r"\s+", " ", data))


def passages(paragraphs: Iterable[str]) -> Iterator[str]:
    """Consecutive paragraphs, together of one of several lengths; what is hardly a text is left out."""
    taken: list[str] = []
    count = number = 0
    for paragraph in paragraphs:
        taken.append(paragraph)
        count += len(paragraph.split())
        if count >= SIZES[digest(number, taken[0]) % len(SIZES)]:
            yield from _worthy("\n\n".join(taken))
            taken, count, number = [], 0, number + 1
    yield from _worthy("\n\n".join(taken))


def _paragraphs(text: str) -> Iterator[str]:
    """What stands between blank lines; of one that is too long, pieces that end with a sentence where they can."""
    for block in re.split(r"\n\s*\n", text):
        words: list[str] = []
        for sentence in re.split(r"(?<=[.!?])\s+", block.strip()):
            own = sentence.split()
            while len(own) > MOST_WORDS:
                yield " ".join(own[:MOST_WORDS])
                own = own[MOST_WORDS:]
            if len(words) + len(own) > MOST_WORDS:
                yield " ".join(words)
                words = []
            words += own
        if words:
            whole = len(block.split()) == len(words)
            yield block.strip() if whole else " ".join(words)


def _worthy(passage: str) -> Iterator[str]:
    letters = sum(character.isalpha() or character.isspace() for character in passage)
    if FEWEST_WORDS <= len(passage.split()) <= 2 * MOST_WORDS and letters >= LEAST_LETTERS * len(passage):
        yield passage


def _task(passage: str, seed: int) -> str:
    return TASKS[digest(seed, "task", passage) % len(TASKS)].replace("{}", passage)
