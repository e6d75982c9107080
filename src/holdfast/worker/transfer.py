"""Copies between host and device that do not block the host.

On CUDA all copies go through pinned memory and are asynchronous on the current stream. Torch does
not reuse a pinned block before its copy is done. On CPU nothing is copied, and work is done when it
is called.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

_ALIGNMENT = 16  # bytes


def aligned(count: int, size: int) -> int:
    """Round `count` numbers of `size` bytes up, so that what follows in a buffer is aligned. Triton compiles
    a kernel again for an unaligned pointer, which would delay a request."""
    return -(-count * size // _ALIGNMENT) * _ALIGNMENT // size


def staging_buffer(num_words: int, device: torch.device) -> Tensor:
    """Return host memory to fill and send, int64 [num_words]; pinned for CUDA."""
    return torch.empty(num_words, dtype=torch.int64, pin_memory=device.type == "cuda")


def send(host: Tensor, device: torch.device) -> Tensor:
    """Return a staging buffer on the device; on a CPU the same memory."""
    return host.to(device, non_blocking=True)


def send_array(array: NDArray[Any], device: torch.device) -> Tensor:
    """Return a contiguous array on the device; on a CPU the array's own memory."""
    host = torch.from_numpy(array)
    return send(host.pin_memory(), device) if device.type == "cuda" else host


class DeviceStream:
    """A CUDA stream of its own; on CPU nothing."""

    def __init__(self, device: torch.device) -> None:
        self.cuda = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Enqueue on this stream, after the work enqueued on the caller's current stream."""
        if self.cuda is None:
            yield
            return
        self.cuda.wait_stream(torch.cuda.current_stream(self.cuda.device))
        with torch.cuda.stream(self.cuda):
            yield


class HostCopies:
    """Copies from device to host: `add` while work is enqueued, `finish`, read after `wait`."""

    def __init__(self, device: torch.device) -> None:
        self._done = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def add(self, tensor: Tensor) -> Tensor:
        """Return a host tensor that holds the values once `wait` has returned."""
        if self._done is None:
            return tensor
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return host.copy_(tensor, non_blocking=True)

    def finish(self) -> None:
        """Add no more copies. Called on the stream that computed the tensors."""
        if self._done is not None:
            self._done.record()

    def wait(self) -> None:
        """Wait for the copies, but not for work that was enqueued after `finish`."""
        if self._done is not None:
            self._done.synchronize()
