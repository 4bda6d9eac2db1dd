"""A group whose commands are imported when they are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click


class LazyGroup(click.Group):
    """Of a table: each command's module and its name there."""

    def __init__(self, name: str, table: Mapping[str, tuple[str, str]], **settings: Any) -> None:
        super().__init__(name, **settings)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.table:
            return None
        module, name = self.table[cmd_name]
        command: click.Command = getattr(import_module(module), name)
        return command
