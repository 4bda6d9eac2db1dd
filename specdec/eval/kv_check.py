"""The KV check: after rejections, preemptions and prefix hits, whatever counts as computed is what it should be.

It runs prompts in engines with too little memory for all of them, without and with the prefix cache, and compares every
sequence's cached state, as it was just before the sequence lost its blocks, with a fresh computation. On the way it
sees that each draft is verified where it was proposed for.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence as Many
from dataclasses import dataclass, field, replace

import torch

from specdec.config import EngineConfig
from specdec.core.sequence import Sequence
from specdec.engine import Engine
from specdec.eval.checks import Check
from specdec.eval.drift import TOLERANCE
from specdec.eval.driving import Job, Watch, drive, errors, plural
from specdec.eval.reader import BuildEngine, Text
from specdec.eval.snapshots import TARGET, Difference, Snapshot, compare, poison, recompute, take
from specdec.eval.witness import Witness, witnessed
from specdec.types import RequestOutput, SamplingParams, SpeculationParams

LEAST_SEQUENCES = 4
LEAST_TOKENS = 16
"""Of an answer."""
SECOND_TOKENS = 4
"""Tokens of the answers that begin with prefix hits."""
KEPT = 4
"""Snapshots of a sequence that are compared: the first ones, and the last."""


BROKEN_STEPS = (6,)
"""After so many steps of an engine the next is broken off: every sequence is preempted, and starts again at once."""


@dataclass
class _Sample:
    """A sequence and what was relied on, each time it lost its blocks."""

    sequence: Sequence
    prompt: int
    latest: Snapshot | None = None
    kept: list[Snapshot] = field(default_factory=list)

    def lose(self) -> None:
        """The sequence has no blocks any more."""
        if self.latest is not None:
            self.kept[KEPT - 1 :] = [self.latest]
            self.latest = None


def answer_length(config: EngineConfig, max_model_len: int) -> int:
    """Tokens of an answer: another block for every sequence, for all of which there is no room."""
    return min(max(LEAST_TOKENS, config.block_size + SECOND_TOKENS), max_model_len // 2)


@dataclass
class _Tally:
    """What all runs together did and found."""

    num_rejections: int = 0
    num_whole: int = 0
    num_verified: int = 0
    num_preemptions: int = 0
    num_hit_tokens: int = 0
    num_positions: dict[str, int] = field(default_factory=dict)
    worst: dict[str, Difference] = field(default_factory=dict)
    faults: dict[str, list[str]] = field(default_factory=dict)
    stale: dict[str, None] = field(default_factory=dict)
    errors: dict[str, None] = field(default_factory=dict)


class KVCheck:
    """Checks engines of `config` on prompts that are drafted for; `checks` and `answers` say what came out."""

    def __init__(
        self, build: BuildEngine, config: EngineConfig, prompts: Many[Text], params: SamplingParams, watch: Watch
    ) -> None:
        """Prompts leave room for an answer, `params.max_tokens`, and two tokens more."""
        assert params.max_tokens is not None
        self._build = build
        self._config = config
        self._method = config.speculative[0].method
        self._longest_draft = config.speculative[0].num_speculative_tokens
        self._prompts = prompts
        self._num_tokens = params.max_tokens
        self.params = replace(params, ignore_eos=True, detokenize=False)
        # Parallel samples of a prompt that ends inside a block copy that block.
        self._forking = next((i for i, own in enumerate(prompts) if (len(own) - 1) % config.block_size), 0)
        self._watch = watch
        self._tally = _Tally()
        self._allowed = self._allowed_of_target = 0.0
        self.answers: list[list[int]] = []
        """To the prompts, in order: the first samples of the first engine."""

    def run(self) -> None:
        """Engines without and with a prefix cache, one after the other."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a proposer's failures are faults here, and told as such
            for caching in (False, True) if self._config.enable_prefix_caching else (False,):
                engine = self._build(self._small(caching))
                self._allowed = TOLERANCE[engine.runner.kv.layout.dtype]
                # Native kernels give a row of the target the same bits whoever shares its step.
                self._allowed_of_target = 0.0 if engine.runner.kernels.own_threads else self._allowed
                poison(engine)
                with witnessed(engine) as witness:
                    found = self._run(engine, witness, caching)
                self._count(engine, witness)
                self._compare(found)

    def _small(self, caching: bool) -> EngineConfig:
        """Room for every prompt, and for the whole of any one sequence, but not for all."""
        size = self._config.block_size
        lengths = [len(job.token_ids) for job in self._jobs()]
        forks = sum(job.params.n - 1 for job in self._jobs())
        whole = max(-(-(length + self._num_tokens + self._longest_draft + 1) // size) for length in lengths)
        room = max(whole + 1, sum(-(-(length + 1) // size) for length in lengths) + forks + 1)
        seqs = min(self._config.max_num_seqs, len(lengths) + forks)
        budget = max(2 * size + seqs * (self._longest_draft + 1), 1 + max(lengths) // 2)
        return replace(
            self._config,
            kv_cache_tokens=room * size,
            enable_prefix_caching=caching,
            max_num_seqs=seqs,
            max_num_batched_tokens=min(self._config.max_num_batched_tokens, budget),
        )

    def _jobs(self, max_tokens: int | None = None) -> list[Job]:
        """The prompts, some more than once; every other one has drafts of one token, which are often accepted whole."""
        params = self.params if max_tokens is None else replace(self.params, max_tokens=max_tokens)
        count = max(len(self._prompts), LEAST_SEQUENCES)
        jobs = []
        for number in range(count):
            prompt, copy = self._prompts[number % len(self._prompts)], number // len(self._prompts)
            jobs.append(
                Job(
                    prompt,
                    replace(params, n=2) if number == self._forking and not params.is_greedy else params,
                    SpeculationParams(self._method, min(1, self._longest_draft) if number % 2 else None),
                    f"copy {copy}" if copy else None,
                )
            )
        return jobs

    def _run(self, engine: Engine, witness: Witness, caching: bool) -> list[_Sample]:
        """Every prompt, and with a prefix cache every prompt once more; the samples with what was relied on."""
        found: dict[Sequence, _Sample] = {}
        label = f"KV, {'with' if caching else 'without'} a prefix cache"
        num_steps = 0

        def after_step() -> None:
            nonlocal num_steps
            num_steps += 1
            witness.breaks_off = num_steps in BROKEN_STEPS
            scheduler = engine.scheduler
            witness.settle(scheduler.waiting)
            for sequence in scheduler.running:
                sample = found.setdefault(sequence, _Sample(sequence, int(sequence.request.request_id)))
                if sample.latest is not None and sample.latest.num_preemptions != sequence.num_preemptions:
                    sample.lose()
                sample.latest = take(engine, sequence)

        outputs = drive(engine, self._jobs(), self._watch, label, after_step)
        if not self.answers:
            self.answers = [output.outputs[0].token_ids for output in outputs[: len(self._prompts)]]
        if caching:
            outputs += drive(engine, self._jobs(SECOND_TOKENS), self._watch, label, after_step)
        self._add_errors(outputs, witness)
        for sample in found.values():
            sample.lose()
        return list(found.values())

    def _add_errors(self, outputs: list[RequestOutput], witness: Witness) -> None:
        self._tally.errors.update(dict.fromkeys([*errors(outputs), *witness.proposer_errors]))

    def _count(self, engine: Engine, witness: Witness) -> None:
        tally = self._tally
        tally.num_verified += len(witness.verified)
        tally.num_rejections += sum(each.num_accepted < each.depth for each in witness.verified)
        tally.num_whole += sum(each.is_bonus for each in witness.verified)
        tally.num_preemptions += engine.scheduler.num_preemptions
        tally.num_hit_tokens += engine.scheduler.num_prefix_hits
        tally.stale.update(witness.faults)

    def _compare(self, found: list[_Sample]) -> None:
        """Every snapshot against a fresh computation of its sequence's tokens."""
        longest = max((sample.sequence.num_tokens for sample in found), default=0)
        engine = self._build(self._fresh(longest))
        for number, sample in enumerate(found, 1):
            self._watch.check(f"KV: recomputing sequence {number} of {len(found)}")
            count = max((snapshot.count for snapshot in sample.kept), default=0)
            if not count:
                continue
            fresh = recompute(engine, sample.sequence.token_ids[:count], sample.sequence.request.draft_kv)
            if isinstance(fresh, str):
                self._tally.errors[f"a fresh computation failed: {fresh}"] = None
                continue
            for snapshot in sample.kept:
                for difference in compare(snapshot, fresh):
                    self._judge(sample, snapshot, difference)
                for entries, other in zip(snapshot.entries, fresh.entries, strict=True):
                    done = self._tally.num_positions.get(entries.owner, 0)
                    self._tally.num_positions[entries.owner] = done + min(entries.count, other.count)

    def _fresh(self, longest: int) -> EngineConfig:
        size = self._config.block_size
        room = -(-(longest + self._longest_draft + 16) // size) + 1
        return replace(
            self._config,
            kv_cache_tokens=room * size,
            enable_prefix_caching=False,
            max_num_seqs=1,
            max_num_batched_tokens=longest + self._longest_draft + 1,
        )

    def _allowance(self, owner: str) -> float:
        return self._allowed_of_target if owner == TARGET else self._allowed

    def _judge(self, sample: _Sample, snapshot: Snapshot, found: Difference) -> None:
        worst = self._tally.worst.get(found.owner)
        if worst is None or found.relative > worst.relative:
            self._tally.worst[found.owner] = found
        if found.relative <= self._allowance(found.owner):
            return
        how = f"differs by {found.relative:.2g} from a fresh computation"
        if found.relative == torch.inf:
            how = "was never computed"
        source = _source(sample.sequence, found.position)
        times = snapshot.num_preemptions
        after = f", after {plural(times, 'preemption')}" if times else ""
        self._tally.faults.setdefault(found.owner, []).append(
            f"{found.owner}'s KV of position {found.position} ({source}, prompt {sample.prompt + 1}{after}) counts as "
            f"computed and {how} (layer {found.layer}, {found.what})"
        )

    def checks(self) -> list[Check]:
        """The target's KV, the proposer's, and the drafts' positions."""
        tally = self._tally
        happened = (
            f"{plural(tally.num_rejections, 'rejection')}, {plural(tally.num_whole, 'whole draft')}, "
            f"{plural(tally.num_preemptions, 'preemption')}, {plural(tally.num_hit_tokens, 'prefix-hit token')}"
        )
        owners = [TARGET, *(owner for owner in tally.num_positions if owner != TARGET)]
        found = [self._kv_check(owner, happened) for owner in owners]
        summary = f"{plural(tally.num_verified, 'draft')} verified where they were proposed for"
        figures = {"num_drafts": tally.num_verified}
        found.append(Check.of("draft positions", list(tally.stale), tally.num_verified, summary, figures))
        if tally.errors:
            found.append(Check.of("requests", list(tally.errors), 1, plural(len(tally.errors), "failure"), {}))
        return found

    def _kv_check(self, owner: str, happened: str) -> Check:
        tally = self._tally
        positions, worst = tally.num_positions.get(owner, 0), tally.worst.get(owner)
        largest = 0.0 if worst is None else worst.relative
        summary = f"{plural(positions, 'position')} after {happened}: largest difference {largest:.2g}"
        if worst is not None and largest:
            summary += f" (position {worst.position}, layer {worst.layer}, {worst.what})"
        summary += f", allowed {self._allowance(owner):g}"
        figures = {
            "num_positions": positions,
            "num_rejections": tally.num_rejections,
            "num_whole_drafts": tally.num_whole,
            "num_preemptions": tally.num_preemptions,
            "num_prefix_hit_tokens": tally.num_hit_tokens,
            "largest_relative_difference": largest,
            "allowed": self._allowance(owner),
        }
        name, missing = ("target KV", self._missing()) if owner == TARGET else ("proposer KV", ())
        notes = [f"nothing is known of the state after {what}: there was none" for what in missing]
        faults = tally.faults.get(owner, [])
        return Check.of(name, faults, positions, summary, figures, notes=notes, unseen=missing)

    def _missing(self) -> tuple[str, ...]:
        """What did not happen, and so was not checked."""
        tally = self._tally
        counts = {
            "a rejection": tally.num_rejections,
            "a draft that was accepted whole": tally.num_whole,
            "a preemption": tally.num_preemptions,
            "a prefix hit": tally.num_hit_tokens if self._config.enable_prefix_caching else 1,
        }
        return tuple(name for name, count in counts.items() if not count)


def _source(sequence: Sequence, position: int) -> str:
    """Where the token at a position came from."""
    if position < sequence.num_prompt_tokens:
        return "prompt token"
    return f"{sequence.provenance[position - sequence.num_prompt_tokens]} token"
