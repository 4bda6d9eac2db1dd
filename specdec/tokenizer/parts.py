"""What a tokenizer file comes down to, whichever format it had."""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Tokenizer as Backend


@dataclass(frozen=True)
class TokenizerParts:
    """`eos_token_ids` begins with the one that the model declares; a chat template reads that one as `eos_token`."""

    backend: Backend
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    chat_template: str | None = None
