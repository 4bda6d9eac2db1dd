"""The sample outputs of a report: every answer as tokens, each with the sign of where it came from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from specdec.charts.svg import NUM_COLOURS
from specdec.eval.report_charts import styles
from specdec.eval.report_tables import marks
from specdec.eval.report_text import number, temperature, variant
from specdec.eval.results import Piece, Run, Sample
from specdec.types import BONUS, RECOVERED


@dataclass(frozen=True)
class Source:
    """Where tokens come from, in full and in a count, and the classes of the tokens' elements."""

    name: str
    short: str
    css: str


@dataclass(frozen=True)
class Token:
    text: str
    source: Source

    @property
    def is_line_end(self) -> bool:
        """A line's end alone, which has no width for a colour to show on."""
        return "\n" in self.text and not self.text.strip()


@dataclass(frozen=True)
class Answer:
    """One run's answer; `counts` says how many tokens came from where."""

    name: str
    marks: tuple[str, ...]
    counts: str
    tokens: tuple[Token, ...]


@dataclass(frozen=True)
class Sampled:
    """A prompt, and the answers that were kept of it."""

    name: str
    prompt: str
    answers: tuple[Answer, ...]


def sources(runs: Sequence[Run]) -> dict[str, Source]:
    """Every source that occurs in the runs' samples; a proposer has the colour of its first run's charts."""
    colours: dict[str, int] = {}
    style = styles(runs)
    for run in runs:
        colours.setdefault(run.proposer, style[variant(run)])
    seen = dict.fromkeys(piece.source for run in runs for sample in run.samples for piece in sample.pieces)
    drafted = [source for source in seen if source not in (RECOVERED, BONUS)]
    for source in drafted:
        colours.setdefault(source, len(colours))
    made = {source: _drafted(source, colours[source]) for source in drafted}
    made[RECOVERED] = Source("recovered after a rejection", "recovered", RECOVERED)
    made[BONUS] = Source("bonus, from the model alone", "bonus", BONUS)
    return made


def _drafted(proposer: str, colour: int) -> Source:
    name = f"drafted by {proposer}"
    return Source(name, name, f"drafted s{colour % NUM_COLOURS}")


def sampled(runs: Sequence[Run]) -> list[Sampled]:
    """The samples of all runs by prompt, so that the answers to one stand together."""
    known = sources(runs)
    prompts: dict[tuple[str, str], tuple[Sample, list[Answer]]] = {}
    for run in runs:
        for sample in run.samples:
            _, answers = prompts.setdefault((sample.task, sample.prompt_id), (sample, []))
            answers.append(_answer(run, sample.pieces, known))
    return [Sampled(_name(sample), sample.prompt, tuple(answers)) for sample, answers in prompts.values()]


def _name(sample: Sample) -> str:
    category = "" if sample.category == sample.task else f" ({sample.category})"
    return f"{sample.task}/{sample.prompt_id}{category}"


def _answer(run: Run, pieces: Iterable[Piece], known: Mapping[str, Source]) -> Answer:
    """Tokens that complete no text are counted, and cannot be shown."""
    pieces = tuple(pieces)
    found = Counter(piece.source for piece in pieces)
    counts = ", ".join(f"{number(found[source])} {known[source].short}" for source in known if found[source])
    tokens = tuple(Token(piece.text, known[piece.source]) for piece in pieces if piece.text)
    return Answer(f"{variant(run)}, {temperature(run.temperature)}", marks(run), counts or "no tokens", tokens)
