"""Text to token ids and back: from a Hugging Face directory, from GGUF metadata, or from a `tokenizers` object."""

from specdec.tokenizer.tokenizer import Tokenizer

__all__ = ["Tokenizer"]
