"""Targets, tokenizers and proposers small enough to know everything about.

`ScriptedModel` is a target whose logits are a function of the token prefix alone, and which learns that prefix only
through the paged KV cache: it stores each token's id as the "key" of its slot and reads the row's visible entries back.
So a wrong slot, block table, mask or rollback changes what it says.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Many

import numpy as np
import torch
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from specdec.config import EngineConfig, SpeculativeConfig
from specdec.core.sequence import Sequence
from specdec.engine import Engine, TargetFacts
from specdec.engine.build import assemble
from specdec.kernels.reference import visible_entries
from specdec.proposers.base import NOTHING, DraftModel, ProposalInput, Proposer
from specdec.step.batch import Batch
from specdec.step.kv_cache import KVCache, KVLayout
from specdec.tokenizer import Tokenizer
from specdec.types import Draft, RequestOutput, SamplingParams, SpeculationParams

Script = Callable[[tuple[int, ...]], Many[float]]
"""Logits as a function of the prefix."""

EOS = 256
BYTE_VOCABULARY = 258


def byte_tokenizer() -> Tokenizer:
    """Ids 0 to 255 are bytes, 256 ends a sequence, 257 begins one."""
    alphabet = _byte_alphabet()
    vocabulary = {alphabet[i]: i for i in range(256)} | {"<eos>": EOS, "<bos>": EOS + 1}
    backend = Backend(models.BPE(vocabulary, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<eos>", "<bos>"])
    return Tokenizer(backend, eos_token_ids=(EOS,), bos_token_id=EOS + 1, chat_template=None)


def _byte_alphabet() -> list[str]:
    """The printable stand-ins of byte-level BPE (the GPT-2 table)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    stand_in = {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}
    return [stand_in[b] for b in range(256)]


def random_script(vocab_size: int, *, salt: int = 0, order: int = 3, spread: float = 2.0) -> Script:
    """Normal logits, a fixed function of the last `order` tokens."""

    def script(prefix: tuple[int, ...]) -> np.ndarray:
        digest = hashlib.sha256(repr((salt, prefix[-order:])).encode()).digest()
        return np.random.default_rng(int.from_bytes(digest[:8], "little")).normal(0.0, spread, vocab_size)

    return script


def looping_script(vocab_size: int, period: int, *, salt: int = 0) -> Script:
    """Mostly a loop of `period` tokens, so that copying drafts are often right, and sometimes wrong."""
    noise = random_script(vocab_size, salt=salt)

    def script(prefix: tuple[int, ...]) -> np.ndarray:
        logits = noise(prefix).copy()
        logits[(len(prefix) * 7 + salt) % period % vocab_size] += 5.0
        return logits

    return script


class ScriptedModel:
    """A target over a script; see the module's text. KV: one layer, one head, one entry; keys hold token ids."""

    def __init__(self, script: Script, vocab_size: int, *, max_model_len: int = 256) -> None:
        self.script = script
        self.vocab_size = vocab_size
        self.max_model_len = max_model_len
        self.num_computed = 0
        """Token positions computed over all steps."""
        self.step_sizes: list[int] = []
        self._known: dict[tuple[int, ...], torch.Tensor] = {}

    def kv_layout(self) -> KVLayout:
        return KVLayout(num_layers=1, num_kv_heads=1, head_dim=1, dtype=torch.float64)

    def logits(self, prefix: tuple[int, ...]) -> torch.Tensor:
        """The script's logits, float64 [vocab]."""
        if prefix not in self._known:
            self._known[prefix] = torch.tensor(np.asarray(self.script(prefix)), dtype=torch.float64)
        return self._known[prefix]

    def forward(self, batch: Batch, kv: KVCache) -> torch.Tensor:
        self.num_computed += batch.num_tokens
        self.step_sizes.append(batch.num_tokens)
        kv.keys[0].view(-1)[batch.slot_mapping] = batch.token_ids.double()
        hidden = torch.full((batch.num_tokens, self.vocab_size), float("nan"), dtype=torch.float64)
        wanted = {int(i) for i in batch.logits_indices}
        wants_all = any(row.num_prompt_logits for row in batch.rows)
        starts = batch.query_start_loc.tolist()
        for b, length in enumerate(batch.seq_lens.tolist()):
            rows = slice(starts[b], starts[b + 1])
            entries = kv.keys[0][batch.block_tables[b].long()].flatten()[:length]
            masks = None if batch.ancestor_masks is None else batch.ancestor_masks[rows]
            visible = visible_entries(batch.positions[rows], masks, length, int(batch.committed_lens[b]), None)
            for i in range(starts[b], starts[b + 1]):
                if i in wanted or wants_all:
                    prefix = tuple(int(t) for t in entries[visible[i - starts[b]]])
                    assert len(prefix) == int(batch.positions[i]) + 1, "a row does not see its whole prefix"
                    hidden[i] = self.logits(prefix)
        return hidden

    def forward_with_aux(
        self, batch: Batch, kv: KVCache, aux_layers: Many[int]
    ) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        hidden = self.forward(batch, kv)
        return hidden, dict.fromkeys(aux_layers, hidden)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden


class OracleProposer:
    """Knows the greedy continuation; right for `correct` tokens of each draft, then wrong."""

    kv_caches = ()
    wants = NOTHING

    def __init__(self, model: ScriptedModel, correct: int) -> None:
        self.model, self.correct = model, correct

    def propose(self, sequences: Many[Sequence], inp: ProposalInput) -> list[Draft]:
        return [self._draft(tuple(s.token_ids), n) for s, n in zip(sequences, inp.lengths, strict=True)]

    def _draft(self, prefix: tuple[int, ...], length: int) -> Draft:
        tokens: list[int] = []
        for i in range(length):
            best = int(self.model.logits(prefix + tuple(tokens)).argmax())
            tokens.append(best if i < self.correct else (best + 1) % self.model.vocab_size)
        return Draft(tuple(tokens), proposer="oracle")

    def forget(self, sequence: Sequence) -> None:
        pass


class RandomProposer:
    """Drafts noise: tokens that depend on the position and a salt, and on nothing that is true."""

    kv_caches = ()
    wants = NOTHING

    def __init__(self, vocab_size: int, salt: int = 0) -> None:
        self.vocab_size, self.salt = vocab_size, salt

    def propose(self, sequences: Many[Sequence], inp: ProposalInput) -> list[Draft]:
        return [self._draft(s, n) for s, n in zip(sequences, inp.lengths, strict=True)]

    def _draft(self, sequence: Sequence, length: int) -> Draft:
        rng = np.random.default_rng([self.salt, sequence.num_tokens, sequence.index])
        length = int(rng.integers(0, length + 1))
        return Draft(tuple(int(t) for t in rng.integers(0, self.vocab_size, length)), proposer="random")

    def forget(self, sequence: Sequence) -> None:
        pass


class SelfProposer:
    """The target as its own draft model: samples from the target's own law and reports it (`draft_probs`)."""

    kv_caches = ()
    wants = NOTHING

    def __init__(self, model: ScriptedModel) -> None:
        self.model = model

    def propose(self, sequences: Many[Sequence], inp: ProposalInput) -> list[Draft]:
        return [self._draft(s, n) for s, n in zip(sequences, inp.lengths, strict=True)]

    def _draft(self, sequence: Sequence, length: int) -> Draft:
        temperature = sequence.request.params.temperature
        rng = np.random.default_rng([sequence.request.seed, sequence.num_tokens])
        tokens: list[int] = []
        rows = []
        for _ in range(length):
            logits = self.model.logits((*sequence.token_ids, *tokens))
            if sequence.request.params.is_greedy:
                tokens.append(int(logits.argmax()))
                continue
            rows.append(torch.softmax(logits / temperature, dim=-1))
            tokens.append(int(rng.choice(self.model.vocab_size, p=rows[-1].numpy())))
        return Draft(tuple(tokens), draft_probs=torch.stack(rows) if rows else None, proposer="self")

    def forget(self, sequence: Sequence) -> None:
        pass


def make_engine(
    model: ScriptedModel,
    *,
    proposer: str = "none",
    k: int = 4,
    settings: Mapping[str, object] | None = None,
    draft_model: ScriptedModel | None = None,
    proposers: Mapping[str, Proposer] | None = None,
    tokenizer: Tokenizer | None = None,
    eos: Many[int] = (),
    kv_cache_tokens: int = 4096,
    block_size: int = 4,
    max_num_seqs: int = 16,
    max_num_batched_tokens: int = 64,
    enable_prefix_caching: bool = True,
    verifier: str = "auto",
    seed: int = 0,
) -> Engine:
    """An engine around a scripted model whose KV starts as NaN, and its draft's too."""
    methods = dict.fromkeys((proposer, *(proposers or ())))
    config = EngineConfig(
        model="scripted",
        block_size=block_size,
        kv_cache_tokens=kv_cache_tokens,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        enable_prefix_caching=enable_prefix_caching,
        verifier=verifier,
        seed=seed,
        speculative=tuple(
            SpeculativeConfig(method, k, (settings or {}) if method == proposer else {}) for method in methods
        ),
    )
    facts = TargetFacts(model.vocab_size, model.max_model_len, frozenset(eos))
    drafts = {}
    if draft_model is not None:
        drafts[proposer] = DraftModel(draft_model, draft_model.vocab_size, draft_model.max_model_len)
    engine = assemble(config, model, facts, tokenizer, draft_models=drafts, proposers=proposers)
    drafting = [cache for loaded in engine.runner.proposers.values() for cache in loaded.kv_caches]
    for kv in (engine.runner.kv, *drafting):
        for cache in (*kv.keys, *kv.values):
            cache.fill_(float("nan"))
    return engine


def run(engine: Engine, *, check: bool = True) -> dict[str, RequestOutput]:
    """Step until everything is done; the last output of each request."""
    finished: dict[str, RequestOutput] = {}
    for _ in range(100_000):
        if not engine.has_unfinished_requests():
            return finished
        for output in engine.step():
            if output.finished:
                finished[output.request_id] = output
        if check:
            engine.scheduler.check_integrity()
    raise AssertionError("the engine does not come to an end")


def generate(
    engine: Engine,
    prompts: Many[Many[int] | str],
    params: SamplingParams | Many[SamplingParams],
    speculation: SpeculationParams | None = None,
) -> list[RequestOutput]:
    """Run prompts in one batch; outputs in order."""
    listed = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
    for i, (prompt, each) in enumerate(zip(prompts, listed, strict=True)):
        engine.add_request(f"r{i}", prompt, each, speculation=speculation)
    outputs = run(engine)
    return [outputs[f"r{i}"] for i in range(len(prompts))]


def tokens(outputs: Many[RequestOutput]) -> list[list[list[int]]]:
    """The token ids of every sample of every output."""
    return [[sample.token_ids for sample in output.outputs] for output in outputs]
