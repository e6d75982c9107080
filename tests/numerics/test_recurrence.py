"""Recurrent layers: what they compute, and that no bit depends on how a sequence is cut into passes."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
import torch
from torch import Tensor

from holdfast.numerics.backends.torch.backend import TorchBackend
from holdfast.numerics.forward_batch import StateLayer
from holdfast.numerics.ops import Backend
from holdfast.numerics.recurrence import GatedDelta, Recurrence, ShortConv, StateSpace, run_recurrence
from support.recurrence import KINDS, LOG_LEN, make_weights, recurrent_batch

_LEN = 45


@pytest.fixture(params=KINDS)
def weights(request: pytest.FixtureRequest) -> Recurrence:
    return make_weights(request.param)


def _inputs(weights: Recurrence, seed: int, num_tokens: int = _LEN) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((num_tokens, weights.input_width), generator=generator).to(torch.bfloat16)


def _whole(
    ops: Backend, weights: Recurrence, inputs: Tensor, log_len: int = LOG_LEN
) -> tuple[Tensor, StateLayer]:
    layer = ops.new_state_layer(1, log_len, weights)
    count = len(inputs)
    batch = recurrent_batch([(0, 0, 0, count)], [count])
    return run_recurrence(ops, inputs, weights, layer, batch), layer


def _in_pieces(ops: Backend, weights: Recurrence, inputs: list[Tensor], seed: int) -> list[Tensor]:
    """Return the results of three requests, computed in pieces: with rejected tokens between them, checkpoints
    that lag behind, and padding."""
    rng, length_of_all = Random(seed), len(inputs[0])
    layer = ops.new_state_layer(4, LOG_LEN, weights)
    layer.state.fill_(float("nan"))
    layer.log.fill_(float("nan"))
    slots, done, checkpoints = [2, 0, 3], [0] * 3, [0] * 3
    results: list[list[Tensor]] = [[], [], []]
    while min(done) < length_of_all:
        going = [each for each in range(3) if done[each] < length_of_all]
        rng.shuffle(going)
        going = going[: rng.randint(1, len(going))]
        spans, rows, kept = [], [], []
        for each in going:
            start, checkpoint = done[each], checkpoints[each]
            room = LOG_LEN - (start - checkpoint) - 3
            is_prefill = rng.random() < 0.3 or room < 8
            length = min(length_of_all - start, rng.randint(1, 30 if is_prefill else 6))
            keep = length if is_prefill else rng.randint(1, length)
            store = start + length if is_prefill else rng.choice([checkpoint, start + rng.randint(0, keep)])
            part = inputs[each][start : start + length].clone()
            part[keep:] = 7.0  # candidates that are rejected
            spans.append((slots[each], start, checkpoint, store))
            rows.append(part)
            kept.append(keep)
        batch = recurrent_batch([*spans, (-1, 0, 0, 0)], [*map(len, rows), 2])
        x = torch.cat([*rows, torch.full((2, weights.input_width), 3.0, dtype=rows[0].dtype)])
        outputs = run_recurrence(ops, _in_wider_rows(x), weights, layer, batch)
        assert not outputs[-2:].any()
        at = 0
        for each, span, part, keep in zip(going, spans, rows, kept, strict=True):
            results[each].append(outputs[at : at + keep])
            at += len(part)
            done[each], checkpoints[each] = done[each] + keep, max(checkpoints[each], span[3])
    return [torch.cat(each) for each in results]


def _in_wider_rows(x: Tensor) -> Tensor:
    """Return the same rows with something behind each, as in the result of one product for inputs and gate."""
    return torch.cat((x, x.new_full((len(x), 5), float("nan"))), 1)[:, : x.shape[1]]


def _check_cuts(ops: Backend, weights: Recurrence, seed: int) -> None:
    dtype = getattr(torch, ops.recipe.dtype)
    inputs = [_inputs(weights, each).to(dtype) for each in range(3)]
    for found, whole in zip(_in_pieces(ops, weights, inputs, seed), inputs, strict=True):
        assert torch.equal(found, _whole(ops, weights, whole)[0])


@pytest.mark.parametrize("seed", range(4))
def test_cuts_change_no_bits_of_c(c_backend: Backend, weights: Recurrence, seed: int) -> None:
    _check_cuts(c_backend, weights, seed)


@pytest.mark.parametrize("seed", range(2))
def test_cuts_change_no_bits_of_torch(weights: Recurrence, seed: int) -> None:
    _check_cuts(TorchBackend(torch.bfloat16), weights, seed)


@pytest.mark.parametrize("kind", KINDS)
def test_cuts_change_no_bits_of_triton(
    open_any: Callable[..., Backend], triton_kernels: str, kind: str
) -> None:
    """A window after two replayed tokens, of which the last is rejected, and its checkpoint in the middle; then a
    span that is longer than the log."""
    ops, weights = open_any(triton_kernels, torch.float32), make_weights(kind)
    inputs = _inputs(weights, 6, 15).float()
    expected, whole = _whole(ops, weights, inputs, log_len=8)
    layer, found = ops.new_state_layer(2, 8, weights), []
    layer.state.fill_(float("nan"))
    layer.log.fill_(float("nan"))
    for start, stop, checkpoint, store, rejected in ((0, 3, 0, 1, 0), (3, 6, 1, 4, 1), (5, 15, 4, 15, 0)):
        x = inputs[start:stop].clone()
        x[len(x) - rejected :] = 7.0
        batch = recurrent_batch([(1, start, checkpoint, store), (-1, 0, 0, 0)], [len(x), 1])
        outputs = run_recurrence(ops, _in_wider_rows(torch.cat((x, x[:1]))), weights, layer, batch)
        assert not outputs[-1].any()
        found.append(outputs[: len(x) - rejected])
    assert torch.equal(torch.cat(found), expected)
    assert torch.equal(layer.state[1], whole.state[0]) and torch.equal(layer.log[1], whole.log[0])


@pytest.mark.parametrize("kind", KINDS)
def test_kernels_are_near_the_definition(
    backend: Backend, dtype: torch.dtype, kind: str, assert_near: Callable[[Tensor, Tensor], None]
) -> None:
    """Of a shape that fills no vector and no block."""
    weights, definition = make_weights(kind, is_odd=True), TorchBackend(torch.float32)
    inputs = _inputs(weights, 4, 5 if backend.can.is_interpreted else 20).to(dtype)
    found, layer = _whole(backend, weights, _in_wider_rows(inputs))
    expected, expected_layer = _whole(definition, weights, inputs.float())
    assert_near(found, expected)
    if layer.state.numel() and backend.recipe.path != "c":  # which has an order of its own
        assert_near(layer.state, expected_layer.state)
    if kind != "short_conv":
        assert torch.equal(layer.log.float(), expected_layer.log)


@pytest.mark.parametrize("kind", KINDS)
def test_other_requests_change_no_bits(
    backend: Backend, c_backend_one_thread: Backend, dtype: torch.dtype, kind: str
) -> None:
    """Whatever they hold, wherever the request stands; and with one thread."""
    if backend.can.is_interpreted and dtype is not torch.float16:
        pytest.skip("slow, and the same operations")
    weights = make_weights(kind, is_odd=not backend.can.is_interpreted)
    inputs = _inputs(weights, 5, 4).to(dtype)
    expected, _ = _whole(backend, weights, inputs)
    if backend.recipe.path == "c":
        assert torch.equal(_whole(c_backend_one_thread, weights, inputs)[0], expected)
    neighbours = (float("nan"), float("inf"), -1e4)
    for neighbour in neighbours[: 1 if backend.can.is_interpreted else 3]:
        layer = backend.new_state_layer(3, LOG_LEN, weights)
        layer.state.fill_(neighbour)
        layer.log.fill_(neighbour)
        other = torch.full((3, weights.input_width), neighbour, dtype=dtype)
        spans = [(0, 40, 37, 43), (2, 0, 0, 4), (1, 2, 0, 0)]
        outputs = run_recurrence(
            backend, torch.cat((other, inputs, other)), weights, layer, recurrent_batch(spans, [3, 4, 3])
        )
        assert torch.equal(outputs[3:7], expected)
        assert layer.state[2].isfinite().all() and layer.log[2, :4].isfinite().all()


def test_a_stale_log_is_noticed(weights: Recurrence) -> None:
    """The test above would be worth nothing if results did not depend on the log."""
    ops = TorchBackend(torch.bfloat16)
    inputs = _inputs(weights, 0, 12)
    expected, layer = _whole(ops, weights, inputs)
    layer = _whole(ops, weights, inputs[:11])[1]
    layer.log[0, 10] += 1.0
    again = run_recurrence(ops, inputs[11:], weights, layer, recurrent_batch([(0, 11, 11, 12)], [1]))
    assert not torch.equal(again, expected[11:])


def test_values_of_the_gated_delta_rule() -> None:
    weights = make_weights("gated_delta")
    assert isinstance(weights, GatedDelta)
    inputs = _inputs(weights, 1, 20).float()
    result, _ = _whole(TorchBackend(torch.float32), weights, inputs)
    mixed = torch.nn.functional.silu(_convolved(inputs[:, : weights.conv_width], weights.conv, None)).double()
    keys = weights.key_heads * weights.key_dim
    q, k = (mixed[:, at : at + keys].view(20, -1, weights.key_dim) for at in (0, keys))
    repeats = weights.value_heads // weights.key_heads
    q, k = (torch.nn.functional.normalize(each, dim=-1).repeat_interleave(repeats, 1) for each in (q, k))
    v = mixed[:, 2 * keys :].view(20, weights.value_heads, -1)
    a, b = inputs[:, weights.conv_width :].double().split(weights.value_heads, 1)
    decays = torch.exp(weights.decay * torch.nn.functional.softplus(a + weights.dt_bias))
    state = torch.zeros(weights.state_shape, dtype=torch.float64)
    for at in range(20):
        state = state * decays[at][:, None, None]
        seen = torch.einsum("hkv,hk->hv", state, k[at])
        state = state + torch.einsum("hk,hv->hkv", k[at], b[at].sigmoid()[:, None] * (v[at] - seen))
        expected = torch.einsum("hkv,hk->hv", state, q[at]) / weights.key_dim**0.5
        torch.testing.assert_close(result[at], expected.flatten().float(), atol=1e-5, rtol=1e-4)


def test_value_heads_may_take_key_heads_in_turns(backend: Backend) -> None:
    """It is another order of the value heads, so it has the same bits."""
    weights = make_weights("gated_delta")
    assert isinstance(weights, GatedDelta)
    heads, first = weights.value_heads, weights.conv_width - weights.output_width
    order = torch.arange(heads).view(weights.key_heads, -1).t().reshape(-1)
    columns = torch.arange(first, weights.conv_width).view(heads, -1)[order].flatten()
    scalars = weights.conv_width + torch.cat((order, heads + order))
    columns = torch.cat((torch.arange(first), columns))
    turned = replace(
        weights,
        conv=weights.conv[:, columns].contiguous(),
        decay=weights.decay[order],
        dt_bias=weights.dt_bias[order],
        in_turns=True,
    )
    inputs = _inputs(weights, 1, 9).to(backend.new_kv_layer(1, 1, 16).keys.dtype)
    expected, _ = _whole(backend, weights, inputs)
    found, _ = _whole(backend, turned, inputs[:, torch.cat((columns, scalars))])
    assert torch.equal(found, expected.view(9, heads, -1)[:, order].reshape(9, -1))


def test_values_of_a_state_space() -> None:
    """The state is a sum over all tokens before, each with the decays after it."""
    weights = make_weights("ssd")
    assert isinstance(weights, StateSpace)
    inputs = _inputs(weights, 2, 20).float()
    result, _ = _whole(TorchBackend(torch.float32), weights, inputs)
    convolved = _convolved(inputs[:, : weights.conv_width], weights.conv, weights.conv_bias)
    mixed = torch.nn.functional.silu(convolved).double()
    size, repeats = weights.groups * weights.state_size, weights.heads // weights.groups
    x, b, c = mixed.split([weights.output_width, size, size], 1)
    x = x.view(20, weights.heads, -1)
    b, c = (each.view(20, weights.groups, -1).repeat_interleave(repeats, 1) for each in (b, c))
    dt = torch.nn.functional.softplus(inputs[:, weights.conv_width :].double() + weights.dt_bias)
    dt = dt.clamp(weights.dt_min, weights.dt_max)
    sums = (dt * weights.decay).cumsum(0)
    for at in range(20):
        factors = torch.exp(sums[at] - sums[: at + 1]) * dt[: at + 1]  # [tokens, heads]
        scores = torch.einsum("hn,thn->th", c[at], b[: at + 1]) * factors
        expected = torch.einsum("th,thp->hp", scores, x[: at + 1]) + weights.skip[:, None] * x[at]
        torch.testing.assert_close(result[at], expected.flatten().float(), atol=1e-5, rtol=1e-4)


def test_values_of_a_short_convolution() -> None:
    weights = make_weights("short_conv")
    assert isinstance(weights, ShortConv)
    inputs = _inputs(weights, 3, 20).float()
    result, _ = _whole(TorchBackend(torch.float32), weights, inputs)
    b, c, x = inputs.chunk(3, -1)
    torch.testing.assert_close(result, c * _convolved(b * x, weights.conv, weights.conv_bias))


def _convolved(x: Tensor, conv: Tensor, bias: Tensor | None) -> Tensor:
    kernel, width = conv.shape
    padded = torch.nn.functional.pad(x.T, (kernel - 1, 0))[None]
    return torch.nn.functional.conv1d(padded, conv.T[:, None], bias, groups=width)[0].T


@pytest.mark.parametrize("gates_first", [True, False])
def test_gated_norm(
    backend: Backend, dtype: torch.dtype, gates_first: bool, assert_near: Callable[[Tensor, Tensor], None]
) -> None:
    generator = torch.Generator().manual_seed(6)
    x, both = (torch.randn((5, width), generator=generator).to(dtype) for width in (120, 240))
    gate = both[:, 115:235]
    silu, wide = torch.nn.functional.silu(gate.double()), x.double()
    for group, width in ((40, 40), (40, 120), (120, 120)):
        weight = torch.rand(width, generator=generator) + 0.5
        found = backend.gated_rms_norm(x, gate, weight, eps=1e-5, group=group, gates_first=gates_first)
        groups = (wide * silu if gates_first else wide).view(5, -1, group)
        normed = torch.nn.functional.rms_norm(groups, (group,), eps=1e-5) * weight.double().view(-1, group)
        assert_near(found, normed.view(5, 120) * (1.0 if gates_first else silu))
        alone = backend.gated_rms_norm(
            x[3:4], gate[3:4], weight, eps=1e-5, group=group, gates_first=gates_first
        )
        assert torch.equal(alone[0], found[3])


def test_gates_without_a_norm(
    backend: Backend, dtype: torch.dtype, assert_near: Callable[[Tensor, Tensor], None]
) -> None:
    x, both = (
        torch.randn((5, width), generator=torch.Generator().manual_seed(width)) for width in (530, 540)
    )
    x, gate = x.to(dtype), both.to(dtype)[:, 7:537]
    found = backend.gated_rms_norm(x, gate, None, eps=0.0, group=0, gates_first=True)
    assert_near(found, x.double() * torch.nn.functional.silu(gate.double()))
    assert_near(backend.sigmoid_mul(x, gate), x.double() * gate.double().sigmoid())
    assert torch.equal(backend.sigmoid_mul(x[2:3], gate[2:3])[0], backend.sigmoid_mul(x, gate)[2])
