"""AdamW with warm-up and a cosine, clipped gradients, and an average of the weights. Knows no model."""

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


class Optimiser:
    """What changes the weights, and all that it remembers between steps."""

    def __init__(self, parameters: Iterable[nn.Parameter], config: OptimiserConfig) -> None:
        self.config = config
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        decayed = [parameter for parameter in self.parameters if parameter.dim() > 1]
        others = [parameter for parameter in self.parameters if parameter.dim() <= 1]
        groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
        self._adam = torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=config.learning_rate,
            betas=(config.beta1, config.beta2),
            eps=config.epsilon,
            fused=True,
        )
        self.averages = [parameter.detach().clone() for parameter in self.parameters] if config.ema else []

    def step(self, step: int, num_steps: int) -> float:
        """Apply and clear the gradients; their norm before clipping."""
        norm = nn.utils.clip_grad_norm_(self.parameters, self.config.clip)
        for group in self._adam.param_groups:
            group["lr"] = learning_rate(step, num_steps, self.config)
        self._adam.step()
        self._adam.zero_grad(set_to_none=True)
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
        return {"adam": self._adam.state_dict(), "averages": self.averages}

    def restore(self, state: dict[str, object]) -> None:
        """Go on from `state`."""
        self._adam.load_state_dict(state["adam"])  # type: ignore[arg-type]
        averages = state["averages"]
        assert isinstance(averages, list)
        for mine, theirs in zip(self.averages, averages, strict=True):
            mine.copy_(theirs)
