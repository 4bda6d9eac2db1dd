"""What a trained thing was made of and with; it stands beside every checkpoint."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import torch

from specdec import __version__
from specdec.train.recipe import TrainConfig


def provenance(
    *,
    command: str,
    config: TrainConfig,
    target: Mapping[str, Any],
    data: Mapping[str, Any],
    progress: Mapping[str, Any],
) -> dict[str, Any]:
    """`target` and `data` name what was trained for and on; `progress` is how far it came."""
    return {
        "command": command,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"specdec": __version__, "torch": str(torch.__version__), "python": platform.python_version()},
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "torch_threads": torch.get_num_threads(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
        "recipe": asdict(config),
        "target": dict(target),
        "data": dict(data),
        "progress": dict(progress),
    }
