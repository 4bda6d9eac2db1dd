"""Muon and AdamW with warm-up and a cosine, clipped gradients, and an average of the weights. Knows no model.

Muon makes each step of a matrix orthogonal, all of its directions alike (Jordan et al. 2024, scaled as in arXiv
2502.16982, so that AdamW's learning rates fit). That is for matrices that map states to states. Those with a row for
each token, of which a step needs few, and vectors are AdamW's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import nn

from specdec.train.recipe import OptimiserConfig


def learning_rate(step: int, num_steps: int, config: OptimiserConfig) -> float:
    """Of step `step` (from 0) of `num_steps`: up in a line, then down along half a cosine to its last share."""
    warmup = max(1, round(config.warmup * num_steps))
    if step < warmup:
        return config.learning_rate * (step + 1) / warmup
    done = (step - warmup) / max(1, num_steps - warmup)
    floor = config.final_share
    return config.learning_rate * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))


MUON_MOMENTUM = 0.95


class Optimiser:
    """What changes the weights, and all that it remembers between steps."""

    def __init__(self, parameters: Iterable[tuple[str, nn.Parameter]], config: OptimiserConfig) -> None:
        """`parameters` with their names: one with a row for each token has `lm_head` in it."""
        self.config = config
        named = [(name, parameter) for name, parameter in parameters if parameter.requires_grad]
        self.parameters = [parameter for _, parameter in named]
        muon = [p for name, p in named if config.method == "muon" and p.dim() == 2 and "lm_head" not in name]
        rest = [p for p in self.parameters if not any(p is each for each in muon)]
        self._optimisers = {"muon": self._muon(muon)} if muon else {}
        if rest:
            self._optimisers["adam"] = self._adam(rest)
        self.averages = [parameter.detach().clone() for parameter in self.parameters] if config.ema else []

    def step(self, step: int, num_steps: int) -> float:
        """Apply and clear the gradients; their norm before clipping."""
        norm = nn.utils.clip_grad_norm_(self.parameters, self.config.clip)
        for optimiser in self._optimisers.values():
            for group in optimiser.param_groups:
                group["lr"] = learning_rate(step, num_steps, self.config)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        if self.averages:
            # Young averages follow closely: they must not remember how training began.
            keep = min(self.config.ema, (1 + step) / (10 + step))
            with torch.no_grad():
                torch._foreach_lerp_(self.averages, [*self.parameters], 1.0 - keep)
        return float(norm)

    def swap_averages(self) -> None:
        """Exchange the weights for their averages; twice is as never."""
        with torch.no_grad():
            for parameter, average in zip(self.parameters, self.averages, strict=bool(self.averages)):
                kept = parameter.clone()
                parameter.copy_(average)
                average.copy_(kept)

    def state(self) -> dict[str, object]:
        """What a checkpoint keeps."""
        return {**{name: each.state_dict() for name, each in self._optimisers.items()}, "averages": self.averages}

    def restore(self, state: dict[str, object]) -> None:
        """Go on from `state`."""
        for name, optimiser in self._optimisers.items():
            optimiser.load_state_dict(state[name])  # type: ignore[arg-type]
        averages = state["averages"]
        assert isinstance(averages, list)
        for mine, theirs in zip(self.averages, averages, strict=True):
            mine.copy_(theirs)

    def _muon(self, matrices: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Muon(
            matrices,
            lr=self.config.learning_rate,
            weight_decay=self.config.weight_decay,
            momentum=MUON_MOMENTUM,
            ns_steps=self.config.muon_iterations,
            adjust_lr_fn="match_rms_adamw",
        )

    def _adam(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        decayed = [parameter for parameter in parameters if parameter.dim() > 1]
        others = [parameter for parameter in parameters if parameter.dim() <= 1]
        groups = [
            {"params": decayed, "weight_decay": self.config.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=self.config.learning_rate,
            betas=(self.config.beta1, self.config.beta2),
            eps=self.config.epsilon,
            fused=True,
        )
