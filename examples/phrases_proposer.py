"""Drafts the rest of a known phrase, wherever the last few tokens lie inside it: licences, letters, templates."""

from collections.abc import Sequence
from dataclasses import dataclass

from specdec.proposers.base import NOTHING
from specdec.types import Draft


class PhrasesProposer:
    kv_caches = ()  # it keeps no KV of its own,
    wants = NOTHING  # and token ids are enough for it

    @dataclass(frozen=True)
    class Settings:  # its own keys in speculative_config
        phrases: Sequence[str]
        match: int = 2  # so many tokens must agree

    def __init__(self, settings, context):
        phrases = [context.tokenizer.encode(phrase, add_special_tokens=False) for phrase in settings.phrases]
        self.match = n = settings.match
        self.rest = {tuple(ids[i : i + n]): ids[i + n :] for ids in phrases for i in range(len(ids) - n)}

    def propose(self, sequences, inp):  # one draft for each sequence, at most so many tokens long
        found = [self.rest.get(tuple(sequence.token_ids[-self.match :]), ()) for sequence in sequences]
        return [Draft(tuple(ids[:length])) for ids, length in zip(found, inp.lengths, strict=True)]

    def forget(self, sequence):  # the sequence is done; nothing was kept of it
        pass
