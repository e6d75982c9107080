"""Copies between host and device that do not block the host.

On CUDA all copies go through pinned memory and are asynchronous on the current stream. Torch does
not reuse a pinned block before its copy is done. On CPU nothing is copied, and work is done when it
is called.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numpy.typing import NDArray

from holdfast.numerics.arrays import Device, Tensor, arrays_on

_ALIGNMENT = 16  # bytes


def aligned(count: int, size: int) -> int:
    """Round `count` numbers of `size` bytes up, so that what follows in a buffer is aligned. Triton compiles
    a kernel again for an unaligned pointer, which would delay a request."""
    return -(-count * size // _ALIGNMENT) * _ALIGNMENT // size


def staging_buffer(num_words: int, device: Device) -> Tensor:
    """Return host memory to fill and send, int64 [num_words]; pinned for CUDA."""
    if device.type != "cuda":
        xp = arrays_on(device)
        return xp.empty(num_words, dtype=xp.int64)
    import torch

    return torch.empty(num_words, dtype=torch.int64, pin_memory=True)


def send(host: Tensor, device: Device) -> Tensor:
    """Return a staging buffer on the device; on a CPU the same memory."""
    return host.to(device, non_blocking=True)


def send_array(array: NDArray[Any], device: Device) -> Tensor:
    """Return a contiguous array on the device; on a CPU the array's own memory."""
    if device.type != "cuda":
        return arrays_on(device).from_numpy(array)
    import torch

    return send(torch.from_numpy(array).pin_memory(), device)


class DeviceStream:
    """A CUDA stream of its own; on CPU nothing."""

    def __init__(self, device: Device) -> None:
        self.cuda = None
        if device.type == "cuda":
            import torch

            self.cuda = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        """Wait until the device has done all work."""
        import torch

        torch.cuda.synchronize(self.cuda.device if self.cuda else None)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Enqueue on this stream, after the work enqueued on the caller's current stream."""
        if self.cuda is None:
            yield
            return
        import torch

        self.cuda.wait_stream(torch.cuda.current_stream(self.cuda.device))
        with torch.cuda.stream(self.cuda):
            yield


class HostCopies:
    """Copies from device to host: `add` while work is enqueued, `finish`, read after `wait`."""

    def __init__(self, device: Device) -> None:
        self._done = None
        if device.type == "cuda":
            import torch

            self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def add(self, tensor: Tensor) -> Tensor:
        """Return a host tensor that holds the values once `wait` has returned."""
        if self._done is None:
            return tensor
        host = tensor.new_empty(tensor.shape, device="cpu", pin_memory=True)
        return host.copy_(tensor, non_blocking=True)

    def finish(self) -> None:
        """Add no more copies. Called on the stream that computed the tensors."""
        if self._done is not None:
            self._done.record()

    def wait(self) -> None:
        """Wait for the copies, but not for work that was enqueued after `finish`."""
        if self._done is not None:
            self._done.synchronize()
