"""`Backend.layer` has the bits of `run_layer`, and `write_kv` writes the pages that a layer writes."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from holdfast.numerics.forward_batch import ForwardBatch, RecurrentBatch
from holdfast.numerics.layer import LayerShape, LayerWeights, RopeCosSin, run_layer, write_kv
from holdfast.numerics.ops import Backend, Linear
from holdfast.numerics.recurrence import GatedDelta, Mixer, ShortConv
from support.recurrence import LOG_LEN, make_weights

HIDDEN, INNER, SHAPE = 48, 112, LayerShape(heads=4, kv_heads=2, head_dim=16, eps=1e-5, scale=0.25)


def _weights(ops: Backend, dtype: torch.dtype, extras: bool) -> LayerWeights:
    generator = torch.Generator().manual_seed(1)

    def random(*shape: int) -> Tensor:
        return (torch.randn(*shape, generator=generator) * 0.2).to(dtype)

    def linear(outputs: int, inputs: int) -> Linear:
        return ops.pack(random(outputs, inputs), random(outputs) if extras else None)

    return LayerWeights(
        qkv=linear(8 * 16, HIDDEN),
        q_norm=random(16) if extras else None,
        k_norm=random(16) if extras else None,
        o=linear(HIDDEN, 4 * 16),
        post_norm=random(HIDDEN),
        gate_up=linear(2 * INNER, HIDDEN),
        down=linear(HIDDEN, INNER),
        next_norm=random(HIDDEN),
        window=9 if extras else None,
    )


# Layers of other families: norms of what is added, none before, over all heads of a token; centered
# norms, MLP beside attention.
FORMS: dict[str, LayerShape] = {
    "sandwich": replace(SHAPE, activation="gelu_tanh", soft_cap=2.0, residual_scale=0.3),
    "post": SHAPE,
    "parallel": replace(SHAPE, is_parallel=True, centered_norm=True),
    "clipped": replace(SHAPE, clip_qkv=0.5),
    "gated": replace(SHAPE, gated_attention=True),
    "without a gate": replace(SHAPE, activation="relu2"),
    **dict.fromkeys(("delta", "space", "conv", "beside attention", "no MLP"), SHAPE),
}
_KIND_OF = {
    "delta": "gated_delta",
    "space": "ssd",
    "conv": "short_conv",
    "beside attention": "ssd",
    "no MLP": "ssd",
}


def _mixer(ops: Backend, dtype: torch.dtype, form: str) -> Mixer:
    """A state space is normed after the gate, in groups that share no weights; a delta rule before it."""
    generator = torch.Generator().manual_seed(6)

    def linear(outputs: int, inputs: int) -> Linear:
        return ops.pack((torch.randn(outputs, inputs, generator=generator) * 0.2).to(dtype))

    recurrence = make_weights(_KIND_OF[form])
    width, is_gated = recurrence.output_width, not isinstance(recurrence, ShortConv)
    in_width = recurrence.input_width + (width if is_gated else 0)
    group, gates_first = (16, False) if isinstance(recurrence, GatedDelta) else (width // 2, True)
    norm = torch.rand(width if gates_first else group, generator=generator) + 0.5
    return Mixer(
        *(linear(in_width, HIDDEN), recurrence, linear(HIDDEN, width)),
        has_gate=is_gated,
        norm=norm if is_gated else None,
        norm_group=group,
        gates_first=gates_first,
    )


def _weights_of(ops: Backend, dtype: torch.dtype, form: str) -> LayerWeights:
    plain = _weights(ops, dtype, False)
    norms = torch.randn(4, HIDDEN, generator=torch.Generator().manual_seed(3)) + 1
    heads = torch.randn(2, 64, generator=torch.Generator().manual_seed(4))
    if form == "gated":
        weight = torch.randn(12 * 16, HIDDEN, generator=torch.Generator().manual_seed(5)) * 0.2
        return replace(plain, qkv=ops.pack(weight.to(dtype)))
    if form in _KIND_OF:
        mixer = _mixer(ops, dtype, form)
        if form == "no MLP":
            return replace(plain, qkv=None, o=None, gate_up=None, down=None, post_norm=None, mixer=mixer)
        return (
            replace(plain, mixer=mixer)
            if form == "beside attention"
            else replace(plain, qkv=None, o=None, mixer=mixer)
        )
    if form == "sandwich":
        q_norm, k_norm = heads[:, :16].contiguous()
        plain = replace(plain, post_norm=norms[0], next_norm=norms[1], q_norm=q_norm, k_norm=k_norm)
        return replace(plain, attention_norm=norms[2], mlp_norm=norms[3])
    if form == "without a gate":
        weight = torch.randn(INNER, HIDDEN, generator=torch.Generator().manual_seed(7)) * 0.2
        return replace(plain, gate_up=ops.pack(weight.to(dtype)))
    if form == "post":
        whole = {"q_norm": heads[0], "k_norm": heads[1, :32].contiguous()}
        return replace(
            plain, post_norm=None, next_norm=None, attention_norm=norms[0], mlp_norm=norms[1], **whole
        )
    return replace(plain, post_norm=None, next_norm=norms[0])


def _batch(page_size: int) -> ForwardBatch:
    """Two spans: five tokens across the end of a first page, and one token at position 3; one
    padding token."""
    rope = page_size - 2
    slots = [2 * page_size + rope, 2 * page_size + rope + 1, 0, 1, 2, 3 * page_size + 3, -1]
    return ForwardBatch(
        token_ids=torch.zeros(7, dtype=torch.int64),
        positions=torch.tensor([*range(rope, rope + 5), 3, 0]),
        slots=torch.tensor(slots),
        span_starts=torch.tensor([0, 5, 6], dtype=torch.int32),
        page_table=torch.tensor([[2, 0], [3, 0]], dtype=torch.int32),
        recurrent=RecurrentBatch(
            torch.tensor([[1, rope, rope - 2, rope + 4, 0, 5], [0, 3, 3, 4, 5, 6]], dtype=torch.int32), 2
        ),
    )


def _assert_same_bits(
    ops: Backend, dtype: torch.dtype, weights: LayerWeights, canonical: bool, shape: LayerShape = SHAPE
) -> None:
    batch = _batch(ops.page_size)
    generator = torch.Generator().manual_seed(2)
    angles = torch.rand(7, 8, generator=generator) * 6
    rope = RopeCosSin(angles.cos(), angles.sin())
    start = torch.randn(2, 7, HIDDEN, generator=generator).to(dtype)
    old = torch.randn(2, 4, 2, ops.page_size, 16, generator=generator).to(dtype)
    recurrence = weights.mixer.recurrence if weights.mixer is not None else None

    def run(form: str) -> list[Tensor]:
        residual, x = start[0].clone(), start[1].clone()
        kv = ops.new_kv_layer(4, 2, 16)
        if recurrence is not None:
            kv = replace(kv, states=ops.new_state_layer(2, LOG_LEN, recurrence))
            kv.states.state.normal_(generator=torch.Generator().manual_seed(8))
            kv.states.log.normal_(generator=torch.Generator().manual_seed(9))
        kv.keys.copy_(old[0].transpose(2, 3))
        kv.values.copy_(old[1])
        if form == "whole":
            ops.layer(residual, x, weights, shape, kv, batch, rope, canonical=canonical)
        elif form == "by operations":
            run_layer(ops, residual, x, weights, shape, kv, batch, rope, canonical=canonical)
        elif weights.qkv is not None:
            write_kv(ops, x, weights, shape, kv, batch, rope, canonical=canonical)
        states = [] if kv.states is None else [kv.states.state, kv.states.log]
        return [kv.keys, kv.values, residual[:6], x[:6], *states]

    whole, by_operations, kv_only = run("whole"), run("by operations"), run("KV only")
    assert all(torch.equal(a, b) for a, b in zip(whole, by_operations, strict=True))
    assert not torch.equal(whole[2], start[0][:6])
    assert all(torch.equal(a, b) for a, b in zip(whole[:2], kv_only[:2], strict=True))
    assert torch.equal(kv_only[1], old[1]) is (weights.qkv is None)
    assert torch.equal(kv_only[3], start[1][:6])


@pytest.mark.parametrize("extras", [False, True])
def test_fused_layer_has_the_bits_of_its_operations(
    c_backend: Backend, dtype: torch.dtype, extras: bool
) -> None:
    _assert_same_bits(c_backend, dtype, _weights(c_backend, dtype, extras), True)


@pytest.mark.parametrize("form", FORMS)
def test_fused_layer_of_any_form_has_the_bits_of_its_operations(
    c_backend: Backend, dtype: torch.dtype, form: str
) -> None:
    weights = _weights_of(c_backend, dtype, form)
    _assert_same_bits(c_backend, dtype, weights, True, FORMS[form])


@pytest.mark.parametrize("only_decodes", [False, True])
def test_consecutive_layers_have_the_bits_of_their_operations(
    c_backend: Backend, dtype: torch.dtype, only_decodes: bool
) -> None:
    """Enough tokens for several threads, in layers with other windows and rotary tables, and recurrent ones."""
    ops, count = c_backend, 40
    plain = _weights(ops, dtype, False)
    layers = (
        _weights_of(ops, dtype, "conv"),
        plain,
        replace(_weights(ops, dtype, True), q_norm=None, k_norm=None, rope=1),
        _weights_of(ops, dtype, "delta"),
        plain,
    )
    generator = torch.Generator().manual_seed(5)
    first = [0, 70] if not only_decodes else [3 * index for index in range(count)]  # of each span
    length = count // len(first)
    pages = -(-128 // ops.page_size)  # of a request
    table = torch.arange(len(first) * pages, dtype=torch.int32).view(len(first), pages)
    positions = torch.tensor([start + offset for start in first for offset in range(length)])
    span_of = torch.arange(count) // length
    batch = ForwardBatch(
        token_ids=torch.zeros(count, dtype=torch.int64),
        positions=positions,
        slots=table[span_of, positions // ops.page_size].long() * ops.page_size + positions % ops.page_size,
        span_starts=torch.arange(0, count + 1, length, dtype=torch.int32),
        page_table=table,
        recurrent=RecurrentBatch(
            torch.tensor(
                [(n, s, s, s + length, n * length, n * length + length) for n, s in enumerate(first)],
                dtype=torch.int32,
            ),
            0,
        ),
    )
    angles = torch.rand(2, count, 8, generator=generator) * 6
    ropes = [RopeCosSin(each.cos(), each.sin()) for each in angles]
    start = torch.randn(2, count, HIDDEN, generator=generator).to(dtype)
    old = torch.randn(2, table.numel(), 2, ops.page_size, 16, generator=generator).to(dtype)

    def run(*, at_once: bool) -> list[Tensor]:
        residual, x = start[0].clone(), start[1].clone()
        kv = [ops.new_kv_layer(table.numel(), 2, 16) for _ in layers]
        for index in (0, 3):
            mixer = layers[index].mixer
            assert mixer is not None
            kv[index] = replace(kv[index], states=ops.new_state_layer(len(first), LOG_LEN, mixer.recurrence))
        for each in kv:
            each.keys.copy_(old[0].transpose(2, 3))
            each.values.copy_(old[1])
        if at_once:
            ops.layers(residual, x, layers, SHAPE, kv, batch, ropes, canonical=True)
        for weights, each in zip(layers, kv, strict=True) if not at_once else ():
            run_layer(ops, residual, x, weights, SHAPE, each, batch, ropes[weights.rope], canonical=True)
        return [residual, x, *(each.keys for each in kv), *(each.values for each in kv)]

    assert all(torch.equal(a, b) for a, b in zip(run(at_once=True), run(at_once=False), strict=True))


@pytest.mark.parametrize(
    "form", [form for form in FORMS if form not in ("space", "conv", "beside attention")]
)
def test_triton_layer_of_any_form_has_the_bits_of_its_operations(
    open_any: Callable[..., Backend], triton_kernels: str, form: str
) -> None:
    ops = open_any(triton_kernels, torch.float16, {(128, HIDDEN): 2, (HIDDEN, 64): 4})
    weights = _weights_of(ops, torch.float16, form)
    _assert_same_bits(ops, torch.float16, weights, False, FORMS[form])


@pytest.mark.parametrize(("extras", "canonical"), [(False, False), (True, True)])
def test_triton_layer_has_the_bits_of_its_operations(
    open_any: Callable[..., Backend], triton_kernels: str, dtype: torch.dtype, extras: bool, canonical: bool
) -> None:
    ops = open_any(
        triton_kernels, dtype, {(128, HIDDEN): 2, (HIDDEN, 64): 4, (2 * INNER, HIDDEN): 1, (HIDDEN, INNER): 2}
    )
    assert ops.recipe.products == "48x64/4 48x112/2 128x48/2 224x48/1"
    _assert_same_bits(ops, dtype, _weights(ops, dtype, extras), canonical)
