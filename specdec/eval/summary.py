"""From what was measured to a `Result`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from specdec.core.alarm import alarm
from specdec.eval.acceptance import Answered, exactness, groups, output_ranges, steps_of, total
from specdec.eval.measure import PLAIN, Measured, Plan, Variant, measure
from specdec.eval.oracle_summary import oracles
from specdec.eval.origin import describe
from specdec.eval.progress import Status
from specdec.eval.results import GroupSpeed, Origin, Piece, PlainRun, Prediction, Result, Run, Sample, Settings, Speed
from specdec.eval.session import Answer
from specdec.eval.speed import predict, speed, timing
from specdec.eval.stats import Bootstrap, distinct

if TYPE_CHECKING:
    from specdec.engine import Engine
    from specdec.tokenizer import Tokenizer

NUM_SAMPLES = 3
LONGEST_GRAM = 3


class Summary:
    """Figures over one measurement. Failed answers are in none of them."""

    def __init__(self, plan: Plan, measured: Measured, bootstrap: Bootstrap, tokenizer: Tokenizer | None) -> None:
        self._plan = plan
        self._measured = measured
        self._bootstrap = bootstrap
        self._tokenizer = tokenizer
        self._sound = {
            key: {index: answer for index, answer in answers.items() if answer.error is None}
            for key, answers in measured.answers.items()
        }

    def result(self, origin: Origin, settings: Settings) -> Result:
        """All of it."""
        done = [key for key, answers in self._sound.items() if answers]
        return Result(
            origin=origin,
            settings=settings,
            plain=tuple(self._plain(temperature) for temperature, variant in done if variant == PLAIN),
            runs=tuple(self._run(*key) for key in done if key[1] != PLAIN),
            curve=self._measured.curve,
            oracles=oracles(self._plan, self._sound, self._measured.recordings, self._bootstrap),
            skipped=self._plan.skipped,
            failures=self._failures(),
            interrupted=self._measured.interrupted,
        )

    def _failures(self) -> tuple[str, ...]:
        named = [
            (f"{variant}, T={temperature:g}", answers)
            for (temperature, variant), answers in self._measured.answers.items()
        ]
        for variant, own in self._measured.recordings.items():
            named.append((f"oracle, {variant}", {index: each.answer for index, each in own.items()}))
        return tuple(
            f"{self._plan.prompts[index].name}, {name}: {answer.error}"
            for name, answers in named
            for index, answer in answers.items()
            if answer.error is not None
        )

    def _plain(self, temperature: float) -> PlainRun:
        answers = self._sound[temperature, PLAIN]
        return PlainRun(
            temperature=temperature,
            num_prompts=len(answers),
            num_tokens=sum(len(answer.token_ids) for answer in answers.values()),
            distinct=_distinct(answers),
            timings=tuple(
                timing(batch_size, timed[PLAIN])
                for (own, batch_size), timed in self._measured.groups.items()
                if own == temperature and timed[PLAIN]
            ),
        )

    def _run(self, temperature: float, variant: Variant) -> Run:
        answers, plain = self._sound[temperature, variant], self._sound[temperature, PLAIN]
        ordered = [answers[index] for index in sorted(answers)]
        num_tokens = sum(len(answer.token_ids) for answer in ordered)
        return Run(
            proposer=variant.proposer,
            num_speculative_tokens=variant.num_speculative_tokens,
            temperature=temperature,
            groups=groups(self._plan.prompts, answers, self._bootstrap),
            output_ranges=output_ranges(steps_of(ordered), self._plan.max_tokens),
            distinct=_distinct(answers),
            exactness=exactness(self._plan.prompts, answers, plain, ordered[0].verifier, ordered[0].exactness),
            samples=tuple(self._sample(index, answers[index]) for index in self._sampled(answers)),
            speeds=self._speeds(temperature, variant),
            prediction=self._prediction(temperature, variant),
            group_speeds=self._group_speeds(temperature, variant),
            complete=self._is_complete(temperature, variant),
            alarm=alarm(variant.proposer, total(ordered), num_tokens),
        )

    def _speeds(self, temperature: float, variant: Variant) -> tuple[Speed, ...]:
        return tuple(
            speed(batch_size, timed[PLAIN], timed[variant], self._bootstrap)
            for (own, batch_size), timed in self._measured.groups.items()
            if own == temperature and timed[variant]
        )

    def _prediction(self, temperature: float, variant: Variant) -> Prediction | None:
        """Over the prompts whose groups were decoded at batch 1."""
        timed, curve = self._measured.groups.get((temperature, 1), {}), self._measured.curve
        if not timed.get(variant) or curve is None:
            return None
        return predict(curve, timed[PLAIN], timed[variant])

    def _group_speeds(self, temperature: float, variant: Variant) -> tuple[GroupSpeed, ...]:
        """The same by task and category, and how fast they were."""
        timed, curve = self._measured.groups.get((temperature, 1), {}), self._measured.curve
        parts: dict[tuple[str, str | None], list[int]] = {}
        prompts = [self._plan.prompts[index] for index in self._measured.timed.get((temperature, 1), [])]
        for whole in (True, False):
            for place, prompt in enumerate(prompts):
                parts.setdefault((prompt.task, None if whole else prompt.category), []).append(place)
        found = []
        for (task, category), places in parts.items():
            plain, own = ([timed[each][place] for place in places] for each in (PLAIN, variant))
            predicted = None if curve is None else predict(curve, plain, own)
            found.append(GroupSpeed(task, category, speed(1, plain, own, self._bootstrap), predicted))
        return tuple(found)

    def _is_complete(self, temperature: float, variant: Variant) -> bool:
        if not self._measured.interrupted:
            return True
        plan = self._plan
        timed = {size: self._measured.groups.get((temperature, size), {}) for size in plan.batch_sizes}
        all_timed = not plan.timing_prompts or all(
            len(timed[size].get(variant, [])) == len(plan.timed_groups(size)) for size in plan.batch_sizes
        )
        return all_timed and len(self._measured.answers[temperature, variant]) == len(plan.prompts)

    def _sampled(self, answers: Answered) -> list[int]:
        """The first prompt of each of the first categories."""
        first: dict[tuple[str, str], int] = {}
        for index in sorted(answers):
            first.setdefault((self._plan.prompts[index].task, self._plan.prompts[index].category), index)
        return list(first.values())[:NUM_SAMPLES]

    def _sample(self, index: int, answer: Answer) -> Sample:
        prompt = self._plan.prompts[index]
        pieces = self._pieces(self._plan.token_ids[index], answer)
        return Sample(prompt.task, prompt.category, prompt.prompt_id, prompt.text, pieces)

    def _pieces(self, prompt_ids: Sequence[int], answer: Answer) -> tuple[Piece, ...]:
        assert self._tokenizer is not None, "prompts were texts"
        stream = self._tokenizer.stream(True, prompt_ids)
        texts = [stream.push(token_id) for token_id in answer.token_ids]
        texts[-1] += stream.finish()
        return tuple(Piece(text, source) for text, source in zip(texts, answer.provenance, strict=True))


def _distinct(answers: Answered) -> tuple[float | None, ...]:
    outputs = [answer.token_ids for answer in answers.values()]
    return tuple(distinct(outputs, n) for n in range(1, LONGEST_GRAM + 1))


def evaluate(
    engine: Engine,
    plan: Plan,
    command: str,
    *,
    load: float | None = None,
    show: Callable[[Status], None] = lambda status: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Result:
    """Measure and conclude, on an idle engine. `load` was the machine's before the model was loaded; see `measure`."""
    measured = measure(engine, plan, show=show, stopped=stopped)
    bootstrap = Bootstrap(plan.seed)
    origin = describe(command, load, engine.runner.kernels.num_threads())
    return Summary(plan, measured, bootstrap, engine.tokenizer).result(origin, _settings(engine, plan, bootstrap))


def _settings(engine: Engine, plan: Plan, bootstrap: Bootstrap) -> Settings:
    return Settings(
        model=engine.config.model,
        dtype=str(getattr(engine.runner.model, "dtype", engine.runner.kv.layout.dtype)).removeprefix("torch."),
        verifier=engine.config.verifier,
        tasks=tuple(dict.fromkeys(prompt.task for prompt in plan.prompts)),
        max_tokens=plan.max_tokens,
        limit=plan.limit,
        seed=plan.seed,
        timing_prompts=plan.timing_prompts,
        batch_sizes=plan.batch_sizes,
        resamples=bootstrap.resamples,
        confidence=bootstrap.confidence,
        quantization=engine.config.quantization,
        kv_cache_dtype=engine.config.kv_cache_dtype,
        concurrency=plan.concurrency,
    )
