"""Sees every draft that an engine proposes and verifies, from outside: it stands before the target and the proposers.

It tells whether each draft was verified at the very position that it was proposed for, and keeps of each what the
tests of laws need. It changes nothing, unless it is asked to break a step off.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Many
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from specdec.core.scheduler import ScheduledRow
from specdec.core.sequence import Sequence
from specdec.engine import Engine
from specdec.eval.driving import BrokenOff
from specdec.eval.places import place
from specdec.proposers.base import ProposalInput, Proposer, Wants
from specdec.proposers.outside import one_line
from specdec.step.batch import Batch
from specdec.step.kv_cache import KVCache, KVLayout
from specdec.step.model import Computed, Model, compute
from specdec.types import BONUS, RECOVERED, Draft

Key = tuple[str, int]
"""Request id and sample index."""


@dataclass(frozen=True)
class Trial:
    """What a draft held for one position that verification reached: without a law all siblings, else the first."""

    tokens: tuple[int, ...]
    draft_prob: float | None
    """The first sibling under its reported law, if there is one."""
    is_kept: bool


@dataclass(frozen=True)
class Chain:
    """A draft that was verified, with all of the law that it was drawn from."""

    token_ids: tuple[int, ...]
    draft_probs: tuple[float, ...]
    """Each token under its reported law."""
    later_probs: torch.Tensor
    """The laws of the tokens after the first: float32 [k - 1, V], on the CPU."""

    @staticmethod
    def of(draft: Draft) -> Chain:
        """A copy of what a chain with a law holds."""
        probs = draft.draft_probs
        own = tuple(float(row[token]) for row, token in zip(probs, draft.token_ids, strict=True))
        return Chain(draft.token_ids, own, probs[1:].to("cpu", torch.float32, copy=True))


@dataclass(frozen=True)
class Verification:
    """What became of one draft."""

    key: Key
    index: int
    """The output token that the draft begins with."""
    depth: int
    num_accepted: int
    token_ids: tuple[int, ...]
    """What was committed: the accepted tokens, then one more unless the sample ended with them."""
    tried: tuple[int, ...]
    """The drafted tokens that were rejected where the last token stands; none after a whole draft."""
    trials: tuple[Trial, ...]
    """One for each position from `index` on that was reached and drafted for."""
    draft_prob: float | None
    """The recovered token under the law that was reported for what was rejected there, if there are both."""
    draft_places: tuple[float, ...]
    """The place of each drafted token in its reported law."""
    chain: Chain | None = None
    """The draft itself, where it is one and there was room to keep it."""

    @property
    def is_cut(self) -> bool:
        """Whether the sample ended inside the accepted tokens."""
        return len(self.token_ids) == self.num_accepted

    @property
    def is_recovered(self) -> bool:
        return not self.is_cut and bool(self.tried)

    @property
    def is_bonus(self) -> bool:
        return not self.is_cut and not self.tried


@dataclass(frozen=True)
class _Proposal:
    """A draft as it was made, and the state of its sequence then."""

    draft: Draft
    num_tokens: int
    num_preemptions: int


class Witness:
    """Use `witnessed`, and call `settle` after every step."""

    def __init__(self, seed: int = 0, *, chain_bytes: int = 0) -> None:
        """Keep the laws of chains until they are of `chain_bytes` bytes."""
        self.verified: list[Verification] = []
        self.faults: dict[str, None] = {}
        """What is wrong with when and where drafts were verified, a line each, in order."""
        self.proposer_errors: dict[str, None] = {}
        self.breaks_off = False
        """Whether the target's next step is to be broken off."""
        self._chain_bytes = chain_bytes
        self._coins = np.random.default_rng(seed)
        self._proposals: dict[Key, _Proposal] = {}
        self._pending: dict[Key, ScheduledRow] = {}

    def propose(self, sequences: Many[Sequence], drafts: Many[Draft | None]) -> None:
        """A proposer made these drafts."""
        for sequence, draft in zip(sequences, drafts, strict=True):
            if draft is not None:
                self._proposals[sequence.key] = _Proposal(draft, sequence.num_tokens, sequence.num_preemptions)

    def forget(self, sequence: Sequence) -> None:
        """A sequence has ended."""
        self._proposals.pop(sequence.key, None)

    def step(self, batch: Batch) -> None:
        """The target is given this batch."""
        if self.breaks_off:
            self.breaks_off = False
            raise BrokenOff
        for row in batch.rows:
            if row.num_draft_tokens:
                fault = self.stale(row)
                if fault is not None:
                    self.faults[fault] = None
                self._pending[row.sequence.key] = row

    def stale(self, row: ScheduledRow) -> str | None:
        """Why the row's draft is not the one that was proposed for its position, if it is not."""
        made, draft, position = self._proposals.get(row.sequence.key), row.draft, row.num_tokens
        if made is None:
            return f"stale draft: one that nobody proposed was verified at position {position}"
        if made.num_tokens != position:
            return f"stale draft: proposed for position {made.num_tokens}, verified at position {position}"
        if made.num_preemptions != row.sequence.num_preemptions:
            return f"stale draft: proposed before a preemption and verified after it, at position {position}"
        kept = made.draft.trimmed(len(draft))
        if (kept.token_ids, kept.parents) != (draft.token_ids, draft.parents):
            return f"stale draft: the tokens verified at position {position} are not those proposed for it"
        if not _same_law(kept.draft_probs, draft.draft_probs):
            return f"stale draft: the law verified at position {position} is not the one reported for it"
        return None

    def settle(self, waiting: Many[Sequence]) -> None:
        """A step is over. `waiting` sequences have no blocks, or no tokens of their own yet, so they hold no draft."""
        for sequence in waiting:
            if sequence.num_preemptions and len(sequence.draft):
                self.faults[
                    f"stale draft: a sequence preempted at position {sequence.num_tokens} keeps the "
                    f"{len(sequence.draft)} tokens proposed before"
                ] = None
        for row in self._pending.values():
            if row.sequence.error is None:
                self._settle(row)
        self._pending.clear()

    def _settle(self, row: ScheduledRow) -> None:
        """Keep what became of a row's draft; a token that counts as accepted and was not drafted is a fault."""
        sources = row.sequence.provenance[row.num_tokens - row.sequence.num_prompt_tokens :]
        num_accepted = sum(source not in (RECOVERED, BONUS) for source in sources)
        path = [-1]
        for position in range(row.num_tokens, row.num_tokens + num_accepted):
            token = row.sequence.token_ids[position]
            following = [child for child in row.draft.children(path[-1]) if row.draft.token_ids[child] == token]
            if not following:
                self.faults[f"token {token} at position {position} counts as accepted and was not drafted there"] = None
                return
            path.append(following[0])
        self.verified.append(self._verification(row, path, num_accepted))

    def _verification(self, row: ScheduledRow, path: Many[int], num_accepted: int) -> Verification:
        """Of a row whose accepted nodes are `path`, after -1 for the last committed token."""
        sequence, draft = row.sequence, row.draft
        index = row.num_tokens - sequence.num_prompt_tokens
        token_ids = sequence.token_ids[row.num_tokens :]
        tried = draft.children(path[-1])
        probs = draft.draft_probs
        is_cut = len(token_ids) == num_accepted
        is_recovered = bool(tried) and not is_cut
        reached = path[:-1] if is_cut else path  # a sample that ended did not ask what follows
        return Verification(
            key=sequence.key,
            index=index,
            depth=draft.depth,
            num_accepted=num_accepted,
            token_ids=tuple(token_ids),
            tried=tuple(draft.token_ids[child] for child in tried),
            trials=tuple(_trials(draft, reached, path[1:])),
            draft_prob=float(probs[tried[0], token_ids[-1]]) if probs is not None and is_recovered else None,
            draft_places=() if probs is None else tuple(self._draft_places(draft)),
            chain=self._chain(draft),
        )

    def _chain(self, draft: Draft) -> Chain | None:
        """What is kept is chosen by when it was drafted alone, and not by what it is or what became of it."""
        if draft.parents is not None or draft.draft_probs is None or self._chain_bytes <= 0:
            return None
        chain = Chain.of(draft)
        self._chain_bytes -= chain.later_probs.nbytes
        return chain

    def _draft_places(self, draft: Draft) -> Iterator[float]:
        """Siblings are drawn without replacement, each from what the earlier ones left."""
        for node, token in enumerate(draft.token_ids):
            parent = node - 1 if draft.parents is None else draft.parents[node]
            earlier = [draft.token_ids[child] for child in draft.children(parent) if child < node]
            yield place(draft.draft_probs[node].double(), token, self._coins.random(), earlier)


def _trials(draft: Draft, reached: Many[int], accepted: Many[int]) -> Iterator[Trial]:
    """At each node that was reached and has children, whether one was kept, or, with a law, the first."""
    for depth, node in enumerate(reached):
        children = draft.children(node)
        if not children:
            return
        kept = accepted[depth] if depth < len(accepted) else None
        if draft.draft_probs is None:
            yield Trial(tuple(draft.token_ids[child] for child in children), None, kept is not None)
        else:
            token = draft.token_ids[children[0]]
            yield Trial((token,), float(draft.draft_probs[children[0], token]), kept == children[0])


def _same_law(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.equal(one, other)


@contextmanager
def witnessed(engine: Engine, seed: int = 0, *, chain_bytes: int = 0) -> Iterator[Witness]:
    """A witness of what the engine does in the `with` block."""
    witness, runner = Witness(seed, chain_bytes=chain_bytes), engine.runner
    model, proposers = runner.model, dict(runner.proposers)
    runner.model = _SeenModel(model, witness)
    runner.proposers.update({name: _SeenProposer(inner, witness) for name, inner in proposers.items()})
    try:
        yield witness
    finally:
        runner.model = model
        runner.proposers.update(proposers)


class _SeenModel:
    """A target whose drafts are seen."""

    def __init__(self, inner: Model, witness: Witness) -> None:
        self._inner = inner
        self._witness = witness

    def forward(self, batch: Batch, kv: KVCache) -> torch.Tensor:
        self._witness.step(batch)
        return self._inner.forward(batch, kv)

    def forward_with_aux(
        self, batch: Batch, kv: KVCache, aux_layers: Many[int]
    ) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        self._witness.step(batch)
        return self._inner.forward_with_aux(batch, kv, aux_layers)

    def compute(self, batch: Batch, kv: KVCache, aux_layers: Many[int] = ()) -> Computed:
        """At once where the target computes at once: what is seen must be what serves."""
        self._witness.step(batch)
        return compute(self._inner, batch, kv, aux_layers)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._inner.compute_logits(hidden)

    def kv_layout(self) -> KVLayout:
        return self._inner.kv_layout()


class _SeenProposer:
    """A proposer whose drafts are seen, and whose failures."""

    def __init__(self, inner: Proposer, witness: Witness) -> None:
        self._inner = inner
        self._witness = witness
        self.hint = getattr(inner, "hint", None)

    @property
    def kv_caches(self) -> Many[KVCache]:
        return self._inner.kv_caches

    @property
    def wants(self) -> Wants:
        return self._inner.wants

    def propose(self, sequences: Many[Sequence], inp: ProposalInput) -> Many[Draft | None]:
        try:
            drafts = self._inner.propose(sequences, inp)
        except Exception as error:
            self._witness.proposer_errors[f"the proposer failed: {one_line(error)}"] = None
            raise
        asked = [(s, draft) for s, draft, length in zip(sequences, drafts, inp.lengths, strict=True) if length]
        self._witness.propose([sequence for sequence, _ in asked], [draft for _, draft in asked])
        return drafts

    def forget(self, sequence: Sequence) -> None:
        self._witness.forget(sequence)
        self._inner.forget(sequence)
