"""Run an EAGLE head over token lists through a paged cache full of NaN, in which position 0 stays so."""

from __future__ import annotations

from dataclasses import replace

import torch

from specdec.models.eagle import EagleHead
from specdec.types import Draft
from tests.models.stepping import Span, Stepper


@torch.inference_mode()
def chunked_outputs(
    head: EagleHead, prompts: list[list[int]], combined: list[torch.Tensor], chunk: int
) -> list[torch.Tensor]:
    """Raw outputs [n - 1, H] at the positions 1 .. n - 1 of every prompt, rows advancing together by `chunk` a step.

    `combined` are each prompt's features of the positions 0 .. n - 2.
    """
    stepper = Stepper(head)
    sequences = [stepper.sequence(prompt, f"row {i}") for i, prompt in enumerate(prompts)]
    parts: list[list[torch.Tensor]] = [[] for _ in prompts]
    for start in range(1, max(map(len, prompts)), chunk):
        active = [i for i, prompt in enumerate(prompts) if start < len(prompt)]
        spans = [Span(sequences[i], start, min(chunk, len(prompts[i]) - start)) for i in active]
        features = torch.cat(
            [combined[i][span.start - 1 :][: span.count] for i, span in zip(active, spans, strict=True)]
        )
        outputs = head(stepper.batch(spans), stepper.kv, features)
        for i, part in zip(active, outputs.split([span.count for span in spans]), strict=True):
            parts[i].append(part)
    return [torch.cat(part) for part in parts]


@torch.inference_mode()
def chain_outputs(head: EagleHead, prompt: list[int], combined: torch.Tensor, path: list[int]) -> torch.Tensor:
    """Raw outputs of `path` guessed on after `prompt`, token by token, each fed the output before: [len(path), H]."""
    stepper = Stepper(head)
    sequence = stepper.sequence(prompt + path)
    output = head(stepper.batch([Span(sequence, 1, len(prompt) - 1)]), stepper.kv, combined)[-1:]
    outputs = []
    for position in range(len(prompt), len(prompt) + len(path)):
        output = head(stepper.batch([Span(sequence, position, 1)]), stepper.kv, output)
        outputs.append(output)
    return torch.cat(outputs)


@torch.inference_mode()
def tree_outputs(head: EagleHead, prompt: list[int], combined: torch.Tensor, draft: Draft) -> torch.Tensor:
    """Raw outputs of a tree guessed on after `prompt`, level by level, each node fed its parent's: [nodes, H]."""
    assert draft.parents is not None
    stepper = Stepper(head)
    sequence = stepper.sequence(prompt)
    first = head(stepper.batch([Span(sequence, 1, len(prompt) - 1)]), stepper.kv, combined)[-1]
    outputs = first.new_full((len(draft), len(first)), float("nan"))
    whole = stepper.batch([Span(sequence, len(prompt), 0, draft)])
    assert whole.ancestor_masks is not None
    for position in whole.positions.unique().tolist():
        nodes = (whole.positions == position).nonzero().flatten()
        level = replace(
            whole,
            token_ids=whole.token_ids[nodes],
            positions=whole.positions[nodes],
            slot_mapping=whole.slot_mapping[nodes],
            query_start_loc=torch.tensor([0, len(nodes)], dtype=torch.int32),
            ancestor_masks=whole.ancestor_masks[nodes],
        )
        parents = [draft.parents[node] for node in nodes.tolist()]
        features = torch.stack([first if parent < 0 else outputs[parent] for parent in parents])
        outputs[nodes] = head(level, stepper.kv, features)
    return outputs


def path_to(draft: Draft, node: int) -> list[int]:
    """The nodes from a root to `node`."""
    assert draft.parents is not None
    parent = draft.parents[node]
    return [node] if parent < 0 else [*path_to(draft, parent), node]
