"""Contestants around the fake peer, in real processes of this Python."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from specdec.eval.peers.compare import Task
from specdec.eval.peers.contestants import Contestant, peer

FAKE = Path(__file__).with_name("fake_peer.py")


def fake(label: str = "fake", **options: str) -> Contestant:
    made = peer(str(FAKE), Path(sys.executable), "model.bin", options)
    return replace(made, label=label)


def task(**changes: object) -> Task:
    default = Task(((1, 2, 3), (7,), (5, 6)), 4, (1,), num_rounds=1, num_threads=2, timeout_s=60)
    return replace(default, **changes)
