"""Let functions of torch take arrays of numpy in tests, which compare both kinds."""

from typing import Any

import numpy as np
import torch

from holdfast.numerics.arrays import HostArray
from holdfast.numerics.backends.torch.arrays import TorchArrays

_CPU = TorchArrays(torch.device("cpu"))


def as_tensor(value: Any) -> Any:
    """Return a value with tensors in place of arrays, in the same memory."""
    if isinstance(value, np.ndarray):
        return _CPU.from_numpy(value.view(np.ndarray))
    if isinstance(value, list | tuple):
        return type(value)(map(as_tensor, value))
    return value


def _call(cls: type, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    return function(*map(as_tensor, args), **{name: as_tensor(one) for name, one in (kwargs or {}).items()})


HostArray.__torch_function__ = classmethod(_call)
