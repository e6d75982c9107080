"""Arrays of torch, for GPUs and for machines without C kernels."""

from functools import partial
from typing import Any

import torch

_MAKERS = ("empty", "zeros", "ones", "full", "arange", "linspace", "tensor")


class TorchArrays:
    """What `HostArrays` has, for tensors on one device: torch's own functions."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        for name in _MAKERS:
            setattr(self, name, partial(getattr(torch, name), device=device))

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def dtype(self, name: str) -> torch.dtype:
        found: torch.dtype = getattr(torch, name)
        return found

    def inference(self) -> Any:
        return torch.inference_mode()

    def from_numpy(self, array: Any) -> torch.Tensor:
        """Return the array on the device; on a CPU it is the same memory."""
        if isinstance(array, torch.Tensor):
            return array.to(self._device)
        if array.dtype.name == "bfloat16":
            return self.from_numpy(array.view("i2")).view(torch.bfloat16)
        return torch.from_numpy(array).to(self._device)

    def generator(self, seed: int) -> torch.Generator:
        return torch.Generator(self._device).manual_seed(seed)

    def randn(self, *shape: Any, generator: torch.Generator) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device=self._device)
