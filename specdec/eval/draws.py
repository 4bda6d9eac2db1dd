"""Many short samples of the same texts through the engine, and the target's own law of each of their tokens.

The samples are what the engine emits, with every draft that was verified on the way. The laws come from plain decoding
of the emitted texts (`specdec.eval.reader`), each text once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from specdec.config import EngineConfig
from specdec.engine import Engine
from specdec.eval.driving import Job, Watch, drive, errors
from specdec.eval.places import place
from specdec.eval.reader import BuildEngine, Reader, Text
from specdec.eval.witness import Key, Verification, witnessed
from specdec.kernels import reference
from specdec.sampling.emission import law
from specdec.sampling.process import SamplingRow, process_logits
from specdec.types import SamplingParams

SAMPLES_A_REQUEST = 64


@dataclass(frozen=True)
class Draw:
    """One sample: what it goes on from, its tokens, and the drafts that were verified for it."""

    context: Text
    token_ids: tuple[int, ...]
    verified: tuple[Verification, ...]

    def before(self, index: int) -> Text:
        """What the token of this index goes on from."""
        return (*self.context, *self.token_ids[:index])


@dataclass(frozen=True)
class Drawn:
    """All samples of a run, and what failed on the way."""

    draws: tuple[Draw, ...]
    faults: tuple[str, ...] = ()


def draw(
    engine: Engine,
    contexts: Many[Text],
    params: SamplingParams,
    count: int,
    watch: Watch,
    seed: int,
    *,
    chain_bytes: int = 0,
) -> Drawn:
    """At least `count` samples in all, as many of each context; `params` says how long and how hot. Of drafts that are
    chains with a law, the first of `chain_bytes` bytes are kept whole."""
    each = -(-count // len(contexts))
    parts = [min(SAMPLES_A_REQUEST, each - first) for first in range(0, each, SAMPLES_A_REQUEST)]
    # A seed of its own for each: equal seeds at equal positions would draw alike.
    jobs = [
        Job(context, replace(params, n=part, seed=seed + number * len(contexts) + place))
        for number, part in enumerate(parts)
        for place, context in enumerate(contexts)
    ]
    draws: list[Draw] = []
    faults: dict[str, None] = {}
    with witnessed(engine, seed, chain_bytes=chain_bytes) as witness:
        for first in range(0, len(jobs), len(contexts)):
            label = f"drawing: {len(draws):,} of {each * len(contexts):,} samples done, now"
            batch = jobs[first : first + len(contexts)]
            outputs = drive(engine, batch, watch, label, lambda: witness.settle(engine.scheduler.waiting))
            faults.update(dict.fromkeys([*errors(outputs), *witness.proposer_errors, *witness.faults]))
            verified: dict[Key, list[Verification]] = defaultdict(list)
            for verification in witness.verified:
                verified[verification.key].append(verification)
            witness.verified.clear()
            for job, output in zip(batch, outputs, strict=True):
                for sample in output.outputs:
                    own = tuple(verified[output.request_id, sample.index])
                    draws.append(Draw(job.token_ids, tuple(sample.token_ids), own))
    return Drawn(tuple(draws), tuple(faults))


@dataclass
class Look:
    """A token to look up in the target's law after a text, and what is found: its probability and its place, also in
    the law without the tokens that were tried and rejected."""

    token: int
    tried: tuple[int, ...] = ()
    prob: float = 0.0
    place: float = 1.0
    place_without_tried: float = 1.0


@dataclass
class Laws:
    """Looks by the text that they are about, and who else is to be shown the law after a text."""

    params: SamplingParams
    coins: np.random.Generator
    looks: dict[Text, list[Look]] = field(default_factory=lambda: defaultdict(list))
    shown: dict[Text, list[Callable[[torch.Tensor], None]]] = field(default_factory=lambda: defaultdict(list))

    def ask(self, text: Text, token: int, tried: tuple[int, ...] = ()) -> Look:
        """A look that `read` fills in."""
        look = Look(token, tried)
        self.looks[text].append(look)
        return look

    def show(self, text: Text, see: Callable[[torch.Tensor], None]) -> None:
        """Let `see` have the law, float64 [V], when it is read. A text comes after those that it begins with."""
        self.shown[text].append(see)

    def read(self, build: BuildEngine, config: EngineConfig, watch: Watch) -> None:
        """Compute all laws."""
        Reader(build, config, list(self.looks | self.shown)).read(self._fill, watch, "reading the target's laws")

    def _fill(self, text: Text, logits: torch.Tensor) -> None:
        row = SamplingRow(self.params, 0, 0, text, len(text))
        own = law(process_logits(logits[None], [row], reference)[0])
        for see in self.shown.get(text, ()):
            see(own)
        for look in self.looks.get(text, ()):
            coin = self.coins.random()
            look.prob = float(own[look.token])
            look.place = place(own, look.token, coin)
            look.place_without_tried = place(own, look.token, coin, look.tried) if look.tried else look.place
