"""Arrays of a backend. Its device says of which library they are:

    HOST                numpy's, as `HostArray`: main memory, for the C kernels
    a device of torch   torch's tensors

Layers, decoder, worker and checks compute on either: by indexing, arithmetic and the methods that tensors
have, of which `HostArray` adds those in use that numpy lacks. New arrays come from `arrays_on(device)`. So
nothing but this module and the backends knows which library it is, and C kernels need no torch.
"""

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

# The type checker knows arrays, dtypes and devices as torch's.
if TYPE_CHECKING:
    import torch

    Tensor: TypeAlias = torch.Tensor
    Device: TypeAlias = torch.device
    DType: TypeAlias = torch.dtype
else:
    Device = DType = Tensor = Any


class HostDevice:
    """Main memory, with arrays of numpy. It is named as torch names it."""

    type = "cpu"
    index = None

    def __str__(self) -> str:
        return "cpu"


HOST: Any = HostDevice()


class HostArray(np.ndarray[Any, Any]):
    """An array of numpy with the methods of a tensor that shared code calls."""

    device = HOST
    is_cuda = False

    # Its memory

    def data_ptr(self) -> int:
        address: int = self.__array_interface__["data"][0]
        return address

    def stride(self, axis: int | None = None) -> Any:
        """Return the distance of neighbours along an axis, or along each, in elements."""
        steps = tuple(step // self.itemsize for step in self.strides)
        return steps if axis is None else steps[axis]

    def is_contiguous(self) -> bool:
        return self.flags.c_contiguous

    def contiguous(self) -> Any:
        return self if self.flags.c_contiguous else self.copy()

    def clone(self) -> Any:
        return self.copy()

    def numpy(self) -> NDArray[Any]:
        return super().view(np.ndarray)

    def cpu(self) -> Any:
        return self

    # Shape

    def numel(self) -> int:
        return self.size

    def dim(self) -> int:
        return self.ndim

    def view(self, *shape: Any) -> Any:  # type: ignore[override]
        """Return the same memory with another shape, or read as another dtype."""
        if len(shape) == 1 and not isinstance(shape[0], int | tuple):
            return super().view(shape[0])
        return self.reshape(*shape)

    def flatten(self, start: int = 0, end: int = -1) -> Any:  # type: ignore[override]
        end %= self.ndim
        size = int(np.prod(self.shape[start : end + 1]))
        return self.reshape(*self.shape[:start], size, *self.shape[end + 1 :])

    def expand(self, *shape: int) -> Any:
        sizes = [
            own if wanted == -1 else wanted
            for own, wanted in zip(self.shape[::-1], shape[::-1], strict=False)
        ]
        return np.broadcast_to(self, (*shape[: len(shape) - self.ndim], *sizes[::-1]), subok=True)

    def unbind(self, axis: int = 0) -> Any:
        return iter(self.swapaxes(0, axis))

    # Numbers

    def to(self, wanted: Any, dtype: Any = None, *, copy: bool = False, **_: Any) -> Any:
        """Return it in a dtype, rounded to nearest. There is one device to be on."""
        dtype = wanted if dtype is None and not isinstance(wanted, HostDevice) else dtype
        return self.astype(self.dtype if dtype is None else dtype, copy=copy)

    def float(self) -> Any:
        return self.astype(np.float32, copy=False)

    def double(self) -> Any:
        return self.astype(np.float64, copy=False)

    def long(self) -> Any:
        return self.astype(np.int64, copy=False)

    def is_floating_point(self) -> bool:
        return self.dtype.kind not in "biu"  # the kind of bfloat16 is V

    def isnan(self) -> Any:
        return np.isnan(self)

    def isfinite(self) -> Any:
        return np.isfinite(self)

    def abs(self) -> Any:
        return np.abs(self)

    def amax(self, axis: int) -> Any:
        return self.max(axis)

    def nan_to_num(self, **limits: Any) -> Any:
        return np.nan_to_num(self, **limits)

    def clamp(self, min: Any = None, max: Any = None) -> Any:
        return self.clone().clamp_(min, max)

    # In place

    def clamp_(self, min: Any = None, max: Any = None) -> Any:
        for limit, choose in ((min, np.maximum), (max, np.minimum)):
            if limit is not None:
                choose(self, self.dtype.type(limit), out=self)
        return self

    def copy_(self, other: Any) -> Any:
        self[...] = other
        return self

    def fill_(self, value: Any) -> Any:
        self[...] = value
        return self

    def mul_(self, other: Any) -> Any:
        return np.multiply(self, self.dtype.type(other), out=self)

    # Rows

    def index_select(self, axis: int, index: Any) -> Any:
        return self.take(index, axis)

    def index_copy_(self, axis: int, index: Any, rows: Any) -> Any:
        assert axis == 0
        self[index] = rows
        return self

    def index_fill_(self, axis: int, index: Any, value: Any) -> Any:
        assert axis == 0
        self[index] = value
        return self

    def gather(self, axis: int, index: Any) -> Any:
        return np.take_along_axis(self, index, axis)

    def new_zeros(self, *shape: Any) -> Any:
        return HOST_ARRAYS.zeros(*shape, dtype=self.dtype)

    new_empty = new_zeros


def host(array: Any) -> Tensor:
    """Return numpy's array as a `HostArray`, in the same memory."""
    found: Any = array.view(HostArray) if type(array) is np.ndarray else array
    return cast(Tensor, found)


def _shape(sizes: tuple[Any, ...]) -> Any:
    return sizes[0] if len(sizes) == 1 else sizes


def _dtype(kind: Any) -> DType:
    return cast(DType, np.dtype(kind))


class HostArrays:
    """Makes `HostArray`s, by the names of torch's functions."""

    float16, float32, float64 = _dtype(np.float16), _dtype(np.float32), _dtype(np.float64)
    bfloat16, uint8, bool = _dtype(ml_dtypes.bfloat16), _dtype(np.uint8), _dtype(np.bool_)
    int8, int16, int32, int64 = _dtype(np.int8), _dtype(np.int16), _dtype(np.int32), _dtype(np.int64)
    OutOfMemoryError: type[Exception] = MemoryError

    def dtype(self, name: str) -> DType:
        """Return the dtype of this name, such as bfloat16."""
        found: DType = getattr(self, name)
        return found

    def inference(self) -> AbstractContextManager[object]:
        """Return a context in which nothing is remembered for gradients."""
        return nullcontext()

    def from_numpy(self, array: Any) -> Tensor:
        """Return an array of numpy, or a tensor in main memory, on the device; here it is the same memory."""
        if not isinstance(array, np.ndarray):  # a tensor; numpy has no bfloat16 of torch's
            integers = array.view(getattr(sys.modules["torch"], f"int{8 * array.dtype.itemsize}"))
            array = integers.numpy().view(self.dtype(dtype_name(array.dtype)))
        return host(array)

    def empty(self, *shape: Any, dtype: Any = np.float32) -> Tensor:
        return host(np.empty(_shape(shape), dtype))

    def zeros(self, *shape: Any, dtype: Any = np.float32) -> Tensor:
        return host(np.zeros(_shape(shape), dtype))

    def full(self, shape: Any, value: Any, dtype: Any = np.float32) -> Tensor:
        return host(np.full(shape, value, dtype))

    def arange(self, *bounds: int, dtype: Any = np.int64) -> Tensor:
        return host(np.arange(*bounds, dtype=dtype))

    def linspace(self, start: float, end: float, count: int) -> Tensor:
        return host(np.linspace(start, end, count, dtype=np.float32))

    def tensor(self, values: Any, dtype: Any = None) -> Tensor:
        array = np.array(values, dtype)
        return host(array.astype(np.float32) if dtype is None and array.dtype == np.float64 else array)

    def empty_like(self, array: Any) -> Tensor:
        return host(np.empty_like(array))

    def zeros_like(self, array: Any) -> Tensor:
        return host(np.zeros_like(array))

    def full_like(self, array: Any, value: Any) -> Tensor:
        return host(np.full_like(array, value))

    def cat(self, arrays: Any, axis: int = 0) -> Tensor:
        return host(np.concatenate(arrays, axis))

    def stack(self, arrays: Any, axis: int = 0) -> Tensor:
        return host(np.stack(arrays, axis))

    def split(self, array: Any, sizes: Any) -> "Sequence[Tensor]":
        """Return parts along the first axis: of these sizes, or of one size and the rest."""
        if isinstance(sizes, int):
            return [array[start : start + sizes] for start in range(0, len(array), sizes)] or [array]
        return [host(part) for part in np.split(array, np.cumsum(sizes[:-1]))]

    def where(self, condition: Any, one: Any, other: Any) -> Tensor:
        return host(np.where(condition, one, other))

    def tile(self, array: Any, counts: Any) -> Tensor:
        return host(np.tile(array, counts))

    def minimum(self, one: Any, other: Any, out: Any = None) -> Tensor:
        return host(np.minimum(one, other, out=out))

    def bincount(self, array: Any, minlength: int) -> Tensor:
        return host(np.bincount(array, minlength=minlength))

    def generator(self, seed: int) -> Any:
        return np.random.default_rng(seed)

    def randn(self, *shape: Any, generator: Any) -> Tensor:
        return host(generator.standard_normal(_shape(shape), np.float32))


HOST_ARRAYS = HostArrays()


@cache
def arrays_on(device: Any) -> HostArrays:
    """Return what makes arrays on this device."""
    if isinstance(device, HostDevice):
        return HOST_ARRAYS
    from holdfast.numerics.backends.torch.arrays import TorchArrays

    return TorchArrays(device)  # type: ignore[return-value]


def dtype_name(dtype: Any) -> str:
    """Return the name of a dtype of either library, such as bfloat16."""
    return str(dtype).removeprefix("torch.")


def main_memory(dtype: Any) -> Any:
    """Return the device of main memory whose arrays have this dtype."""
    if isinstance(dtype, np.dtype):
        return HOST
    import torch

    return torch.device("cpu")


def rounded(array: Tensor, dtype: DType | None) -> Tensor:
    """Return an array of numpy in this dtype, as one of the dtype's library; None: as it is."""
    return array if dtype is None else arrays_on(main_memory(dtype)).from_numpy(array).to(dtype)
