"""Comparison of arrays bit by bit."""

from holdfast.numerics.arrays import Tensor, arrays_on


def bits_of(array: Tensor) -> Tensor:
    """Return the same numbers as integers, in the same memory: -0 is not 0, and a NaN equals itself."""
    return array.view(arrays_on(array.device).dtype(f"int{8 * array.dtype.itemsize}"))


def bits_differ(one: Tensor, other: Tensor) -> Tensor:
    """Return whether each element differs in a bit. All NaN are equal: nothing is promised for them."""
    differ = bits_of(one) != bits_of(other)
    if not one.is_floating_point() or (one.device.type == "cpu" and not differ.any()):
        return differ
    return differ & ~(one.isnan() & other.isnan())
