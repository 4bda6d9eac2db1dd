"""The `specdec` command. Importing it must stay light: a command imports torch when it runs, not before."""

from specdec.cli.app import main

__all__ = ["main"]
