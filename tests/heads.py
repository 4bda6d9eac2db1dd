"""A tiny random target in float64, heads for it, and engines around them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from specdec.config import EngineConfig, SpeculativeConfig
from specdec.core.scheduler import Schedule, ScheduledRow
from specdec.core.sequence import Sequence
from specdec.engine import Engine, TargetFacts
from specdec.engine.build import assemble
from specdec.kernels import reference
from specdec.models.config import LayerConfig, ModelConfig, RopeConfig
from specdec.models.decoder import Decoder
from specdec.models.eagle import EagleHead
from specdec.models.head_config import EagleConfig
from specdec.models.medusa import MedusaHead
from specdec.step.batch import Batch
from specdec.step.kv_cache import KVCache
from specdec.types import Request, SamplingParams

VOCABULARY = 13
HIDDEN = 16
CPU = torch.device("cpu")


def _config(layers: int, vocab_size: int) -> ModelConfig:
    return ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=vocab_size,
        hidden_size=HIDDEN,
        intermediate_size=24,
        num_heads=4,
        num_kv_heads=2,
        head_dim=4,
        max_position_embeddings=256,
        layers=(LayerConfig(rope=RopeConfig(rotary_dim=4)),) * layers,
    )


def _fill(module: nn.Module, seed: int, spread: float) -> None:
    """Random float64 weights in place of meta ones; norms near one."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in [*module.named_parameters()]:
        values = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * spread
        owner, _, attribute = name.rpartition(".")
        filled = 1 + 0.1 * values if parameter.dim() == 1 else values
        setattr(module.get_submodule(owner), attribute, nn.Parameter(filled, requires_grad=False))


def tiny_target(seed: int = 0, vocab_size: int = VOCABULARY) -> Decoder:
    decoder = Decoder(_config(5, vocab_size), reference, 256)
    _fill(decoder, seed, 0.4)
    return decoder.eval()


def tiny_eagle(target: Decoder, kind: str, seed: int = 1, max_model_len: int = 256, reduced: bool = False) -> EagleHead:
    """A head of the kind; `reduced` leaves every third token out of an EAGLE-3 head's vocabulary."""
    is_eagle3, vocab_size = kind == "eagle3", target.config.vocab_size
    kept = torch.tensor([t for t in range(vocab_size) if t % 3 or not reduced])
    config = EagleConfig(
        kind=kind,
        model=_config(1, vocab_size),
        aux_layers=(1, 2, 4) if is_eagle3 else (),
        target_hidden_size=HIDDEN,
        fc_bias=not is_eagle3,
        own_embedding=False,
        draft_vocab_size=len(kept),
    )
    head = EagleHead(config, target, reference, max_model_len)
    _fill(head, seed, 0.4)
    if reduced:
        head.draft_token_ids = kept
    return head.eval()


def tiny_medusa(num_heads: int = 3, seed: int = 1, vocab_size: int = VOCABULARY) -> MedusaHead:
    head = MedusaHead(num_heads=num_heads, num_layers=1, hidden_size=HIDDEN, vocab_size=vocab_size, kernels=reference)
    _fill(head, seed, 0.4)
    return head.eval()


def head_engine(
    target: Decoder,
    method: str = "none",
    head: EagleHead | MedusaHead | None = None,
    *,
    k: int = 4,
    settings: Mapping[str, Any] | None = None,
    kv_cache_tokens: int = 2048,
    block_size: int = 4,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 64,
    enable_prefix_caching: bool = True,
    verifier: str = "auto",
    auto: bool = False,
) -> Engine:
    """An engine around the target and one head, for `auto` alone if that is wanted; all KV and kept features start as
    NaN."""
    speculative = () if head is None else (SpeculativeConfig(method, k, {"model": "given", **(settings or {})}),)
    if auto:
        speculative = (SpeculativeConfig("auto", k, {"proposers": [method]}), *speculative)
    config = EngineConfig(
        model="tiny",
        block_size=block_size,
        kv_cache_tokens=kv_cache_tokens,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        enable_prefix_caching=enable_prefix_caching,
        verifier=verifier,
        speculative=speculative,
    )
    facts = TargetFacts(VOCABULARY, target.max_model_len)
    engine = assemble(config, target, facts, draft_models={} if head is None else {method: head})
    caches = [engine.runner.kv, *(kv for each in engine.runner.proposers.values() for kv in each.kv_caches)]
    for kv in caches:
        for cache in (*kv.keys, *kv.values):
            cache.fill_(float("nan"))
    if isinstance(head, EagleHead):
        engine.runner.proposers[method].features.boundaries.fill_(float("nan"))
    return engine


@torch.inference_mode()
def naive_head(target: Decoder, head: EagleHead, token_ids: list[int], drafted: list[int]) -> tuple[KVCache, list[int]]:
    """From scratch, in one pass each: the head's KV of `token_ids`, in blocks 0, 1, ..., and its greedy chain after
    them, as long as `drafted`.
    """
    count = len(token_ids)
    kv, own = (KVCache(model.kv_layout(), 64, 4, CPU) for model in (target, head))
    sequence = Sequence(Request("naive", tuple(token_ids), SamplingParams(), 0, 0), 0, list(token_ids))
    sequence.block_table = list(range(64))
    batch = Batch.build(Schedule((ScheduledRow(sequence, 0, count),)), 4, CPU)
    final, aux = target.forward_with_aux(batch, kv, head.aux_layers)
    raw = torch.cat([aux[layer] for layer in head.aux_layers], -1) if head.aux_layers else final
    features = head.combine(raw)[: count - 1]
    outputs = head.forward(Batch.build(Schedule((ScheduledRow(sequence, 1, count - 1),)), 4, CPU), own, features)
    chain: list[int] = []
    while len(chain) < len(drafted):
        best = int(head.compute_logits(outputs[-1:]).argmax())
        chain.append(best if head.draft_token_ids is None else int(head.draft_token_ids[best]))
        sequence.token_ids.append(chain[-1])
        last = ScheduledRow(sequence, len(sequence.token_ids) - 1, 1)
        outputs = head.forward(Batch.build(Schedule((last,)), 4, CPU), own, outputs[-1:])
    return own, chain
