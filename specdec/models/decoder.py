"""The one decoder: every family is a ModelConfig.

It computes the tokens of a step and writes their keys and values; it knows nothing of requests, prompts, drafts or
sampling. Prompt chunks, decoding and verification are the same call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

import torch
from torch import nn

from specdec.kernels import Kernels, Program, Weight
from specdec.models.config import ModelConfig, RopeConfig
from specdec.models.layers import DecoderLayer, Rotation
from specdec.models.parts import Embedding, Linear, Packable, RMSNorm, weight_bytes
from specdec.models.quantize import Scheme
from specdec.models.rope import RopeTable
from specdec.step.batch import Batch
from specdec.step.kv_cache import KVCache, KVLayout
from specdec.step.model import Computed

_Variant = tuple[tuple[int, ...], bool]
"""Of a recorded forward pass: the layers whose inputs it answers, and whether it goes on to the logits."""


class Decoder(nn.Module):
    """A decoder-only transformer over a paged KV cache.

    Its parameters are on the meta device until the loader assigns them. `max_model_len` bounds the positions.
    """

    def __init__(self, config: ModelConfig, kernels: Kernels, max_model_len: int) -> None:
        super().__init__()
        self.config = config
        self.kernels = kernels
        self.max_model_len = max_model_len
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size, kernels)
        self.layers = nn.ModuleList(DecoderLayer(config, layer, kernels) for layer in config.layers)
        self.norm = RMSNorm(config.hidden_size, config, kernels)
        self.lm_head = None
        if not config.tie_word_embeddings:
            self.lm_head = Linear(config.hidden_size, config.vocab_size, False, kernels)
        distinct = distinct_ropes(config)
        self.rope_of_layer = [None if layer.rope is None else distinct.index(layer.rope) for layer in config.layers]
        self.ropes = nn.ModuleList(RopeTable(rope, max_model_len) for rope in distinct)
        self._dtype: torch.dtype | None = None
        self._kv_dtype: torch.dtype | None = None
        self._programs: WeakKeyDictionary[KVCache, dict[_Variant, Program | None]] = WeakKeyDictionary()

    def first_layers(self, count: int) -> Decoder:
        """The model of the first `count` layers, which shares this one's parameters: what drafts for itself."""
        assert 0 < count <= self.config.num_layers
        config = replace(self.config, layers=self.config.layers[:count])
        decoder = Decoder(config, self.kernels, self.max_model_len)
        decoder.embed_tokens, decoder.norm, decoder.lm_head = self.embed_tokens, self.norm, self.lm_head
        decoder.layers = self.layers[:count]
        decoder.ropes, decoder.rope_of_layer = self.ropes, self.rope_of_layer[:count]
        decoder._dtype, decoder._kv_dtype = self._dtype, self._kv_dtype
        return decoder.eval()

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that the weights were loaded in."""
        return self._dtype or self.embed_tokens.weight.dtype

    def pack(self, scheme: Scheme, dtype: torch.dtype, kv_dtype: torch.dtype) -> None:
        """Store the weights, loaded in `dtype`, as `scheme` says and as the kernels like them; the cache is to be in
        `kv_dtype`."""
        self._dtype, self._kv_dtype = dtype, kv_dtype
        for part in self.modules():
            self.pack_part(part, scheme)

    def pack_part(self, part: nn.Module, scheme: Scheme) -> None:
        """The same for one part of it that has its weights; it stays as it is when all are packed."""
        is_vocabulary = part is self.embed_tokens or part is self.lm_head
        if isinstance(part, Packable):
            part.pack_weights(scheme.vocabulary if is_vocabulary else scheme.matrices)

    def forward(self, batch: Batch, kv: KVCache) -> torch.Tensor:
        """Hidden states of the step's tokens after the final norm, [T, hidden]; their KV goes to the batch's slots."""
        return self.forward_with_aux(batch, kv, ())[0]

    def forward_with_aux(
        self, batch: Batch, kv: KVCache, aux_layers: Sequence[int]
    ) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        """The same, and by layer the input [T, hidden] of each of `aux_layers`; the number of layers stands for the
        last one's output, before the final norm."""
        aux_layers = tuple(aux_layers)
        program = self._program(kv, aux_layers)
        if program is None:
            return self._compute(batch, kv, aux_layers)
        hidden, *aux = program(batch.inputs())
        return hidden, dict(zip(aux_layers, aux, strict=True))

    def compute(self, batch: Batch, kv: KVCache, aux_layers: Sequence[int] = ()) -> Computed:
        """The same, and the logits of all tokens and the largest of each."""
        aux_layers = tuple(aux_layers)
        program = self._program(kv, aux_layers, with_logits=True)
        if program is None:
            hidden, aux = self.forward_with_aux(batch, kv, aux_layers)
            return Computed(hidden, aux, self.compute_logits(hidden))
        logits, tokens, values, hidden, *states = program(batch.inputs())
        return Computed(hidden, dict(zip(aux_layers, states, strict=True)), logits, (tokens, values))

    def _program(self, kv: KVCache, aux_layers: tuple[int, ...], *, with_logits: bool = False) -> Program | None:
        """The whole forward pass over a cache as one program, None if the kernels have to be called one by one."""
        programs, key = self._programs.setdefault(kv, {}), (aux_layers, with_logits)
        if key not in programs:
            programs[key] = self._record(kv, aux_layers, with_logits=with_logits)
        return programs[key]

    def _record(self, kv: KVCache, aux_layers: tuple[int, ...], *, with_logits: bool) -> Program | None:
        if any(layer.moe for layer in self.config.layers):
            return None  # which expert sees which token is not known beforehand
        if with_logits and self.config.final_soft_cap is not None:
            return None  # no kernel caps logits
        batch = Batch.placeholder()

        def compute() -> list[torch.Tensor]:
            hidden, aux = self._compute(batch, kv, aux_layers)
            states = [hidden, *(aux[layer] for layer in aux_layers)]
            if not with_logits:
                return states
            logits = self.compute_logits(hidden)
            return [logits, *self.kernels.largest(logits), *states]

        return self.kernels.record(compute, batch.inputs())

    def _compute(
        self, batch: Batch, kv: KVCache, aux_layers: tuple[int, ...]
    ) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        hidden: torch.Tensor = self.embed(batch.token_ids)
        rotations: list[Rotation] = [(rope.get_buffer("cos"), rope.get_buffer("sin")) for rope in self.ropes]
        aux = {}
        for i, layer in enumerate(self.layers):
            if i in aux_layers:
                aux[i] = hidden
            rope = self.rope_of_layer[i]
            rotation = None if rope is None else rotations[rope]
            hidden = layer(hidden, rotation, batch, kv.keys[i], kv.values[i])
        if len(self.layers) in aux_layers:
            aux[len(self.layers)] = hidden
        out: torch.Tensor = self.norm(hidden)
        return out, aux

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """int64 [T] -> [T, hidden], scaled where the family scales."""
        hidden: torch.Tensor = self.embed_tokens(token_ids)
        if self.config.embedding_scale is None:
            return hidden
        # gemma was trained with the factor rounded to the dtype of the states.
        return self.kernels.scale(hidden, torch.tensor(self.config.embedding_scale, dtype=hidden.dtype).item())

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits of final hidden states [n, hidden]: [n, vocab], float32 (float64 of a float64 model)."""
        return self.head()(hidden)

    def head(self) -> Callable[[torch.Tensor], torch.Tensor]:
        """`compute_logits` by itself: of the model it keeps no more than the output matrix."""
        kernels, matrix, soft_cap = self.kernels, self.output_matrix(), self.config.final_soft_cap
        return lambda hidden: finished_logits(kernels.linear(hidden, matrix), soft_cap)

    def output_matrix(self) -> Weight:
        """What turns final hidden states into logits, [vocab, hidden]: the embedding itself where the two are tied."""
        return self.embed_tokens.weight if self.lm_head is None else self.lm_head.weight

    def kv_layout(self) -> KVLayout:
        """The KV cache this model needs."""
        config = self.config
        return KVLayout(config.num_layers, config.num_kv_heads, config.head_dim, self._kv_dtype or self.dtype)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the parameters and the rotary tables."""
        return weight_bytes(self)


def finished_logits(logits: torch.Tensor, soft_cap: float | None) -> torch.Tensor:
    """Products with an output matrix as logits: float32, or float64 where they are, and capped where the model caps."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return logits if soft_cap is None else soft_cap * torch.tanh(logits / soft_cap)


def distinct_ropes(config: ModelConfig) -> list[RopeConfig]:
    """The rotary embeddings that the layers use, each once."""
    distinct: list[RopeConfig] = []
    for layer in config.layers:
        if layer.rope is not None and layer.rope not in distinct:
            distinct.append(layer.rope)
    return distinct
