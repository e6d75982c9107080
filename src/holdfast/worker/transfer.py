"""Numbers down to the device and results up again, without waiting for it.

On CUDA everything goes through pinned memory, by asynchronous copies on the current stream; torch keeps a pinned block from
being used again until its copy is done. On CPU nothing is copied, and work is done where it is asked for.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

_ALIGNMENT = 16  # bytes


def aligned(count: int, size: int) -> int:
    """So many numbers of so many bytes, and a few more so that what stands behind them in a buffer is aligned.

    Triton compiles a kernel once more for a pointer that is not, and that would be in the middle of somebody's answer.
    """
    return -(-count * size // _ALIGNMENT) * _ALIGNMENT // size


def staging(num_words: int, device: torch.device) -> Tensor:
    """Memory of the host to be filled and sent, int64 [num_words]."""
    return torch.empty(num_words, dtype=torch.int64, pin_memory=device.type == "cuda")


def send(host: Tensor, device: torch.device) -> Tensor:
    """What was staged, on the device; on CPU the same memory."""
    return host.to(device, non_blocking=True)


def send_array(array: NDArray[Any], device: torch.device) -> Tensor:
    """A contiguous array on the device. On CPU it is the array's own memory."""
    host = torch.from_numpy(array)
    return send(host.pin_memory(), device) if device.type == "cuda" else host


class Stream:
    """A queue of work on a device, in order, beside everybody else's."""

    def __init__(self, device: torch.device) -> None:
        self.cuda = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Work inside goes into this queue, behind what whoever enters has asked of the device so far."""
        if self.cuda is None:
            yield
            return
        self.cuda.wait_stream(torch.cuda.current_stream(self.cuda.device))
        with torch.cuda.stream(self.cuda):
            yield


class HostCopies:
    """TensorSource on their way up: take them while work is enqueued, seal, and read them after `wait`."""

    def __init__(self, device: torch.device) -> None:
        self._done = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def take(self, tensor: Tensor) -> Tensor:
        """The tensor on the host, once `wait` has returned."""
        if self._done is None:
            return tensor
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return host.copy_(tensor, non_blocking=True)

    def seal(self) -> None:
        """Nothing more is taken. Called on the stream the tensors were made on."""
        if self._done is not None:
            self._done.record()

    def wait(self) -> None:
        """Until everything taken is there, and for nothing that was enqueued later."""
        if self._done is not None:
            self._done.synchronize()
