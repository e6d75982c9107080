"""Pooling of hidden states, on the host: the sum runs in one order whatever the batch and the device.

The bits are those of IEEE arithmetic in the default floating-point environment: double-precision
additions in the order of positions, one division, one rounding to fp32. The squares of fp32 numbers
are exact in double precision and `math.fsum` rounds their sum once, so the norm has no order at all.
"""

import math
from array import array
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from holdfast.core.pooling import Pooling
from holdfast.core.step_plan import Span
from holdfast.numerics.arrays import Tensor
from holdfast.numerics.settings_guard import enter_default_environment
from holdfast.worker.transfer import HostCopies


class PooledStates:
    """Hidden states of consecutive tokens, fp32 [tokens, hidden]. A `HiddenStates`."""

    def __init__(self, states: NDArray[np.float32]) -> None:
        self._states = states

    def add_to(self, total: "array[float] | None", num_states: int) -> "array[float]":
        states = self._states[:num_states]
        enter_default_environment()
        with np.errstate(all="ignore"):
            if total is None:
                total, states = array("d", states[0].astype(np.float64).tobytes()), states[1:]
            sums = np.frombuffer(total)  # the same memory, fp64 [hidden]
            for state in states:
                sums += state
        return total

    def finish(self, total: "array[float]", count: int, pooling: Pooling) -> bytes | None:
        enter_default_environment()
        with np.errstate(all="ignore"):  # infinite and undefined numbers are found below
            mean = (np.frombuffer(total) / count).astype(np.float32)[: pooling.dimensions]
            if not np.isfinite(mean).all():
                return None
            if pooling.normalize:
                mean = _normalized(mean)
        return mean.astype("<f4").tobytes()


def pool(hidden: Tensor, spans: Sequence[Span], copies: HostCopies) -> Callable[[], tuple[PooledStates, ...]]:
    """Send the hidden states of each span's pooled tokens, [tokens, hidden] of all spans. Return a
    function that reads them."""
    host = copies.add(hidden)

    def read() -> tuple[PooledStates, ...]:
        states = host.float().numpy()
        ends = np.cumsum([span.num_pooled for span in spans])
        return tuple(map(PooledStates, np.split(states, ends[:-1])))

    return read


def _normalized(vector: NDArray[np.float32]) -> NDArray[np.float32]:
    """Divide by the norm. A zero vector stays as it is."""
    wide = vector.astype(np.float64)
    norm = math.sqrt(math.fsum((wide * wide).tolist()))
    return vector if norm == 0 else (wide / norm).astype(np.float32)
