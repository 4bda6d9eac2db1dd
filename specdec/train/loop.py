"""The training loop: the same for whatever trains. It knows steps, checkpoints and looks at held-out samples.

A run is a function of recipe, data and target: the order of samples of seed and epoch, the learning rate of the step.
So one in many sittings ends in the same bits as one in a single sitting.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, Literal

from specdec.models.built_in import file_sha256
from specdec.train.batches import Step, plan_epoch
from specdec.train.checkpoint import (
    BEST,
    LAST,
    Checkpoint,
    check_same,
    load_checkpoint,
    save_checkpoint,
    write_text,
)
from specdec.train.held_out import Acceptance, acceptance
from specdec.train.optimiser import Optimiser
from specdec.train.picture import learning_curve
from specdec.train.provenance import provenance
from specdec.train.recipe import TrainConfig
from specdec.train.samples import Samples, StateSource, read_item
from specdec.train.survey import Survey
from specdec.train.trainees.base import HeldOut, Prepared, StepLoss, Trainee

CURVE = "curve.svg"
HEAD = "head"
AHEAD = 2
"""Micro-batches that are read while one is computed."""


@dataclass(frozen=True)
class TrainingData:
    samples: Samples
    states: StateSource
    survey: Survey
    origin: Mapping[str, Any]
    """What provenance says of it."""


@dataclass(frozen=True)
class Progress:
    """What a person is told."""

    step: int
    num_steps: int
    tokens: int
    """Seen so far, in all epochs."""
    loss: float
    divergences: tuple[float, ...]
    tokens_per_second: float
    acceptance: Acceptance | None
    """At the last look."""


@dataclass(frozen=True)
class Outcome:
    ended: Literal["finished", "time", "stopped"]
    step: int
    num_steps: int
    tokens: int
    acceptance: Acceptance | None
    best: Acceptance | None
    num_held_out: int
    """Samples kept from training; 0: acceptance is of some that were trained on."""


@dataclass(frozen=True)
class Sitting:
    """What differs from one sitting of a run to the next."""

    directory: Path
    command: str = ""
    stop_after: float | None = None
    """Seconds."""
    tell: Callable[[Progress], None] = lambda progress: None
    stopped: Callable[[], bool] = lambda: False


class Loop(Generic[Prepared, HeldOut]):
    """A run of one trainee, in `sitting.directory`: checkpoints, the curve, and the best head so far."""

    def __init__(
        self,
        trainee: Trainee[Prepared, HeldOut],
        data: TrainingData,
        config: TrainConfig,
        target: Mapping[str, Any],
        sitting: Sitting,
        start_from: Path | None = None,
    ) -> None:
        """`start_from`: the file of the weights that the trainee begins with, if it has them from one."""
        self.trainee, self.data, self.config, self.sitting = trainee, data, config, sitting
        self._target = dict(target)
        self._start = None if start_from is None else f"weights of sha256 {file_sha256(start_from)[:12]}"
        self._optimiser = Optimiser(trainee.module.named_parameters(), config.optimiser)
        self._steps = self._plan()
        self._tokens = [sum(data.survey.lengths[i] for micro in step for i in micro) for step in self._steps]
        looks = config.run.evaluations
        self._looks = {max(1, round((i + 1) * len(self._steps) / looks)) for i in range(looks)}
        self._history: list[dict[str, Any]] = []
        self._first = 0
        self._resume()

    def run(self) -> Outcome:
        """Train to the end, or until the sitting's time is over or it is stopped; what was done is kept."""
        started = saved = time.monotonic()
        ended: Literal["finished", "time", "stopped"] = "finished"
        step = self._first
        held_out = self._read_held_out() if step < len(self._steps) else []
        with ThreadPoolExecutor(1, "training-data") as reader:
            batches = self._batches(reader, step)
            for losses in map(self._train_step, range(step, len(self._steps)), batches):
                step += 1
                if step in self._looks:
                    self._look(step, losses, held_out)
                self._report(step, losses, started)
                now = time.monotonic()
                if step < len(self._steps):
                    if self.sitting.stopped():
                        ended = "stopped"
                        break
                    if self.sitting.stop_after is not None and now - started >= self.sitting.stop_after:
                        ended = "time"
                        break
                if now - saved >= 60 * self.config.run.checkpoint_minutes:
                    self._save(step, LAST)
                    saved = time.monotonic()
            reader.shutdown(cancel_futures=True)
        if step > self._first:
            self._save(step, LAST)
        return Outcome(
            ended,
            step,
            len(self._steps),
            sum(self._tokens[:step]),
            self._last(),
            self._best(),
            len(self.data.survey.held_out),
        )

    def _plan(self) -> list[list[Step]]:
        """The micro-batches of every step of the run."""
        run, survey = self.config.run, self.data.survey
        lengths = [survey.lengths[i] for i in survey.training]
        steps: list[list[Step]] = []
        for epoch in range(run.epochs):
            micro = [
                tuple(survey.training[i] for i in step)
                for step in plan_epoch(lengths, run.step_tokens, run.seed, epoch)
            ]
            steps += [micro[i : i + run.accumulation] for i in range(0, len(micro), run.accumulation)]
        return steps

    def _facts(self) -> dict[str, Any]:
        recipe = asdict(self.config)
        del recipe["run"]["checkpoint_minutes"]
        # What other things that train are set to is nothing to this run.
        recipe = {name: recipe[name] for name in ("run", "optimiser", "loss", self.trainee.name)}
        return {
            "trainee": self.trainee.name,
            "recipe": recipe,
            "data": self.data.survey.digest,
            "start_from": self._start,
        }

    def _resume(self) -> None:
        path = self.sitting.directory / LAST
        found = load_checkpoint(path)
        if found is None:
            return
        if (other := found.facts["trainee"]) != self.trainee.name:
            raise ValueError(f"{path} is of a run of `specdec train {other}`: give another output directory")
        # A run that was begun before this was told may go on.
        facts = {name: each for name, each in self._facts().items() if name in found.facts or name != "start_from"}
        check_same(found.facts, facts, path)
        self._history = list(found.history)
        self._ensure_head()
        self.trainee.module.load_state_dict(found.weights)
        self._optimiser.restore(dict(found.optimiser))
        self._first = found.step

    def _batches(self, reader: ThreadPoolExecutor, first: int) -> Iterator[list[Prepared]]:
        """The prepared micro-batches of the steps from `first` on, read ahead of their use."""
        wanted = ((step, i) for step in range(first, len(self._steps)) for i in range(len(self._steps[step])))
        waiting: list[Future[Prepared]] = []
        current: list[Prepared] = []
        step = first
        exhausted = False
        while True:
            while not exhausted and len(waiting) < AHEAD:
                place = next(wanted, None)
                exhausted = place is None
                if place is not None:
                    waiting.append(reader.submit(self._read, *place))
            if not waiting:
                return
            current.append(waiting.pop(0).result())
            if len(current) == len(self._steps[step]):
                yield current
                current, step = [], step + 1

    def _read(self, step: int, micro: int) -> Prepared:
        items = [read_item(self.data.samples, self.data.states, i) for i in self._steps[step][micro]]
        return self.trainee.prepare(items, (self.config.run.seed, step, micro))

    def _train_step(self, step: int, batches: Sequence[Prepared]) -> list[StepLoss]:
        loss = self.config.loss
        share = loss.acceptance_share if step >= loss.acceptance_from * len(self._steps) else 0.0
        losses = []
        for prepared in batches:
            part = self.trainee.loss(prepared, share)
            (part.total / len(batches)).backward()  # type: ignore[no-untyped-call]
            losses.append(StepLoss(part.total.detach(), part.divergences.detach(), part.num_rows))
        self._optimiser.step(step, len(self._steps))
        return losses

    def _read_held_out(self) -> list[HeldOut]:
        """Portions of the held-out samples, or, where none are to be, of those trained on."""
        run, survey = self.config.run, self.data.survey
        portions: list[list[int]] = [[]]
        total = size = 0
        for index in survey.held_out or survey.training:
            answer = survey.lengths[index] - self.data.samples[index].num_prompt_tokens
            if total and total + answer > run.held_out_tokens:
                break
            if portions[-1] and size + survey.lengths[index] > run.step_tokens:
                portions.append([])
                size = 0
            portions[-1].append(index)
            total, size = total + answer, size + survey.lengths[index]
        read = self.data.samples, self.data.states
        return [self.trainee.prepare_held_out([read_item(*read, i) for i in portion]) for portion in portions]

    def _look(self, step: int, losses: Sequence[StepLoss], held_out: Sequence[HeldOut]) -> None:
        """Measure the averaged weights; keep them where they are the best so far."""
        best = self._best()
        self._optimiser.swap_averages()
        found = acceptance([self.trainee.measure(portion) for portion in held_out])
        self._history.append(
            {
                "step": step,
                "tokens": sum(self._tokens[:step]),
                "divergences": _mean_divergences(losses),
                "conditional": list(found.conditional),
                "at_temperature_1": found.at_temperature_1,
                "mean_length": found.mean_length,
            }
        )
        if best is None or found.mean_length > best.mean_length:
            self._save(step, BEST)
            self.trainee.write(self.sitting.directory / HEAD)
        self._optimiser.swap_averages()
        write_text(self.sitting.directory / CURVE, learning_curve(self._history))

    def _ensure_head(self) -> None:
        """Write the best head again if somebody took it away."""
        directory = self.sitting.directory
        if not self._history or (directory / HEAD).exists():
            return
        best = load_checkpoint(directory / BEST)
        if best is None:
            raise ValueError(f"{directory} has lost {HEAD} and {BEST}: train into another directory")
        self.trainee.module.load_state_dict(best.weights)
        self.trainee.write(directory / HEAD)

    def _save(self, step: int, name: str) -> None:
        checkpoint = Checkpoint(
            step,
            self.trainee.module.state_dict(),
            self._optimiser.state() if name == LAST else {},
            self._history,
            self._facts(),
        )
        save_checkpoint(self.sitting.directory / name, checkpoint, self._provenance(step))

    def _provenance(self, step: int) -> dict[str, Any]:
        return provenance(
            command=self.sitting.command,
            config=self.config,
            target=self._target,
            data={**self.data.origin, "sha256_of_tokens": self.data.survey.digest},
            progress={
                "step": step,
                "num_steps": len(self._steps),
                "tokens": sum(self._tokens[:step]),
                "unique_tokens": sum(self.data.survey.lengths[i] for i in self.data.survey.training),
                "unique_answer_tokens": self.data.survey.num_answer_tokens,
                "held_out": self._history[-1] if self._history else None,
            },
        )

    def _report(self, step: int, losses: Sequence[StepLoss], started: float) -> None:
        seconds = max(1e-9, time.monotonic() - started)
        self.sitting.tell(
            Progress(
                step=step,
                num_steps=len(self._steps),
                tokens=sum(self._tokens[:step]),
                loss=sum(float(each.total) for each in losses) / len(losses),
                divergences=tuple(_mean_divergences(losses)),
                tokens_per_second=sum(self._tokens[self._first : step]) / seconds,
                acceptance=self._last(),
            )
        )

    def _last(self) -> Acceptance | None:
        return _look_of(self._history[-1]) if self._history else None

    def _best(self) -> Acceptance | None:
        best = max(self._history, key=lambda look: float(look["mean_length"]), default=None)
        return None if best is None else _look_of(best)


def _look_of(look: Mapping[str, Any]) -> Acceptance:
    return Acceptance(tuple(look["conditional"]), look["at_temperature_1"])


def _mean_divergences(losses: Sequence[StepLoss]) -> list[float]:
    return (sum(each.divergences for each in losses) / len(losses)).tolist()  # type: ignore[union-attr]
