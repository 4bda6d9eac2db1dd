"""Greedy and coupled verification promise the tokens of plain decoding; this compares them, one by one.

A first difference is no fault where it is a tie (`specdec.eval.drift`): the two tokens are nearer to each other than
rounding. What comes after it in that answer is another text, and is not compared.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import asdict, dataclass

from specdec.engine import Engine
from specdec.eval.checks import Check
from specdec.eval.drift import TIE_FACTOR, TOLERANCE, Context, Gap, common_length, measure_gap
from specdec.eval.driving import Job, Watch, drive, errors, plural, samples
from specdec.types import SamplingParams, SpeculationParams, SpeculationStats

Text = tuple[int, ...]
PLAIN, DRAFTING = SpeculationParams("none"), SpeculationParams()
ACCEPTED = "an accepted drafted token (so no row after one, no bonus row and no KV that moves was seen)"
BATCHED, ALONE = "in one batch", "alone"


@dataclass(frozen=True)
class Divergence:
    """Where an answer first differs from plain decoding. None stands for the answer's end."""

    prompt: int
    """Counted from 1."""
    how: str
    index: int
    """Of the output token, from 0."""
    plain_token: int | None
    token: int | None
    gap: Gap | None
    """None where an answer ended, which cannot be a tie of two tokens."""

    @property
    def is_tie(self) -> bool:
        return self.gap is not None and self.gap.is_tie

    def describe(self) -> str:
        """One line."""
        line = f"prompt {self.prompt}, {self.how}: output token {self.index + 1} is {_name(self.token)} where plain "
        line += f"decoding has {_name(self.plain_token)}"
        if self.gap is None:
            return line
        line += f"; top-2 margin {self.gap.margin:.3g}, the worse of the two {self.gap.gap:.3g} below the best, "
        line += f"measured drift {self.gap.drift:.3g}"
        return line + (": a tie" if self.is_tie else f": more than {TIE_FACTOR:g} times the drift, so no tie")


def _name(token: int | None) -> str:
    return "the end" if token is None else str(token)


@dataclass(frozen=True)
class Texts:
    """Prompts, how they were answered, and plain decoding's answers."""

    prompts: Many[Text]
    params: SamplingParams
    answers: Many[list[int]]


class Equality:
    """How far answers of one sample each agree with plain decoding. Sampling parameters are greedy, or have a seed."""

    def __init__(self, engine: Engine, watch: Watch) -> None:
        self._engine = engine
        self._watch = watch
        self._longest_draft = engine.config.speculative[0].num_speculative_tokens
        self.divergences: list[Divergence] = []
        self.faults: list[str] = []
        self.stats = SpeculationStats()
        self.num_answers = self.num_equal = self.num_tokens = 0

    def run(self, prompts: Many[Text], params: SamplingParams) -> None:
        """Compare drafting with plain decoding, all prompts in one batch, and then each alone."""
        for how, batches in ((BATCHED, [prompts]), (ALONE, [[prompt] for prompt in prompts])):
            plain = [answer for batch in batches for answer in self._decode(batch, params, PLAIN, how)]
            drafted = [answer for batch in batches for answer in self._decode(batch, params, DRAFTING, how)]
            self.compare(how, Texts(prompts, params, plain), drafted)

    def run_preempted(self, prompts: Many[Text], params: SamplingParams, answers: Many[list[int]]) -> None:
        """Compare answers that were given by an engine with too little memory for all prompts."""
        plain = self._decode(prompts, params, PLAIN, BATCHED)
        self.compare("preempted", Texts(prompts, params, plain), answers)

    def _decode(
        self, prompts: Many[Text], params: SamplingParams, speculation: SpeculationParams, how: str
    ) -> list[list[int]]:
        self._engine.reset_prefix_cache()
        kind = "plain decoding" if speculation == PLAIN else "with drafts"
        outputs = drive(
            self._engine, [Job(prompt, params, speculation) for prompt in prompts], self._watch, f"{kind}, {how}"
        )
        self.faults += errors(outputs)
        for sample in samples(outputs):
            self.stats.add(sample.speculation)
        return [sample.token_ids for sample in samples(outputs)]

    def compare(self, how: str, plain: Texts, answers: Many[list[int]]) -> None:
        """Count, and look into every answer that differs."""
        for number, (ours, theirs) in enumerate(zip(answers, plain.answers, strict=True)):
            self.num_answers += 1
            index = common_length(ours, theirs)
            self.num_tokens += index
            if ours == theirs:
                self.num_equal += 1
                continue
            self._watch.check(f"looking into a difference: prompt {number + 1}, {how}")
            self._diverged(self._look(number, how, index, plain, ours))

    def _look(self, number: int, how: str, index: int, plain: Texts, ours: list[int]) -> Divergence:
        theirs, prompt = plain.answers[number], plain.prompts[number]
        token = ours[index] if index < len(ours) else None
        plain_token = theirs[index] if index < len(theirs) else None
        gap = None
        if token is not None and plain_token is not None:
            context = Context((*prompt, *theirs[:index]), len(prompt), plain.params)
            copies = 1 if how == ALONE else len(plain.prompts)
            gap = measure_gap(self._engine, context, (plain_token, token), self._longest_draft, copies)
        return Divergence(number + 1, how, index, plain_token, token, gap)

    def _diverged(self, found: Divergence) -> None:
        self.divergences.append(found)
        allowed = TOLERANCE[self._engine.runner.model.kv_layout().dtype]
        if not found.is_tie:
            self.faults.append(found.describe())
        elif found.gap is not None and found.gap.relative_drift > allowed:
            self.faults.append(
                f"verify rows differ from decode rows by {found.gap.relative_drift:.2g} of the logits' size, where "
                f"rounding explains {allowed:g}"
            )

    def check(self, name: str) -> Check:
        """What was found."""
        ties = [found.describe() for found in self.divergences if found.is_tie]
        summary = (
            f"{self.num_equal} of {plural(self.num_answers, 'answer')} equal to plain decoding's, "
            f"{plural(self.num_tokens, 'token')} compared, {plural(len(ties), 'tie')}; "
            f"{self.stats.num_accepted_tokens:,} of {self.stats.num_draft_tokens:,} drafted tokens accepted"
        )
        if not self.stats.num_drafts and not self.faults:
            summary = f"no draft was verified in {plural(self.num_tokens, 'token')}: give prompts that are drafted for"
        figures = {
            "num_answers": self.num_answers,
            "num_equal": self.num_equal,
            "num_tokens_compared": self.num_tokens,
            "num_draft_tokens": self.stats.num_draft_tokens,
            "num_accepted_tokens": self.stats.num_accepted_tokens,
            "tie_factor": TIE_FACTOR,
            "divergences": [asdict(found) | {"is_tie": found.is_tie} for found in self.divergences],
        }
        unseen = [] if self.stats.num_accepted_tokens else [ACCEPTED]
        return Check.of(
            name, self.faults, self.stats.num_drafts, summary, figures, notes=ties, unseen=unseen, is_needed=True
        )
