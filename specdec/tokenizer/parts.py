"""What a tokenizer file comes down to, whichever format it had."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tokenizers import Tokenizer as Backend


@dataclass(frozen=True)
class TokenizerParts:
    """`eos_token_ids` begins with the one that the model declares; a chat template reads that one as `eos_token`."""

    backend: Backend
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    chat_template: str | None = None
    named_tokens: Mapping[str, str] = field(default_factory=dict)
    """Texts of the tokens that a chat template may name (`pad_token` and the like)."""
