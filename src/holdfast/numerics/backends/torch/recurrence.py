"""Recurrences by torch operations: the readable definition, token by token.

Every token is computed by operations of the same shape, so no bit depends on the other tokens of a pass.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.numerics.forward_batch import ForwardBatch, StateLayer
from holdfast.numerics.recurrence import GatedDelta, ShortConv, StateSpace

_L2_EPS = 1e-6
Step = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # (state, window of inputs) -> (state, result)


@dataclass(frozen=True)
class _Span:
    """One span: the columns of `RecurrentBatch.spans`."""

    slot: int
    start: int
    checkpoint: int
    store: int
    first_row: int
    end_row: int

    @property
    def stop(self) -> int:
        return self.start + self.end_row - self.first_row


class TorchRecurrence:
    """The recurrent operations of `Backend`."""

    def gated_delta(self, x: Tensor, weights: GatedDelta, layer: StateLayer, batch: ForwardBatch) -> Tensor:
        return _run(x, weights, layer, batch, lambda state, window: _delta_step(state, window, weights))

    def ssd(self, x: Tensor, weights: StateSpace, layer: StateLayer, batch: ForwardBatch) -> Tensor:
        return _run(x, weights, layer, batch, lambda state, window: _space_step(state, window, weights))

    def short_conv(self, x: Tensor, weights: ShortConv, layer: StateLayer, batch: ForwardBatch) -> Tensor:
        b, c, x = x.chunk(3, dim=-1)
        products = (b.to(torch.float32) * x.to(torch.float32)).to(x.dtype)
        result = x.new_zeros(x.shape)
        for span in _spans(batch):
            window = _inputs(products, layer, span, span.start, weights.conv.shape[0])
            for row in range(span.first_row, span.end_row):
                at = row - span.first_row
                mixed = _convolve(window[at : at + weights.conv.shape[0]], weights.conv, weights.conv_bias)
                result[row] = (c[row].to(torch.float32) * mixed).to(x.dtype)
            _write_log(products, layer, span)
        return result

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
        gate32 = gate.to(torch.float32, copy=True).contiguous()
        silu = gate32 / (1.0 + torch.exp(-gate32))
        x32 = x.to(torch.float32)
        if weight is None:
            return (x32 * silu).to(x.dtype)
        if gates_first:
            x32 = x32 * silu
        groups = x32.reshape(x.shape[0], -1, group)
        unit = groups * torch.rsqrt(groups.pow(2).mean(-1, keepdim=True) + eps)
        normed = (unit * weight.view(-1, group)).reshape(x.shape)
        return (normed if gates_first else normed * silu).to(x.dtype)

    def sigmoid_mul(self, x: Tensor, gate: Tensor) -> Tensor:
        gate32 = gate.to(torch.float32, copy=True).contiguous()
        return (x.to(torch.float32) / (1.0 + torch.exp(-gate32))).to(x.dtype)


def _run(
    x: Tensor, weights: GatedDelta | StateSpace, layer: StateLayer, batch: ForwardBatch, step: Step
) -> Tensor:
    """Run a recurrence: x [rows, input_width] -> [rows, output_width]."""
    result = x.new_zeros((x.shape[0], weights.output_width))
    kernel = weights.conv.shape[0]
    for span in _spans(batch):
        inputs = _inputs(x, layer, span, span.checkpoint, kernel)
        state = (
            layer.state[span.slot].clone() if span.checkpoint else layer.state.new_zeros(weights.state_shape)
        )
        stored = state
        for position in range(span.checkpoint, span.stop):
            at = position - span.checkpoint
            state, output = step(state, inputs[at : at + kernel])
            if position >= span.start:
                result[span.first_row + position - span.start] = output.flatten().to(x.dtype)
            if position + 1 == span.store:
                stored = state
        if span.store > span.checkpoint:
            layer.state[span.slot] = stored
        _write_log(x, layer, span)
    return result


def _spans(batch: ForwardBatch) -> Iterator[_Span]:
    assert batch.recurrent is not None
    for numbers in batch.recurrent.spans.tolist():
        if numbers[0] >= 0:
            yield _Span(*numbers)


def _inputs(x: Tensor, layer: StateLayer, span: _Span, first: int, kernel: int) -> Tensor:
    """Return the inputs of positions first - kernel + 1 .. the span's last, [positions, width]: from the log,
    then of the pass."""
    logged = range(first - kernel + 1, span.start)
    entries = [position % layer.log_len for position in logged]
    past = layer.log[span.slot, entries]
    past[: max(0, -logged.start)] = 0
    return torch.cat((past, x[span.first_row : span.end_row]))


def _write_log(x: Tensor, layer: StateLayer, span: _Span) -> None:
    count = min(span.end_row - span.first_row, layer.log_len)
    entries = [position % layer.log_len for position in range(span.stop - count, span.stop)]
    layer.log[span.slot, entries] = x[span.end_row - count : span.end_row]


def _convolve(window: Tensor, conv: Tensor, bias: Tensor | None) -> Tensor:
    """Return the sum over the window [kernel, width] -> fp32 [width], the oldest position first."""
    total = torch.zeros_like(conv[0]) if bias is None else bias
    for tap, inputs in zip(conv, window, strict=True):
        total = total + tap * inputs.to(torch.float32)
    return total


def _silu(x: Tensor) -> Tensor:
    return x / (1.0 + torch.exp(-x))


def _softplus(x: Tensor) -> Tensor:
    return x.clamp(min=0.0) + torch.log1p(torch.exp(-x.abs()))


def _unit(heads: Tensor) -> Tensor:
    """Divide each head of [heads, dim] by its length."""
    return heads * torch.rsqrt((heads * heads).sum(-1, keepdim=True) + _L2_EPS)


def _delta_step(state: Tensor, window: Tensor, weights: GatedDelta) -> tuple[Tensor, Tensor]:
    """state [heads, key_dim, value_dim], window [kernel, input_width] -> the next state, the result [heads,
    value_dim]."""
    width, heads, keys = weights.conv_width, weights.value_heads, weights.key_heads * weights.key_dim
    mixed = _silu(_convolve(window[:, :width], weights.conv, None))
    repeats = weights.value_heads // weights.key_heads
    q, k = (_unit(each.view(-1, weights.key_dim)) for each in (mixed[:keys], mixed[keys : 2 * keys]))
    q = q * weights.key_dim**-0.5
    if weights.in_turns:
        q, k = q.repeat(repeats, 1), k.repeat(repeats, 1)
    else:
        q, k = q.repeat_interleave(repeats, 0), k.repeat_interleave(repeats, 0)
    v = mixed[2 * keys :].view(heads, weights.value_dim)
    a, b = window[-1, width:].to(torch.float32).view(2, heads).clone()
    beta = weights.beta_scale / (1.0 + torch.exp(-b))
    state = state * torch.exp(weights.decay * _softplus(a + weights.dt_bias))[:, None, None]
    delta = beta[:, None] * (v - (state * k[:, :, None]).sum(1))
    state = state + k[:, :, None] * delta[:, None, :]
    return state, (state * q[:, :, None]).sum(1)


def _space_step(state: Tensor, window: Tensor, weights: StateSpace) -> tuple[Tensor, Tensor]:
    """state [heads, state_size, head_dim], window [kernel, input_width] -> the next state, the result [heads,
    head_dim]."""
    width, inner, size = weights.conv_width, weights.output_width, weights.groups * weights.state_size
    mixed = _silu(_convolve(window[:, :width], weights.conv, weights.conv_bias))
    x = mixed[:inner].view(weights.heads, weights.head_dim)
    repeats = weights.heads // weights.groups
    b, c = (
        each.view(weights.groups, weights.state_size).repeat_interleave(repeats, 0)
        for each in (mixed[inner : inner + size], mixed[inner + size :])
    )
    dt = _softplus(window[-1, width:].to(torch.float32) + weights.dt_bias).clamp(
        weights.dt_min, weights.dt_max
    )
    state = state * torch.exp(dt * weights.decay)[:, None, None]
    state = state + b[:, :, None] * (dt[:, None] * x)[:, None, :]
    return state, (state * c[:, :, None]).sum(1) + weights.skip[:, None] * x
