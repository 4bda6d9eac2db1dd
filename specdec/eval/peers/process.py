"""A worker process seen from outside: requests in, replies out, and what it said last when it is gone."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

CLOSE_SECONDS = 5.0
"""What a worker gets to end by itself once its input has ended."""


class PeerFailed(Exception):
    """The worker refused a request; it can be asked for something else."""


class PeerLost(Exception):
    """There is no worker any more."""


class PeerProcess:
    """As a context manager it ends the process at its end."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        """Start the worker. PeerLost if it cannot be started."""
        self._unread = b""
        with ExitStack() as stack:
            self._log = stack.enter_context(tempfile.TemporaryFile())
            try:
                self._process = subprocess.Popen(
                    argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log
                )
            except OSError as error:
                raise PeerLost(f"cannot be started: {argv[0]}: {error.strerror or error}") from None
            self._held = stack.pop_all()

    def __enter__(self) -> PeerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, request: Mapping[str, object], timeout_s: float) -> dict[str, Any]:
        """The reply to a request. PeerFailed for one that is an error; PeerLost where none comes."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise PeerLost(self._last_words()) from None
        line = self._line(time.monotonic() + timeout_s)
        if line is None:
            self._process.kill()
            raise PeerLost(f"no answer to {request['op']} within {timeout_s:g} s")
        try:
            reply = json.loads(line)
        except ValueError:
            raise PeerLost(f"answered what is no JSON: {line[:80]!r}") from None
        if "error" in reply:
            raise PeerFailed(str(reply["error"]))
        assert isinstance(reply, dict)
        return reply

    def close(self) -> None:
        """End the process: by the end of its input, or else by force. Once it is ended, nothing."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(OSError):  # what was still to be written may have no reader
                pipe.close()
        try:
            self._process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._held.close()

    def _line(self, deadline: float) -> bytes | None:
        """The next line of the worker's output; None once it is too late."""
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    return None
                more = os.read(self._process.stdout.fileno(), 1 << 20)
                if not more:
                    raise PeerLost(self._last_words())
                self._unread += more
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _last_words(self) -> str:
        """How it ended, and the last line that it wrote to standard error."""
        try:
            code = self._process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            return "closed its output"
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").strip().splitlines()
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return f"{how}; its last words: {lines[-1].strip()}" if lines else how
