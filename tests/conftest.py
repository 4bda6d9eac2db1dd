"""Settings shared by all tests."""

import os

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("GOMP_SPINCOUNT", "2000")  # as specdec.config.calm_threads

import pytest
import torch
from hypothesis import settings

# In CI the examples are fixed, so that a change is judged by its own faults; elsewhere every run explores anew.
settings.register_profile("specdec", deadline=None, max_examples=60, derandomize="CI" in os.environ)
settings.load_profile("specdec")


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Tiny models are faster on one thread, and timings of parallel test runs do not disturb each other."""
    torch.set_num_threads(1)
