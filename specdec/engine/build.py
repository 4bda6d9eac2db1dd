"""From a configuration to a running engine: load what it names, and share out the memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch

from specdec.config import AUTO, EngineConfig, SpeculativeConfig, cache_dir
from specdec.core.start_up import StartUp
from specdec.engine.built_in_heads import ChosenHeads, choose_heads
from specdec.engine.checkpoints import open_model
from specdec.engine.draft_models import open_draft_models
from specdec.engine.loop import Engine
from specdec.engine.requests import TargetFacts, draft_lengths
from specdec.kernels import Kernels, choose_backend
from specdec.kernels.reference import QUERY_CHUNK
from specdec.models.built_in import SHELF, HeadShelf
from specdec.models.decoder import Decoder
from specdec.models.eagle import EagleHead
from specdec.models.loader import prepare_model
from specdec.models.medusa import MedusaHead
from specdec.proposers.auto import auto_entry, member_length, member_names, with_members
from specdec.proposers.base import Drafter, DraftModel, Proposer, ProposerContext, Wants
from specdec.proposers.registry import build_proposer, check_settings, num_nodes
from specdec.runner import PROMPT_LOGITS_CHUNK, Runner
from specdec.step.kv_cache import KVCache, KVLayout
from specdec.step.memory import available_host_memory, plan_memory
from specdec.step.model import Model
from specdec.step.record import read_clock
from specdec.tokenizer import Tokenizer


def build_engine(
    config: EngineConfig,
    progress: Callable[[str], None] | None = None,
    start_up: StartUp | None = None,
    shelf: HeadShelf = SHELF,
) -> Engine:
    """Load what `config` names; see `Engine.from_config`. What that took is added to `start_up`, the engine's own. On
    `shelf` are the heads that need no name."""
    watch = start_up or StartUp()
    before = watch.total
    models = load_models(config, progress, watch, shelf)
    with watch.time("calibration"):
        engine = models.engine(config)
    engine.start_up = watch
    engine.load_seconds = watch.total - before
    return engine


@dataclass(frozen=True)
class LoadedModels:
    """Weights and tokenizer in memory: any number of engines share them, each with KV and proposers of its own."""

    model: Decoder
    facts: TargetFacts
    tokenizer: Tokenizer
    kernels: Kernels
    device: torch.device
    draft_models: Mapping[str, Drafter]
    """By method."""
    heads: ChosenHeads = field(default_factory=ChosenHeads)
    """Those of the draft models that no configuration names."""

    def engine(self, config: EngineConfig) -> Engine:
        """An engine of the loaded models. `config` may differ from the one that they were loaded for in sizes, verifier
        and seed, and may leave proposers out."""
        config = self.heads.complete(config)
        methods = [entry.method for entry in config.speculative]
        drafts = {method: draft for method, draft in self.draft_models.items() if method in methods}
        return assemble(
            config,
            self.model,
            self.facts,
            self.tokenizer,
            kernels=self.kernels,
            device=self.device,
            draft_models=drafts,
        )


def load_models(
    config: EngineConfig,
    progress: Callable[[str], None] | None = None,
    start_up: StartUp | None = None,
    shelf: HeadShelf = SHELF,
) -> LoadedModels:
    """Read the weights that `config` names, checked against each other; ValueError as in `Engine.from_config`."""
    watch = start_up or StartUp()
    for proposer in with_members(config).speculative:
        check_settings(proposer)
    heads = choose_heads(config, shelf)
    config = heads.complete(config)
    device = torch.device("cpu")
    with watch.time("model files"):
        checkpoint, tokenizer = open_model(config.model, progress)
    with watch.time("kernels"):
        kernels = choose_backend(
            device.type,
            name=config.kernels,
            dtype=checkpoint.config.dtype if config.dtype == "auto" else config.dtype,
            folder=cache_dir() / "kernels",
            num_threads=config.num_threads,
            notify=progress,
        )
    with watch.time("model files"):
        if progress is not None and config.quantization != "none" and not kernels.own_threads:
            progress("plain torch unpacks quantised weights for every step: --quantization none is faster there")
        prepared = prepare_model(checkpoint, kernels=kernels, max_model_len=config.max_model_len)
        opened = open_draft_models(config, prepared.decoder, tokenizer, progress)
    # Names, files and vocabularies are right: only now are weights read.
    model = prepared.load(
        dtype=config.dtype,
        device=device,
        quantization=config.quantization,
        kv_cache_dtype=config.kv_cache_dtype,
        start_up=watch,
    )
    with watch.time("weights"):
        drafts = {method: draft.load(model, dtype=config.dtype, device=device) for method, draft in opened.items()}
    own = [draft.model for draft in drafts.values() if isinstance(draft, DraftModel)]
    decoders = [model, *(each for each in own if isinstance(each, Decoder))]
    facts = TargetFacts(
        vocab_size=checkpoint.config.vocab_size,
        max_model_len=model.max_model_len,
        eos_token_ids=frozenset(checkpoint.config.eos_token_ids) | frozenset(tokenizer.eos_token_ids),
        weight_bytes=model.weight_bytes,
        activation_bytes=max(activation_bytes(each, config.max_num_batched_tokens) for each in decoders),
    )
    return LoadedModels(model, facts, tokenizer, kernels, device, drafts, heads)


def activation_bytes(model: Decoder, num_tokens: int) -> int:
    """An upper bound of a step's intermediate tensors: a few hidden states, one layer's projections and MLP, the
    scores of one chunk of queries, and the logits of one chunk of a prompt."""
    config, element = model.config, model.kernels.state_dtype(model.dtype).itemsize
    heads = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    inner = max(layer.moe.intermediate_size if layer.moe else config.intermediate_size for layer in config.layers)
    states = num_tokens * element * (6 * config.hidden_size + 3 * heads + 3 * inner)
    scores = 3 * min(num_tokens, QUERY_CHUNK) * model.max_model_len * config.num_heads * max(4, element)
    return states + scores + 2 * PROMPT_LOGITS_CHUNK * config.vocab_size * 4


def assemble(
    config: EngineConfig,
    model: Model,
    facts: TargetFacts,
    tokenizer: Tokenizer | None = None,
    *,
    kernels: Kernels | None = None,
    device: torch.device | None = None,
    draft_models: Mapping[str, Drafter] | None = None,
    proposers: Mapping[str, Proposer] | None = None,
    clock: Callable[[], float] = read_clock,
) -> Engine:
    """An engine around models that are already there.

    `draft_models` are those of the configured proposers, by method; `proposers` adds instances of one's own by name.
    `clock` is what steps are timed by, in seconds.
    """
    config = with_members(config)
    device = device if device is not None else torch.device("cpu")
    kernels = kernels if kernels is not None else choose_backend(device.type)
    drafts = dict(draft_models or {})
    layout = model.kv_layout()
    nodes = _nodes(config, proposers or {})
    law_bytes = 2 * config.max_num_seqs * sum(nodes[method] for method in drafts) * facts.vocab_size * 8
    available = available_host_memory()
    memory = plan_memory(
        [layout, *(own for draft in drafts.values() for own in _kv_layouts(draft))],
        block_size=config.block_size,
        state_bytes_per_block=sum(_state_bytes(draft) for draft in drafts.values()),
        available_bytes=available,
        budget_bytes=int(available * config.gpu_memory_utilization) + facts.weight_bytes,
        kv_cache_tokens=config.kv_cache_tokens,
        max_useful_tokens=config.max_num_seqs * facts.max_model_len,
        weight_bytes=facts.weight_bytes,
        draft_bytes=sum(draft.weight_bytes for draft in drafts.values()),
        activation_bytes=facts.activation_bytes,
        logits_bytes=2 * config.max_num_seqs * (max(nodes.values()) + 1) * facts.vocab_size * 4 + law_bytes,
    )
    context = ProposerContext(
        vocab_size=facts.vocab_size,
        num_blocks=memory.num_blocks,
        block_size=config.block_size,
        max_num_batched_tokens=config.max_num_batched_tokens,
        verifier=config.verifier,
        kernels=kernels,
        device=device,
        tokenizer=tokenizer,
    )
    runner = Runner(
        model,
        KVCache(layout, memory.num_blocks, config.block_size, device),
        _load_proposers(config, context, layout.num_layers, drafts, proposers or {}),
        kernels,
        vocab_size=facts.vocab_size,
        verifier=config.verifier,
        device=device,
        portfolios={AUTO: member_names(config)} if auto_entry(config) else {},
    )
    return Engine(config, runner, facts, memory, tokenizer, clock=clock)


def _kv_layouts(draft: Drafter) -> list[KVLayout]:
    """The KV of its own that a drafter keeps for every token."""
    if isinstance(draft, MedusaHead):
        return []
    return [draft.kv_layout() if isinstance(draft, EagleHead) else draft.model.kv_layout()]


def _state_bytes(draft: Drafter) -> int:
    """Bytes that a drafter keeps for every block: a head, the feature of its last token."""
    return draft.hidden_size * draft.dtype.itemsize if isinstance(draft, EagleHead) else 0


def _nodes(config: EngineConfig, given: Mapping[str, Proposer]) -> dict[str, int]:
    """By method the most nodes that a draft may have, and so the rows of logits beside the first."""
    nodes = draft_lengths(config)
    for entry in config.speculative:
        if entry.method not in given:
            nodes[entry.method] = num_nodes(entry)
    return nodes


def _load_proposers(
    config: EngineConfig,
    context: ProposerContext,
    num_layers: int,
    draft_models: Mapping[str, Drafter],
    given: Mapping[str, Proposer],
) -> dict[str, Proposer]:
    """The configured proposers by method; "none" is always among them."""
    loaded: dict[str, Proposer] = {}
    auto = auto_entry(config)
    for entry in (*config.speculative, SpeculativeConfig("none")):
        if entry.method == AUTO:
            continue
        if entry.method in given:
            loaded[entry.method] = given[entry.method]
        else:
            k = entry.num_speculative_tokens
            if auto is not None and entry.method in member_names(config):
                k = member_length(entry, auto.num_speculative_tokens)
            own = replace(
                context, method=entry.method, num_speculative_tokens=k, draft_model=draft_models.get(entry.method)
            )
            loaded[entry.method] = build_proposer(entry, own)
            _check_wants(entry.method, loaded[entry.method].wants, num_layers)
    return loaded


def _check_wants(method: str, wants: Wants, num_layers: int) -> None:
    for layer in wants.aux_layers:
        if not 0 <= layer <= num_layers:
            raise ValueError(
                f"the proposer {method!r} wants the states before layer {layer}; the model's layers are 0 to "
                f"{num_layers - 1}, and {num_layers} stands for the last one's output"
            )
