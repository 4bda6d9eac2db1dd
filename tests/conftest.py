"""Settings shared by all tests."""

import os

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch
from hypothesis import settings

settings.register_profile("specdec", deadline=None, max_examples=60)
settings.load_profile("specdec")


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Tiny models are faster on one thread, and timings of parallel test runs do not disturb each other."""
    torch.set_num_threads(1)
