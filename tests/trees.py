"""Proposers of trees for the scripted model."""

from __future__ import annotations

from collections.abc import Sequence as Many

import numpy as np
import torch

from specdec.core.sequence import Sequence
from specdec.proposers.base import NOTHING, ProposalInput
from specdec.types import Draft
from tests.toys import ScriptedModel


class Growing:
    """Lays out a tree node by node; siblings must differ."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.parents: list[int] = []

    def add(self, token: int, parent: int) -> int:
        self.token_ids.append(token)
        self.parents.append(parent)
        return len(self.token_ids) - 1

    def draft(self, name: str, probs: Many[torch.Tensor] = ()) -> Draft:
        return Draft(tuple(self.token_ids), tuple(self.parents), torch.stack([*probs]) if probs else None, name)


class OracleTree:
    """The greedy path for `correct` tokens, each after a wrong sibling that has a child of its own."""

    kv_caches = ()
    wants = NOTHING

    def __init__(self, model: ScriptedModel, correct: int) -> None:
        self.model, self.correct = model, correct

    def propose(self, sequences: Many[Sequence], inp: ProposalInput) -> list[Draft]:
        return [self._draft(tuple(s.token_ids), n) for s, n in zip(sequences, inp.lengths, strict=True)]

    def _draft(self, prefix: tuple[int, ...], length: int) -> Draft:
        tree, node, size = Growing(), -1, self.model.vocab_size
        for depth in range(length):
            best = int(self.model.logits(prefix).argmax())
            wrong = tree.add((best + 1) % size, node)
            if depth + 1 < length:
                tree.add(best, wrong)
            node = tree.add(best if depth < self.correct else (best + 2) % size, node)
            prefix = (*prefix, tree.token_ids[node])
        return tree.draft("oracle-tree")

    def forget(self, sequence: Sequence) -> None:
        pass


class CoupledTree(OracleTree):
    """The path that a plain run is known to take, given by its tokens; wrong siblings and a wrong end as above."""

    def __init__(self, model: ScriptedModel, truth: Many[int], correct: int) -> None:
        super().__init__(model, correct)
        self.truth = truth

    def _draft(self, prefix: tuple[int, ...], length: int) -> Draft:
        tree, node, size = Growing(), -1, self.model.vocab_size
        for depth, token in enumerate(self.truth[len(prefix) : len(prefix) + length]):
            tree.add((token + 1) % size, node)
            node = tree.add(token if depth < self.correct else (token + 2) % size, node)
        return tree.draft("coupled-tree")


class RandomTree:
    """Any shape, tokens that depend on nothing that is true; with `every` above 1 only some drafts are trees."""

    kv_caches = ()
    wants = NOTHING

    def __init__(self, vocab_size: int, most: int = 12, every: int = 1) -> None:
        self.vocab_size, self.most, self.every = vocab_size, most, every

    def propose(self, sequences: Many[Sequence], inp: ProposalInput) -> list[Draft]:
        return [self._draft(s, n) for s, n in zip(sequences, inp.lengths, strict=True)]

    def _draft(self, sequence: Sequence, length: int) -> Draft:
        rng = np.random.default_rng([sequence.num_tokens, sequence.index, len(sequence.request.prompt_token_ids)])
        if (sequence.num_tokens + sequence.num_prompt_tokens) % self.every:
            return Draft(tuple(int(t) for t in rng.integers(0, self.vocab_size, length)), proposer="random-tree")
        tree, depths = Growing(), [0]
        for _ in range(int(rng.integers(0, self.most + 1))):
            parent, token = int(rng.integers(-1, len(tree.token_ids))), int(rng.integers(0, self.vocab_size))
            taken = {t for t, p in zip(tree.token_ids, tree.parents, strict=True) if p == parent}
            if depths[parent + 1] < length and token not in taken:
                tree.add(token, parent)
                depths.append(depths[parent + 1] + 1)
        return tree.draft("random-tree")

    def forget(self, sequence: Sequence) -> None:
        pass


class SelfTree:
    """The target's own law: at each node of the first path `width` children, drawn without replacement and reported."""

    kv_caches = ()
    wants = NOTHING

    def __init__(self, model: ScriptedModel, width: int = 2) -> None:
        self.model, self.width = model, width

    def propose(self, sequences: Many[Sequence], inp: ProposalInput) -> list[Draft]:
        return [self._draft(s, n) for s, n in zip(sequences, inp.lengths, strict=True)]

    def _draft(self, sequence: Sequence, length: int) -> Draft:
        params = sequence.request.params
        rng = np.random.default_rng([sequence.request.seed, sequence.index, sequence.num_tokens])
        tree, node, prefix, rows = Growing(), -1, tuple(sequence.token_ids), []
        for _ in range(length):
            logits = self.model.logits(prefix)
            if params.is_greedy:
                children = [int(t) for t in logits.topk(self.width).indices]
            else:
                law = torch.softmax(logits / params.temperature, dim=-1)
                children = [int(t) for t in rng.choice(len(law), self.width, replace=False, p=law.numpy())]
                rows += [law] * self.width
            nodes = [tree.add(token, node) for token in children]
            node, prefix = nodes[0], (*prefix, children[0])
        return tree.draft("self-tree", rows)

    def forget(self, sequence: Sequence) -> None:
        pass
