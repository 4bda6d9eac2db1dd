"""EAGLE heads: one decoder layer that guesses on from the target's hidden states.

An entry of the head pairs the target's feature at position p - 1 with the token at position p; it is stored at the
slot of p and rotated as p. So position 0 has no entry: what lies in its slot is never looked at. EAGLE-1/2: arXiv
2401.15077 and 2406.16858; EAGLE-3: arXiv 2503.01840.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
from torch import nn

from specdec.kernels import Kernels, Program
from specdec.models.config import ModelConfig
from specdec.models.decoder import Decoder, finished_logits
from specdec.models.head_config import EagleConfig
from specdec.models.layers import MLP, Attention, Rotation
from specdec.models.parts import Embedding, Linear, RMSNorm, weight_bytes
from specdec.models.quantize import SCHEMES, Scheme, pack_parts
from specdec.models.rope import RopeTable
from specdec.step.batch import Batch
from specdec.step.kv_cache import KVCache, KVLayout
from specdec.step.model import Computed

FIRST_ENTRY = 1
"""The first position that has an entry."""
FEW_TOKENS = 16
"""Of up to so many tokens all logits are computed with the rest, wanted or not."""


class FusedInput(nn.Module):
    """EAGLE-1/2: token and feature become one state, which is the layer's input and its residual."""

    def __init__(self, config: EagleConfig, kernels: Kernels) -> None:
        super().__init__()
        self.kernels = kernels
        size = config.model.hidden_size
        self.fc = Linear(2 * size, size, config.fc_bias, kernels)

    def combine(self, features: torch.Tensor) -> torch.Tensor:
        return features

    def forward(self, embedded: torch.Tensor, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[T, H] each -> the attention's input and the residual, [T, H] each."""
        fused = self.fc(self.kernels.concat(embedded, features))
        return fused, fused


class NormedInput(nn.Module):
    """EAGLE-3: token and feature stand side by side, each normalised; the residual is the feature."""

    def __init__(self, config: EagleConfig, kernels: Kernels) -> None:
        super().__init__()
        self.kernels = kernels
        size = config.model.hidden_size
        self.fc = Linear(config.feature_size, size, config.fc_bias, kernels)
        self.input_norm = RMSNorm(size, config.model, kernels)
        self.hidden_norm = RMSNorm(size, config.model, kernels)
        self.norm_before_residual = config.norm_before_residual

    def combine(self, features: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.fc(features)
        return out

    def forward(self, embedded: torch.Tensor, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[T, H] each -> the attention's input [T, 2 * H] and the residual [T, H]."""
        normed = self.hidden_norm(features)
        both = self.kernels.concat(self.input_norm(embedded), normed)
        return both, normed if self.norm_before_residual else features


class HeadLayer(nn.Module):
    """A decoder layer whose input and residual are made elsewhere."""

    def __init__(self, config: ModelConfig, input_size: int, kernels: Kernels) -> None:
        super().__init__()
        self.kernels = kernels
        self.attention = Attention(config, config.layers[0], kernels, input_size=input_size, first_entry=FIRST_ENTRY)
        self.mlp_norm = RMSNorm(config.hidden_size, config, kernels)
        self.mlp = MLP(config, kernels)

    def forward(
        self,
        inputs: torch.Tensor,
        residual: torch.Tensor,
        rotation: Rotation,
        batch: Batch,
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> torch.Tensor:
        """Inputs [T, input_size], residual [T, H] -> [T, H]; caches are the layer's own."""
        hidden = self.kernels.add(residual, self.attention(inputs, rotation, batch, keys, values))
        return self.kernels.add(hidden, self.mlp(self.mlp_norm(hidden)))


class EagleHead(nn.Module):
    """An EAGLE head for one target, of which it may use the embedding and (EAGLE-1/2) the output matrix.

    `draft_token_ids` int64 [Vd] are the target ids of the logits; None where logits and target ids are the same.
    Its parameters are on the meta device until the loader assigns them.
    """

    draft_token_ids: torch.Tensor | None

    def __init__(self, config: EagleConfig, target: Decoder, kernels: Kernels, max_model_len: int) -> None:
        super().__init__()
        model, is_eagle3 = config.model, config.kind == "eagle3"
        self.config = config
        self.kernels = kernels
        self.max_model_len = max_model_len
        # Bound methods: the target's parameters are not this module's.
        self._target_embed, self._target_matrix = target.embed_tokens.forward, target.output_matrix
        self._shares_kernels = target.kernels is kernels
        self._soft_cap = None if is_eagle3 else target.config.final_soft_cap
        self.embed_tokens = Embedding(model.vocab_size, model.hidden_size, kernels) if config.own_embedding else None
        self.inputs = NormedInput(config, kernels) if is_eagle3 else FusedInput(config, kernels)
        self.layer = HeadLayer(model, (1 + is_eagle3) * model.hidden_size, kernels)
        self.norm: nn.Module = RMSNorm(model.hidden_size, model, kernels) if is_eagle3 else nn.Identity()
        self.lm_head = Linear(model.hidden_size, config.draft_vocab_size, False, kernels) if is_eagle3 else None
        rope = model.layers[0].rope
        assert rope is not None, "the families of heads rotate every layer"
        self.rope = RopeTable(rope, max_model_len)
        self.register_buffer("draft_token_ids", None, persistent=False)
        self.kv_dtype: torch.dtype | None = None
        self._programs: WeakKeyDictionary[KVCache, dict[tuple[bool, bool], Program | None]] = WeakKeyDictionary()
        """By whether they combine features, and go on to the logits."""

    def pack(self, scheme: Scheme = SCHEMES["none"]) -> None:
        """Give the loaded weights the form that the kernels are fastest with, quantised by the scheme."""
        self.kv_dtype = self.kernels.cache_dtype(self.dtype)
        pack_parts(self, scheme, vocabulary=[part for part in (self.embed_tokens, self.lm_head) if part is not None])

    @property
    def kind(self) -> str:
        """ "eagle" (EAGLE-1/2) or "eagle3"."""
        return self.config.kind

    @property
    def aux_layers(self) -> tuple[int, ...]:
        """The target's layers whose inputs are the features, in order; the number of layers stands for the last one's
        output. Empty for "eagle", whose feature is the target's state after its final norm."""
        return self.config.aux_layers

    @property
    def feature_size(self) -> int:
        """F: width of the target features of one position."""
        return self.config.feature_size

    @property
    def hidden_size(self) -> int:
        return self.config.model.hidden_size

    @property
    def num_logits(self) -> int:
        """Vd: how many tokens the head can guess."""
        return len(self._target_matrix() if self.lm_head is None else self.lm_head.weight)

    @property
    def dtype(self) -> torch.dtype:
        return self.inputs.fc.weight.dtype

    def combine(self, features: torch.Tensor) -> torch.Tensor:
        """Target features [n, F] -> [n, H]: what `forward` takes beside a token."""
        combined: torch.Tensor = self.inputs.combine(features.to(self.dtype))
        return combined

    def forward(self, batch: Batch, kv: KVCache, features: torch.Tensor) -> torch.Tensor:
        """Raw outputs [T, H] of the batch's tokens; their KV goes to the batch's slots.

        `features` [T, H]: for a token at position p > 0, the combined features of position p - 1, or the head's own raw
        output there.
        """
        program = self._program(kv, combines=False, with_logits=False)
        if program is None:
            return self._compute(batch, kv, features.to(self.dtype))
        return program((*batch.inputs(), features.to(self.dtype).contiguous()))[0]

    def compute(self, batch: Batch, kv: KVCache, features: torch.Tensor) -> Computed:
        """The same, and the logits of all tokens and the largest of each."""
        program = self._program(kv, combines=False, with_logits=True)
        if program is None:
            hidden = self.forward(batch, kv, features)
            return Computed(hidden, {}, self.compute_logits(hidden))
        hidden, logits, *largest = program((*batch.inputs(), features.to(self.dtype).contiguous()))
        return Computed(hidden, {}, logits, (largest[0], largest[1]))

    def read(self, batch: Batch, kv: KVCache, features: torch.Tensor) -> Computed:
        """`forward` from the target's own features [T, F] of the positions before; outputs and logits are those at the
        batch's logits positions."""
        features, at = features.to(self.dtype).contiguous(), batch.logits_indices
        # The logits of a few tokens more cost less than a call of their own.
        at_once = batch.num_tokens <= FEW_TOKENS and self._soft_cap is None
        program = self._program(kv, combines=True, with_logits=at_once)
        if program is None or not at_once:
            if program is None:
                hidden = self._compute(batch, kv, self.inputs.combine(features))[at]
            else:
                hidden = program((*batch.inputs(), features))[0][at]
            return Computed(hidden, {}, self.compute_logits(hidden))
        hidden, logits, *largest = program((*batch.inputs(), features))
        if len(at) == batch.num_tokens:
            return Computed(hidden, {}, logits, (largest[0], largest[1]))
        return Computed(hidden[at], {}, logits[at], (largest[0][at], largest[1][at]))

    def _program(self, kv: KVCache, *, combines: bool, with_logits: bool) -> Program | None:
        """All of it over a cache as one program, from the target's features if it `combines` them; None if the kernels
        have to be called one by one."""
        programs, key = self._programs.setdefault(kv, {}), (combines, with_logits)
        if key not in programs:
            programs[key] = self._record(kv, combines=combines, with_logits=with_logits)
        return programs[key]

    def _record(self, kv: KVCache, *, combines: bool, with_logits: bool) -> Program | None:
        if not self._shares_kernels or (with_logits and self._soft_cap is not None):
            return None  # the target's embedding is no kernel of these; no kernel caps logits
        batch = Batch.placeholder()
        features = torch.zeros(batch.num_tokens, self.feature_size if combines else self.hidden_size)

        def compute() -> list[torch.Tensor]:
            hidden = self._compute(batch, kv, self.inputs.combine(features) if combines else features)
            if not with_logits:
                return [hidden]
            logits = self.compute_logits(hidden)
            return [hidden, logits, *self.kernels.largest(logits)]

        return self.kernels.record(compute, (*batch.inputs(), features))

    def _compute(self, batch: Batch, kv: KVCache, features: torch.Tensor) -> torch.Tensor:
        embed = self._target_embed if self.embed_tokens is None else self.embed_tokens
        inputs, residual = self.inputs(embed(batch.token_ids).to(self.dtype), features)
        out: torch.Tensor = self.layer(inputs, residual, self.rope.tables, batch, kv.keys[0], kv.values[0])
        return out

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits of raw outputs [n, H]: [n, Vd], float32 (float64 of a float64 head)."""
        if self.lm_head is None:
            matrix = self._target_matrix()
            logits = self.kernels.linear(hidden.to(matrix.dtype), matrix)
        else:
            logits = self.lm_head(self.norm(hidden))
        return finished_logits(logits, self._soft_cap)

    def keep_tokens(self, token_ids: torch.Tensor) -> None:
        """Of the logits of all the target's tokens, keep those of `token_ids` (int64 [Vd]), in their order.

        A head that uses the target's output matrix then has these rows of it as its own.
        """
        assert self.draft_token_ids is None
        if self.lm_head is None:
            matrix = self._target_matrix()
            self.lm_head = Linear(self.hidden_size, len(matrix), False, self.kernels)
            rows = self.kernels.embedding(token_ids, matrix)
            self.lm_head.weight = nn.Parameter(rows.to(self.dtype), requires_grad=False)
        else:
            self.lm_head.keep_rows(token_ids)
        self.draft_token_ids = token_ids

    def kv_layout(self) -> KVLayout:
        """The KV cache this head needs."""
        return KVLayout(1, self.config.model.num_kv_heads, self.config.model.head_dim, self.kv_dtype or self.dtype)

    @property
    def weight_bytes(self) -> int:
        """Bytes of what the head holds beyond the target's own."""
        return weight_bytes(self)
