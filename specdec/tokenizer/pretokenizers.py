"""How byte-level vocabularies split text into words before merging, by the names GGUF gives them.

The patterns are data: they come with the models (`pre_tokenizer` in their tokenizer.json), and llama.cpp names them.
A vocabulary under the wrong pattern still encodes, into tokens that the model has hardly seen; hence no fallback.
"""

from __future__ import annotations

from dataclasses import dataclass

_CONTRACTION = r"'s|'t|'re|'ve|'m|'ll|'d"
_ANY_CASE_CONTRACTION = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
_SPACES = r"\s+(?!\S)|\s+"
_GPT2 = rf"{_CONTRACTION}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|{_SPACES}"
_UP_TO_THREE_DIGITS = (
    rf"{_ANY_CASE_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|{_SPACES}"
)
_ONE_DIGIT = _UP_TO_THREE_DIGITS.replace("{1,3}", "")
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BY_CASE = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|{_SPACES}"
)


@dataclass(frozen=True)
class PreTokenizer:
    """Each of `patterns` cuts the pieces that the one before it left into its matches and what lies between them.

    `ignore_merges`: a word that is itself a token is that token, whether or not merges lead there. `add_bos`: texts
    begin with the BOS token unless the metadata says otherwise.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


_DEFAULT = PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"))
_WORDS = PreTokenizer((_GPT2,))
_SINGLE_DIGITS = PreTokenizer((r"\p{N}", _GPT2))
_LLAMA3 = PreTokenizer((_UP_TO_THREE_DIGITS,), ignore_merges=True, add_bos=True)
_LLAMA3_BY_MERGES = PreTokenizer((_UP_TO_THREE_DIGITS,))
_QWEN2 = PreTokenizer((_ONE_DIGIT,))
_TEKKEN = PreTokenizer((_BY_CASE,), ignore_merges=True, add_bos=True)

PRE_TOKENIZERS = {
    "default": _DEFAULT,
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "exaone4", "trillion"), _WORDS),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"), _SINGLE_DIGITS),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"), _LLAMA3),
    **dict.fromkeys(("smaug-bpe", "dbrx", "glm4", "chatglm-bpe"), _LLAMA3_BY_MERGES),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2", "megrez", "hunyuan"), _QWEN2),
    "tekken": _TEKKEN,
}
"""By `tokenizer.ggml.pre`."""
