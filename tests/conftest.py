"""Settings shared by all tests."""

import os

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("GOMP_SPINCOUNT", "2000")  # as specdec.config.calm_threads

import pytest
import torch
from hypothesis import settings

from tests.native import NativeKernels

# In CI the examples are fixed, so that a change is judged by its own faults; elsewhere every run explores anew.
settings.register_profile("specdec", deadline=None, max_examples=60, derandomize="CI" in os.environ)
settings.load_profile("specdec")


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Tiny models are faster on one thread, and timings of parallel test runs do not disturb each other."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def native(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> NativeKernels:
    """The compiled kernels; they lie in pytest's cache, so that only a change of theirs compiles them anew."""
    cache = request.config.cache
    return NativeKernels(tmp_path_factory.mktemp("kernels") if cache is None else cache.mkdir("kernels"))
