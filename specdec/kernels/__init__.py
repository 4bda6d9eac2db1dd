"""The ops a step is made of, one signature in every backend. They know nothing of specdec."""

from specdec.kernels import reference
from specdec.kernels.base import Kernels

__all__ = ["Kernels", "choose_backend"]


def choose_backend(device_type: str) -> Kernels:
    """The kernels for a device type ("cpu", "cuda"). The plain torch reference serves every device."""
    return reference
