"""From a configuration to a running engine: find the files, check them, load, and share out the memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from specdec.config import EngineConfig, SpeculativeConfig
from specdec.engine.loop import Engine
from specdec.engine.requests import TargetFacts, draft_lengths
from specdec.kernels import Kernels, choose_backend
from specdec.kernels.reference import QUERY_CHUNK
from specdec.models.decoder import Decoder
from specdec.models.gguf import GGUFCheckpoint
from specdec.models.hub import remedy, resolve
from specdec.models.loader import Checkpoint, load_model, open_checkpoint
from specdec.proposers.base import Proposer, build_proposer, check_settings
from specdec.runner import PROMPT_LOGITS_CHUNK, Runner, TargetModel
from specdec.step.kv_cache import KVCache
from specdec.step.memory import available_host_memory, plan_memory
from specdec.tokenizer import Tokenizer


def build_engine(config: EngineConfig, progress: Callable[[str], None] | None = None) -> Engine:
    """Load what `config` names; see `Engine.from_config`."""
    start = time.monotonic()
    for proposer in config.speculative:
        check_settings(proposer)
    device = torch.device("cpu")
    kernels = choose_backend(device.type)
    checkpoint, tokenizer = open_model(config.model, progress)
    model = load_model(
        checkpoint, dtype=config.dtype, device=device, kernels=kernels, max_model_len=config.max_model_len
    )
    facts = TargetFacts(
        vocab_size=checkpoint.config.vocab_size,
        max_model_len=model.max_model_len,
        eos_token_ids=frozenset(checkpoint.config.eos_token_ids) | frozenset(tokenizer.eos_token_ids),
        weight_bytes=model.weight_bytes,
        activation_bytes=activation_bytes(model, config.max_num_batched_tokens),
    )
    engine = assemble(config, model, facts, tokenizer, kernels=kernels, device=device)
    engine.load_seconds = time.monotonic() - start
    return engine


def open_model(model: str, progress: Callable[[str], None] | None = None) -> tuple[Checkpoint, Tokenizer]:
    """A model's checkpoint and tokenizer, no weights read; ValueError if it is damaged or the two do not match."""
    path = resolve(model, progress)
    try:
        checkpoint = open_checkpoint(path)
        tokenizer = load_tokenizer(path, checkpoint)
    except ValueError as error:
        raise ValueError(f"{error}{remedy(model)}") from None
    # Models may have ids to spare. Added tokens may lie beyond theirs, if no text is meant to hold them (Gemma 3).
    if tokenizer.text_vocab_size > checkpoint.config.vocab_size:
        raise ValueError(
            f"{path}: the tokenizer does not belong to this model: it has {tokenizer.text_vocab_size} tokens, "
            f"and the model's vocabulary {checkpoint.config.vocab_size}"
        )
    return checkpoint, tokenizer


def load_tokenizer(path: Path, checkpoint: Checkpoint) -> Tokenizer:
    """The tokenizer that belongs to a checkpoint."""
    if isinstance(checkpoint, GGUFCheckpoint):
        return Tokenizer.from_gguf(checkpoint.metadata)
    return Tokenizer.from_directory(path)


def activation_bytes(model: Decoder, num_tokens: int) -> int:
    """An upper bound of a step's intermediate tensors: a few hidden states, one layer's projections and MLP, the
    scores of one chunk of queries, and the logits of one chunk of a prompt."""
    config, element = model.config, model.kv_layout().dtype.itemsize
    heads = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    inner = max(layer.moe.intermediate_size if layer.moe else config.intermediate_size for layer in config.layers)
    states = num_tokens * element * (6 * config.hidden_size + 3 * heads + 3 * inner)
    scores = 3 * min(num_tokens, QUERY_CHUNK) * model.max_model_len * config.num_heads * max(4, element)
    return states + scores + 2 * PROMPT_LOGITS_CHUNK * config.vocab_size * 4


def assemble(
    config: EngineConfig,
    model: TargetModel,
    facts: TargetFacts,
    tokenizer: Tokenizer | None = None,
    *,
    kernels: Kernels | None = None,
    device: torch.device | None = None,
    proposers: Mapping[str, Proposer] | None = None,
) -> Engine:
    """An engine around a model that is already there. `proposers` adds instances of one's own by name."""
    device = device if device is not None else torch.device("cpu")
    layout = model.kv_layout()
    longest = max([0, *draft_lengths(config).values()])
    available = available_host_memory()
    memory = plan_memory(
        layout,
        block_size=config.block_size,
        available_bytes=available,
        budget_bytes=int(available * config.gpu_memory_utilization) + facts.weight_bytes,
        kv_cache_tokens=config.kv_cache_tokens,
        max_useful_tokens=config.max_num_seqs * facts.max_model_len,
        weight_bytes=facts.weight_bytes,
        draft_bytes=0,
        activation_bytes=facts.activation_bytes,
        logits_bytes=2 * config.max_num_seqs * (longest + 1) * facts.vocab_size * 4,
    )
    runner = Runner(
        model,
        KVCache(layout, memory.num_blocks, config.block_size, device),
        _load_proposers(config, proposers or {}),
        kernels if kernels is not None else choose_backend(device.type),
        vocab_size=facts.vocab_size,
        verifier=config.verifier,
        device=device,
    )
    return Engine(config, runner, facts, memory, tokenizer)


def _load_proposers(config: EngineConfig, given: Mapping[str, Proposer]) -> dict[str, Proposer]:
    """The configured proposers by method; "none" is always among them."""
    loaded: dict[str, Proposer] = {}
    for entry in (*config.speculative, SpeculativeConfig("none")):
        loaded[entry.method] = given[entry.method] if entry.method in given else build_proposer(entry)
    return loaded
