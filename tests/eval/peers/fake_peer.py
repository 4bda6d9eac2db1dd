"""A library that counts: after a prompt come its last token + 1, + 2, ... Its options make it misbehave."""

from __future__ import annotations

import os
import sys

from specdec_peers.generation import Generation, left_padded

OPTIONS = ("die_at_batch", "refuse_batch", "stutter", "exit_on_load", "second_per_token")


def load(asked):  # type: ignore[no-untyped-def]
    asked.check_options(OPTIONS)
    print("a library greets you")
    if "exit_on_load" in asked.options:
        sys.exit("no such instruction")
    return FakePeer(asked)


class FakePeer:
    def __init__(self, asked) -> None:  # type: ignore[no-untyped-def]
        self.library = f"fake of {asked.model}, {asked.num_threads} threads, OMP {os.environ['OMP_NUM_THREADS']}"
        self.precision = "int3"
        self.options = asked.options
        self.seconds = float(asked.options.get("second_per_token", "1"))

    def generate(self, prompts, max_tokens):  # type: ignore[no-untyped-def]
        print("noise")
        size = len(prompts)
        if self.options.get("die_at_batch") == str(size):
            print("out of cheese", file=sys.stderr, flush=True)
            os._exit(3)
        if self.options.get("refuse_batch") == str(size):
            raise ValueError(f"not {size} at once")
        rows, _ = left_padded(prompts, 0)
        count = max_tokens - ("stutter" in self.options and max_tokens > 2)
        answers = [[row[-1] + 1 + i for i in range(count)] for row in rows]
        return Generation(answers, 2.0, size, 2.0 + self.seconds * (max_tokens - 1))
