"""The recurrent operations of the C backend: checks shapes, passes addresses to recurrence.c."""

from dataclasses import dataclass

from holdfast.numerics.arrays import DType, HostArrays, Tensor, arrays_on
from holdfast.numerics.backends.c.kernels import CODES, CKernels, address, is_fp32
from holdfast.numerics.forward_batch import ForwardBatch, StateLayer
from holdfast.numerics.recurrence import GatedDelta, Recurrence, ShortConv, StateSpace

_MAX_KERNEL = 16  # MAX_KERNEL in recurrence.c
_SPAN_COLUMNS = 6


@dataclass(frozen=True)
class RecurrentWords:
    """What `Recurrent` in kernels.h says of a layer, in the order of its fields."""

    input_width: int
    addresses: tuple[int, ...]  # conv .. log
    sizes: tuple[int, ...]  # kernel .. is_delta
    limits: tuple[float, float, float]


class CRecurrence:
    """The recurrent operations of `Backend`."""

    dtype: DType
    _arrays: HostArrays
    _kernels: CKernels

    @property
    def _num_threads(self) -> int:
        raise NotImplementedError

    def gated_delta(self, x: Tensor, weights: GatedDelta, layer: StateLayer, batch: ForwardBatch) -> Tensor:
        return self._recur(x, weights, layer, batch)

    def ssd(self, x: Tensor, weights: StateSpace, layer: StateLayer, batch: ForwardBatch) -> Tensor:
        return self._recur(x, weights, layer, batch)

    def _recur(
        self, x: Tensor, weights: GatedDelta | StateSpace, layer: StateLayer, batch: ForwardBatch
    ) -> Tensor:
        out = self._arrays.empty(x.shape[0], weights.output_width, dtype=self.dtype)
        words = recurrent_words(weights, layer, self.dtype)
        self._kernels.run.recurrence(*self._arguments(out, x, words, layer, batch))
        return out

    def short_conv(self, x: Tensor, weights: ShortConv, layer: StateLayer, batch: ForwardBatch) -> Tensor:
        out = self._arrays.empty(x.shape[0], weights.output_width, dtype=self.dtype)
        words = recurrent_words(weights, layer, self.dtype)
        self._kernels.run.short_conv(*self._arguments(out, x, words, layer, batch))
        return out

    def _arguments(
        self,
        out: Tensor,
        x: Tensor,
        words: RecurrentWords,
        layer: StateLayer,
        batch: ForwardBatch,
    ) -> list[float]:
        """Return the fields of `Recurrent` in kernels.h, and the number of threads."""
        spans = checked_spans(batch)
        assert x.dtype == self.dtype
        assert x.stride(1) == 1 and x.shape[1] == words.input_width
        return [
            *(out.data_ptr(), x.data_ptr(), *words.addresses, spans.data_ptr()),
            *(x.stride(0), x.shape[0], len(spans), *words.sizes, CODES[self.dtype], *words.limits),
            *(0, self._num_threads),
        ]

    def gated_rms_norm(
        self,
        x: Tensor,
        gate: Tensor,
        weight: Tensor | None,
        *,
        eps: float,
        group: int,
        gates_first: bool,
    ) -> Tensor:
        rows, width = x.shape
        x = x.contiguous()
        check_gate(gate, x, self.dtype)
        check_gated_norm(weight, width, group)
        out = self._arrays.empty(rows, width, dtype=self.dtype)
        is_shared = weight is not None and weight.numel() == group
        self._kernels.run.gated_norm(
            *(out.data_ptr(), x.data_ptr(), gate.data_ptr(), address(weight), gate.stride(0), rows, width),
            *(group, is_shared, gates_first, CODES[self.dtype], eps, self._num_threads),
        )
        return out

    def sigmoid_mul(self, x: Tensor, gate: Tensor) -> Tensor:
        rows, width = x.shape
        x = x.contiguous()
        check_gate(gate, x, self.dtype)
        out = self._arrays.empty(rows, width, dtype=self.dtype)
        self._kernels.run.sigmoid_mul(
            *(out.data_ptr(), x.data_ptr(), gate.data_ptr(), gate.stride(0), rows, width),
            *(CODES[self.dtype], self._num_threads),
        )
        return out


def recurrent_words(weights: Recurrence, layer: StateLayer, dtype: DType) -> RecurrentWords:
    """Return what the kernels read of a layer, checked."""
    heads = groups = 0
    vectors: tuple[Tensor | None, ...] = (None, None, None)  # decay, dt_bias, skip
    limits, conv_bias, is_delta = (1.0, 0.0, 0.0), None, 0
    if isinstance(weights, GatedDelta):
        is_delta = 2 if weights.in_turns else 1
        heads, groups = weights.value_heads, weights.key_heads
        vectors, limits = (weights.decay, weights.dt_bias, None), (weights.beta_scale, 0.0, 0.0)
    elif isinstance(weights, StateSpace):
        heads, groups, conv_bias = weights.heads, weights.groups, weights.conv_bias
        vectors = (weights.decay, weights.dt_bias, weights.skip)
        limits = (1.0, weights.dt_min, weights.dt_max)
    else:
        conv_bias = weights.conv_bias
    assert heads == 0 or heads % groups == 0
    kernel, (_, rows, columns) = weights.conv.shape[0], weights.state_shape
    assert kernel <= _MAX_KERNEL
    _check_fp32(weights.conv, (kernel, weights.conv_width))
    _check_fp32(conv_bias, (weights.conv_width,))
    for vector in vectors:
        _check_fp32(vector, (heads,))
    _check_fp32(layer.state, (len(layer.log), *weights.state_shape))
    assert layer.log.dtype == dtype and layer.log.is_contiguous()
    assert layer.log.shape[2] == weights.log_width
    widths = weights.log_width, weights.conv_width, weights.output_width
    return RecurrentWords(
        weights.input_width,
        tuple(map(address, (weights.conv, conv_bias, *vectors, layer.state, layer.log))),
        (kernel, layer.log_len, *widths, heads, groups, rows, columns, is_delta),
        limits,
    )


def checked_spans(batch: ForwardBatch) -> Tensor:
    """Return the spans of a pass, of which the kernels read slots and rows."""
    assert batch.recurrent is not None
    spans = batch.recurrent.spans
    assert (
        spans.dtype == arrays_on(spans.device).int32
        and spans.shape[1] == _SPAN_COLUMNS
        and spans.is_contiguous()
    )
    return spans


def check_gate(gate: Tensor, x: Tensor, dtype: DType) -> None:
    assert gate.shape == x.shape and gate.dtype == x.dtype == dtype
    assert gate.stride(1) == 1 or gate.shape[1] == 1


def check_gated_norm(weight: Tensor | None, width: int, group: int) -> None:
    if weight is not None:
        assert width % group == 0
        _check_fp32(weight, (group if weight.numel() == group else width,))


def _check_fp32(tensor: Tensor | None, shape: tuple[int, ...]) -> None:
    assert tensor is None or (is_fp32(tensor) and tensor.shape == shape)
    assert tensor is None or tensor.is_contiguous()
