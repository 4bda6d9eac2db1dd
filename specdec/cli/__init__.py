"""The `specdec` command. Importing it must stay light: a command imports torch when it runs, not before."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from specdec.cli.errors import INTERRUPTED, say

if TYPE_CHECKING:
    from specdec.cli.generate import BuildEngine

__all__ = ["main"]


def main(args: Sequence[str] | None = None, *, build_engine: BuildEngine | None = None) -> NoReturn:
    """Run the command line and exit with its code.

    `args` None takes the process's own. `build_engine` replaces how `generate` makes its engine from the checked
    configuration: a program that wraps another engine, or a test, gives its own.
    """
    try:
        # Ctrl-C may come while Python still reads modules.
        from specdec.cli.app import exit_code

        code = exit_code(list(sys.argv[1:] if args is None else args), build_engine)
    except KeyboardInterrupt:
        say("interrupted")
        code = INTERRUPTED
    sys.exit(code)
