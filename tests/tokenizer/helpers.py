"""Small vocabularies of every notation, made here so that no test needs a foreign file."""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from specdec.tokenizer import Tokenizer
from specdec.tokenizer.pieces import byte_alphabet

EOS, BOS = 256, 257
SENTENCES = [
    "The quick brown fox jumps over the lazy dog.",
    "Every step verifies a draft, and what was rejected is rolled back.",
    "def add(a, b):\n    return a + b\n",
    "Im Anfang war das Wort 🙂 — и это 漢字 42 1234.",
]


def byte_tokenizer() -> Tokenizer:
    """258 tokens: ids 0..255 are the bytes, 256 ends a sequence, 257 begins one."""
    vocabulary = {char: byte for byte, char in byte_alphabet().items()}
    backend = Backend(models.BPE(vocabulary, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<eos>", "<bos>"])
    return Tokenizer(backend, eos_token_ids=(EOS,), bos_token_id=BOS)


def byte_level_backend() -> Backend:
    """Trained byte-level BPE with `<|end|>` and `<|user|>` as special tokens and `[tool]` as a plain added one."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        show_progress=False,
        special_tokens=["<|end|>", "<|user|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    backend.train_from_iterator(SENTENCES, trainer)
    backend.add_tokens([AddedToken("[tool é]", normalized=False)])
    return backend


def byte_level() -> Tokenizer:
    backend = byte_level_backend()
    return Tokenizer(backend, eos_token_ids=(backend.token_to_id("<|end|>"),))


def sentencepiece_metadata(**changes: Any) -> dict[str, Any]:
    """GGUF metadata of a SentencePiece vocabulary with byte fallback; `changes` are keys of tokenizer.ggml."""
    words = ["▁", "h", "e", "l", "o", "w", "r", "d", "a", "b"]
    merged = ["ll", "he", "▁w", "llo", "hello", "▁hello", "or", "ld", "▁wor", "▁world", "▁▁", "ab", "ba", "▁▁▁▁"]
    special = ["<unk>", "<s>", "</s>"]
    tokens = special + [f"<0x{byte:02X}>" for byte in range(256)] + words + merged + ["<end_of_turn>", "[tool]"]
    types = [2, 3, 3] + [6] * 256 + [1] * (len(words) + len(merged)) + [3, 4]
    first_merged = tokens.index("ll")
    scores = [-1000.0 if i < first_merged else float(first_merged - i) for i in range(len(tokens))]
    facts = {
        "model": "llama",
        "tokens": tokens,
        "token_type": types,
        "scores": scores,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    } | changes
    return {f"tokenizer.ggml.{key}": value for key, value in facts.items()}


def sentencepiece() -> Tokenizer:
    return Tokenizer.from_gguf(sentencepiece_metadata())


def byte_level_metadata(**changes: Any) -> dict[str, Any]:
    """GGUF metadata of a byte-level vocabulary without merges of its own beyond a few."""
    merges = ["a b", "Ġ a", "Ġ Ġ", "1 2", "3 4", ". .", "Ċ Ċ", "Ġ 1"]
    tokens = [*byte_alphabet().values(), *(merge.replace(" ", "") for merge in merges)]
    special = ["<|endoftext|>", "<|im_end|>", "[tool]"]
    facts = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens + special,
        "token_type": [1] * len(tokens) + [3, 3, 4],
        "merges": merges,
        "bos_token_id": len(tokens),
        "eos_token_id": len(tokens) + 1,
    } | changes
    return {f"tokenizer.ggml.{key}": value for key, value in facts.items()}


def metaspace() -> Tokenizer:
    """Word pieces joined by the Metaspace decoder, as XLNet's and T5's vocabularies are."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.train_from_iterator(SENTENCES, trainers.BpeTrainer(vocab_size=300, show_progress=False))
    return Tokenizer(backend)


def word_piece() -> Tokenizer:
    """A decoder that is no table of bytes: WordPiece joins words with spaces and "##" parts without."""
    backend = Backend(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"\w+|[^\w\s]"), "removed", invert=True)
    backend.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=120, show_progress=False, special_tokens=["[UNK]", "[SEP]"])
    backend.train_from_iterator(SENTENCES, trainer)
    return Tokenizer(backend, eos_token_ids=(backend.token_to_id("[SEP]"),))


def suffix_bpe() -> Tokenizer:
    """The oldest BPE notation: "</w>" ends a word."""
    backend = Backend(models.BPE(end_of_word_suffix="</w>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.BPEDecoder()
    trainer = trainers.BpeTrainer(vocab_size=150, show_progress=False, end_of_word_suffix="</w>")
    backend.train_from_iterator(SENTENCES, trainer)
    return Tokenizer(backend)


def words_only() -> Tokenizer:
    """No decoder at all: tokens are joined by spaces."""
    return Tokenizer(Backend(models.WordLevel({"a": 0, "bc": 1, "d": 2, "�": 3}, "a")))
