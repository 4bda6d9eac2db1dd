"""A tokenizer from a GGUF file's metadata, such that it splits text as llama.cpp does.

Two kinds of vocabulary: "gpt2", byte-level BPE whose splitting into words is named by `tokenizer.ggml.pre`, and
"llama", SentencePiece BPE, where the pair that makes the token of the best score is merged first. Keys and token
types: the GGUF specification; defaults and end-of-turn names: llama.cpp's vocabulary loader.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from numbers import Integral
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from specdec.config import unknown_name
from specdec.tokenizer.parts import TokenizerParts
from specdec.tokenizer.pieces import SENTENCEPIECE_SPACE, byte_alphabet
from specdec.tokenizer.pretokenizers import PRE_TOKENIZERS, PreTokenizer

MODELS = ("gpt2", "llama")

END_OF_TURN = frozenset(
    {
        "</s>",
        "<eos>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|im_end|>",
        "<|end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<end_of_turn>",
        "<end_of_utterance>",
        "<EOT>",
        "<｜end▁of▁sentence｜>",
    }
)
"""Control tokens that end an answer, whatever the metadata declares."""


class _Type(IntEnum):
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class _Vocabulary:
    """The tokens by id with their types, and all of the metadata's `tokenizer.ggml.` keys without that prefix."""

    tokens: list[str]
    types: list[int]
    facts: Mapping[str, Any]

    def of_type(self, *types: _Type) -> list[str]:
        return [token for token, kind in zip(self.tokens, self.types, strict=True) if kind in types]

    def special_id(self, key: str, default: int | None = None) -> int | None:
        """The id that the metadata declares; one outside the vocabulary counts as none."""
        token_id = self.facts.get(key, default)
        if token_id is None:
            return None
        if not isinstance(token_id, Integral):
            raise ValueError(f"tokenizer.ggml.{key} must be a token id; got {token_id!r:.60}")
        return int(token_id) if 0 <= int(token_id) < len(self.tokens) else None


def parts_from_gguf(metadata: Mapping[str, Any]) -> TokenizerParts:
    """Build from the keys `tokenizer.*`; arrays may be lists or numpy arrays.

    ValueError, in one line, for a missing or malformed key, an unknown kind of vocabulary or pre-tokenizer.
    """
    vocabulary = _read_vocabulary(metadata)
    kind = vocabulary.facts.get("model")
    if kind == "gpt2":
        pre = _pre_tokenizer(vocabulary)
        backend, add_bos = _byte_level(vocabulary, pre), pre.add_bos
        bos, eos = vocabulary.special_id("bos_token_id"), vocabulary.special_id("eos_token_id")
    elif kind == "llama":
        backend, add_bos = _sentencepiece(vocabulary), True
        bos, eos = vocabulary.special_id("bos_token_id", 1), vocabulary.special_id("eos_token_id", 2)
    else:
        raise ValueError(unknown_name("tokenizer.ggml.model", kind, MODELS))
    backend.add_special_tokens([_added(token) for token in vocabulary.of_type(_Type.CONTROL, _Type.UNKNOWN)])
    backend.add_tokens([_added(token) for token in vocabulary.of_type(_Type.USER_DEFINED)])
    first = bos if vocabulary.facts.get("add_bos_token", add_bos) else None
    last = eos if vocabulary.facts.get("add_eos_token", False) else None
    if first is not None or last is not None:
        backend.post_processor = _surround(first, last)
    template = metadata.get("tokenizer.chat_template")
    if template is not None and not isinstance(template, str):
        raise ValueError(f"tokenizer.chat_template must be text; got {template!r:.60}")
    return TokenizerParts(backend, _end_of_generation(vocabulary, eos), bos, template)


def _read_vocabulary(metadata: Mapping[str, Any]) -> _Vocabulary:
    prefix = "tokenizer.ggml."
    facts = {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}
    tokens = [token or f"[EMPTY_{i}]" for i, token in enumerate(_array(facts, "tokens", str))]
    if len(set(tokens)) != len(tokens):
        raise ValueError("tokenizer.ggml.tokens must hold every token once, but has duplicates")
    types = _array({"token_type": [_Type.NORMAL] * len(tokens), **facts}, "token_type", int)
    if len(types) != len(tokens):
        raise ValueError(f"tokenizer.ggml.token_type must have one entry a token, {len(tokens)}; got {len(types)}")
    return _Vocabulary(tokens, types, facts)


def _array(facts: Mapping[str, Any], key: str, kind: type) -> list[Any]:
    """A list (or numpy array) whose entries are all of one kind."""
    if key not in facts:
        raise ValueError(f"the GGUF metadata has no tokenizer.ggml.{key}: the file holds no complete tokenizer")
    value = facts[key]
    entries = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(entries, list) or not all(isinstance(entry, kind) for entry in entries):
        raise ValueError(f"tokenizer.ggml.{key} must be an array of {kind.__name__}; got {value!r:.60}")
    return entries


def _pre_tokenizer(vocabulary: _Vocabulary) -> PreTokenizer:
    name = vocabulary.facts.get("pre", "default")
    if not isinstance(name, str) or name not in PRE_TOKENIZERS:
        raise ValueError(unknown_name("tokenizer.ggml.pre", name, PRE_TOKENIZERS))
    return PRE_TOKENIZERS[name]


def _byte_level(vocabulary: _Vocabulary, pre: PreTokenizer) -> Backend:
    ids = {token: i for i, token in enumerate(vocabulary.tokens)}
    merges = _split_merges(_array(vocabulary.facts, "merges", str))
    try:
        backend = Backend(models.BPE(ids, merges, ignore_merges=pre.ignore_merges))
    except Exception as error:
        raise ValueError(f"tokenizer.ggml.merges does not fit tokenizer.ggml.tokens: {error}") from None
    steps: list[Any] = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in pre.patterns]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    if missing := set(byte_alphabet().values()) - ids.keys():
        # A byte without a token is dropped; splitting there keeps its neighbours from merging across the gap.
        steps.append(pre_tokenizers.Split(_any_of(missing), "removed"))
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    backend.decoder = decoders.ByteLevel()
    return backend


def _split_merges(merges: list[str]) -> list[tuple[str, str]]:
    """Almost all have one space; only those with more need a closer look."""
    pairs = [merge.split(" ") for merge in merges]
    return [
        (pair[0], pair[1]) if len(pair) == 2 and pair[0] and pair[1] else _split_merge(merge)
        for pair, merge in zip(pairs, merges, strict=True)
    ]


def _split_merge(merge: str) -> tuple[str, str]:
    left, space, right = merge[1:].partition(" ")
    if not space:
        raise ValueError(f"tokenizer.ggml.merges must hold pairs such as 'a b'; got {merge!r}")
    return merge[:1] + left, right


def _any_of(characters: Iterable[str]) -> Regex:
    return Regex("[" + "".join(f"\\x{{{ord(char):X}}}" for char in sorted(characters)) + "]")


def _sentencepiece(vocabulary: _Vocabulary) -> Backend:
    unknown = vocabulary.special_id("unknown_token_id", 0)
    backend = Backend(
        models.BPE(
            {token: i for i, token in enumerate(vocabulary.tokens)},
            _merges_by_score(vocabulary),
            unk_token=None if unknown is None else vocabulary.tokens[unknown],
            fuse_unk=True,
            byte_fallback=_Type.BYTE in vocabulary.types,
        )
    )
    normalizer: list[Any] = [normalizers.Replace(" ", SENTENCEPIECE_SPACE)]
    decoder: list[Any] = [decoders.Replace(SENTENCEPIECE_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if vocabulary.facts.get("add_space_prefix", True):
        normalizer.insert(0, normalizers.Prepend(SENTENCEPIECE_SPACE))
        decoder.append(decoders.Strip(" ", 1, 0))
    backend.normalizer = normalizers.Sequence(normalizer)
    backend.decoder = decoders.Sequence(decoder)
    return backend


def _merges_by_score(vocabulary: _Vocabulary) -> list[tuple[str, str]]:
    """Every way to make a token of two others, those that make the best token first."""
    scores = _array(vocabulary.facts, "scores", float)
    if len(scores) != len(vocabulary.tokens):
        raise ValueError(
            f"tokenizer.ggml.scores must have one entry a token, {len(vocabulary.tokens)}; got {len(scores)}"
        )
    whole = (_Type.NORMAL, _Type.USER_DEFINED, _Type.UNUSED)
    ranked = sorted(
        (-score, i) for i, (score, kind) in enumerate(zip(scores, vocabulary.types, strict=True)) if kind in whole
    )
    known = set(vocabulary.of_type(*whole))
    tokens = (vocabulary.tokens[i] for _, i in ranked)
    return [
        (left, right)
        for token in tokens
        for cut in range(1, len(token))
        if (left := token[:cut]) in known and (right := token[cut:]) in known
    ]


def _added(token: str) -> AddedToken:
    return AddedToken(token, normalized=False)


def _surround(first: int | None, last: int | None) -> processors.TemplateProcessing:
    before = [] if first is None else [("first", first)]
    after = [] if last is None else [("last", last)]
    template = [*(name for name, _ in before), "$A", *(name for name, _ in after)]
    return processors.TemplateProcessing(single=template, special_tokens=before + after)


def _end_of_generation(vocabulary: _Vocabulary, eos: int | None) -> tuple[int, ...]:
    """The declared end-of-sequence and end-of-turn ids, then the vocabulary's control tokens known to end a turn."""
    declared = (eos, vocabulary.special_id("eot_token_id"), vocabulary.special_id("eom_token_id"))
    known = (
        i
        for i, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True))
        if kind == _Type.CONTROL and token in END_OF_TURN
    )
    return tuple(dict.fromkeys([*(token for token in declared if token is not None), *known]))
