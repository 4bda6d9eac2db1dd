"""A target that is nothing but sizes: enough for the loader to tell whether a head is whole."""

from __future__ import annotations

from pathlib import Path

from specdec.kernels import reference
from specdec.models.config import LayerConfig, ModelConfig, RopeConfig
from specdec.models.decoder import Decoder
from specdec.models.heads import prepare_head
from specdec.train.formats.facts import Eagle3Facts, HeadFacts

FEWEST_LAYERS = 8
"""The authors' choice of auxiliary layers needs as many."""
POSITIONS = 8


def stand_in(*, hidden_size: int, vocab_size: int, aux_layers: tuple[int, ...] = ()) -> Decoder:
    """A model of these sizes, without weights, that has the layers named."""
    layer = LayerConfig(rope=RopeConfig(rotary_dim=2))
    config = ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=2,
        max_position_embeddings=POSITIONS,
        layers=(layer,) * max(FEWEST_LAYERS, *aux_layers, 0),
    )
    return Decoder(config, reference, POSITIONS)


def check_readable(path: Path, facts: HeadFacts, *, shown: Path) -> None:
    """ValueError, which calls the head at `path` `shown`, if it is not whole or not what `facts` say."""
    size = facts.hidden_size
    aux_layers: tuple[int, ...] = ()
    if isinstance(facts, Eagle3Facts):
        size, aux_layers = facts.target_hidden_size, facts.aux_layers or ()
    target = stand_in(hidden_size=size, vocab_size=facts.vocab_size, aux_layers=aux_layers)
    try:
        prepare_head(path, target=target, kernels=reference)
    except ValueError as error:
        raise ValueError(str(error).replace(str(path), str(shown))) from None
