"""`specdec train`: what drafts, trained on what the target itself says."""

from __future__ import annotations

from specdec.cli.lazy import LazyGroup

COMMANDS = {
    "data": ("specdec.cli.train_data", "data"),
    "eagle3": ("specdec.cli.train_heads", "eagle3"),
    "medusa": ("specdec.cli.train_heads", "medusa"),
    "draft": ("specdec.cli.train_heads", "draft"),
}
"""Each command's module and its name there."""

train = LazyGroup("train", COMMANDS, help="Train what drafts for a model.", no_args_is_help=True)
