"""`auto` as it is verified: with its choices by chance, so that what is checked is whatever may be chosen."""

from __future__ import annotations

from collections import Counter

from specdec.config import EngineConfig
from specdec.core.control.chance import Chance
from specdec.core.control.explanation import Explanation
from specdec.core.control.types import PLAIN
from specdec.engine import Engine
from specdec.eval.checks import Check
from specdec.eval.driving import plural
from specdec.eval.reader import BuildEngine


class Chances:
    """Puts `Chance` in the place of engines' controllers, and tells what it chose in all of them."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._made: list[Chance] = []

    def take_over(self, engine: Engine) -> Engine:
        """The same engine. Each has choices of its own; one without `auto` is left as it is."""
        controller = engine.speculation.controller
        if controller is not None:
            self._made.append(Chance(controller.members, self._seed + len(self._made)))
            engine.speculation.controller = self._made[-1]
        return engine

    def builder(self, build: BuildEngine) -> BuildEngine:
        """Builds the same engines, taken over."""

        def build_taken(config: EngineConfig) -> Engine:
            return self.take_over(build(config))

        return build_taken

    def checks(self) -> list[Check]:
        """Which members had their turn; nothing without `auto`."""
        return [_check([each.explain() for each in self._made], self._seed)] if self._made else []


def _check(explanations: list[Explanation], seed: int) -> Check:
    drafts: Counter[str] = Counter()
    accepted: Counter[str] = Counter()
    chosen: Counter[tuple[str, int]] = Counter()
    names = list(dict.fromkeys(account.name for own in explanations for account in own.proposers))
    for own in explanations:
        chosen.update(own.chosen)
        for account in own.proposers:
            drafts[account.name] += account.tried[0] if account.tried else 0
            accepted[account.name] += sum(account.kept)
    lengths = {name: sorted(length for who, length in chosen if who == name) for name in names}
    told = [
        f"{name} {plural(drafts[name], 'draft')} verified and {plural(accepted[name], 'token')} accepted"
        + (f", {lengths[name][0]} to {lengths[name][-1]} asked for" if lengths[name] else "")
        for name in names
    ]
    plain = chosen[PLAIN, 0]
    summary = f"by chance (seed {seed}), not by what pays: {'; '.join(told)}; none {plural(plain, 'time')}"
    figures = {
        "seed": seed,
        "num_plain": plain,
        "num_drafts": {name: drafts[name] for name in names},
        "num_accepted_tokens": {name: accepted[name] for name in names},
        "lengths": lengths,
    }
    unseen = [f"a draft of {name}" for name in names if not drafts[name]]
    return Check.of("choices", [], sum(drafts.values()), summary, figures, unseen=unseen)
