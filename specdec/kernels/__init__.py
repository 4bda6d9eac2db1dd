"""The ops a step is made of, one signature in every backend. They know nothing of specdec."""

from collections.abc import Callable
from pathlib import Path

import torch

from specdec.kernels import reference
from specdec.kernels.base import INPUTS, Kernels, Program, StepInputs
from specdec.kernels.threads import one_torch_thread, physical_cores
from specdec.kernels.weights import PackedWeight, QuantizedWeight, Weight

__all__ = [
    "INPUTS",
    "Kernels",
    "PackedWeight",
    "Program",
    "QuantizedWeight",
    "StepInputs",
    "Weight",
    "choose_backend",
    "one_torch_thread",
    "physical_cores",
]


def choose_backend(
    device_type: str,
    *,
    name: str = "auto",
    dtype: str = "float32",
    folder: Path | None = None,
    num_threads: int | None = None,
    notify: Callable[[str], None] | None = None,
) -> Kernels:
    """The kernels for a device type ("cpu", "cuda") and a model in `dtype`.

    On a CPU these are compiled ones, kept below `folder` (None: none are compiled), with `num_threads` threads (None:
    one a core). The plain torch reference serves every device and dtype; `name` "auto" falls back to it, telling
    `notify` why in one line, "reference" asks for it, and "native" is a ValueError where there are no others. Its
    threads are torch's, which are the process's: `num_threads` sets them, None leaves them as they are.
    """
    if name == "reference" or folder is None:
        return _reference(num_threads)
    problem = f"there are none for {device_type}" if device_type != "cpu" else None
    if dtype == "float64":
        problem = "they compute in float32, and the model is to run in float64"
    if problem is None:
        from specdec.kernels.cpu.backend import CpuKernels
        from specdec.kernels.cpu.build import NoCompiler, build_library
        from specdec.kernels.cpu.library import Library

        try:
            return CpuKernels(Library(build_library(folder), num_threads or physical_cores()))
        except NoCompiler as error:
            problem = str(error)
            if notify is not None and name == "auto":
                notify(f"decoding with plain torch, many times as slow as compiled kernels: {problem}")
    if name == "native":
        raise ValueError(f"there are no native kernels: {problem}")
    return _reference(num_threads)


def _reference(num_threads: int | None) -> Kernels:
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    return reference
