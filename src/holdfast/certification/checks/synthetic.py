"""The operations that are checked for a shape: GEMMs and layers with synthetic weights, token-wise
operations, the sampler. Their weights and inputs are those of `order_probes`.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import numpy as np

from holdfast.certification.checks.operations import BatchOp, ProbedOp
from holdfast.certification.checks.order_probes import (
    MIN_COLUMNS,
    NUM_GEMM_PROBES,
    NUM_TOKEN_PROBES,
    GemmProbes,
    edge_inputs,
    few_logits_inputs,
    logits_inputs,
    noise_inputs,
    norm_inputs,
    rope_inputs,
    silu_inputs,
    top_p_inputs,
)
from holdfast.models.config import DecoderConfig
from holdfast.models.decoder import layer_shape
from holdfast.models.weight_loader import norm_dtype
from holdfast.numerics.arrays import DType, Tensor, arrays_on
from holdfast.numerics.blocks import BlockBackend, random_blocks
from holdfast.numerics.elementary import cos_sin_fp32
from holdfast.numerics.experts import SigmoidScores, activate
from holdfast.numerics.layer import LayerWeights
from holdfast.numerics.ops import Backend, Linear
from holdfast.numerics.sampling import SamplingBatch

_NUM_TOP_P_PROBES = 32
_NUM_FEW_PROBES, FEW_TOKENS = 2048, 8
_EPS = 1e-5
_MAX_OWN_COLUMNS, _MAX_OWN_VOCABULARY = 512, 8192  # of synthetic weights and logits for our own kernels
_EDGE_DRAWS, _EDGE_DRAWS_ON_GPU = 8192, 1 << 14
_POSITION, _TEMPERATURES = 11, (0.7, 1.3, 0.6, 1.7, 0.9, 1.1, 0.3, 1.9)


def synthetic_linears(backend: Backend, like: Linear, *, is_whole: bool = False) -> Iterator[Linear]:
    """Yield linear layers of the same shape whose weights show the order of summation: two, more where they
    have few columns. Where no library chooses a kernel by the shape, a wide one is cut unless it `is_whole`:
    its columns are computed alike."""
    is_cut = not backend.recipe.depends_on_device and like.bias is None and not is_whole
    if like.blocks:
        wanted = [(name, _cut(count, _MAX_OWN_COLUMNS) if is_cut else count) for name, count in like.blocks]
        for seed in range(2):
            parts = [random_blocks(name, count, like.in_features, seed) for name, count in wanted]
            yield cast(BlockBackend, backend).pack_blocks(parts, like.bias)
        return
    columns = _cut(like.out_features, _MAX_OWN_COLUMNS) if is_cut else like.out_features
    probes = GemmProbes(like.in_features, like.dtype, backend.device)
    bias = None if like.bias is None else arrays_on(backend.device).linspace(-1, 1, columns)
    for _ in range(max(2, MIN_COLUMNS // columns)):
        weight = probes.weights(columns)
        if like.expert_form is None:
            yield backend.pack(weight, bias)
        else:
            yield replace(backend.pack_experts([(weight, bias)], 1).linears[0], expert_form=like.expert_form)


def _cut(columns: int, most: int) -> int:
    return columns if columns <= most else most + columns % 64


def synthetic_layer(backend: Backend, like: LayerWeights) -> LayerWeights:
    """Return a layer with attention of the same shape. Its o is zero and its post norm constant, so that the inputs reach
    gate_up as they are: there the probes show the order of summation. In fp16 the norm is large: the product
    of gate and up must not be zero. Experts are the layer's own."""
    assert like.qkv is not None and like.o is not None
    dtype, xp = like.o.dtype, arrays_on(backend.device)

    def synthetic(one: Linear) -> Linear:
        return next(synthetic_linears(backend, one, is_whole=True))

    zeros = xp.zeros((like.o.out_features, like.o.in_features), dtype=dtype)
    return replace(
        like,
        qkv=synthetic(like.qkv),
        o=backend.pack(zeros, None if like.o.bias is None else xp.zeros_like(like.o.bias)),
        post_norm=None
        if like.post_norm is None
        else xp.full_like(like.post_norm, 128 if dtype == xp.float16 else 1),
        gate_up=None if like.gate_up is None else synthetic(like.gate_up),
        down=None if like.down is None else synthetic(like.down),
    )


def token_ops(backend: Backend, model: DecoderConfig, *, is_quick: bool = False) -> list[ProbedOp]:
    """Norms, rope and the activation. is_quick: with few inputs."""
    xp = arrays_on(backend.device)
    dtype = xp.dtype(backend.recipe.dtype)
    hidden, heads, dim = model.hidden_size, model.num_heads, model.head_dim
    is_quick = is_quick or backend.can.is_interpreted
    count = NUM_GEMM_PROBES if is_quick else NUM_TOKEN_PROBES
    rng = np.random.default_rng(1)
    weight = xp.from_numpy(rng.random(hidden, np.float32) + np.float32(0.5)).to(norm_dtype(model.norm, dtype))
    centered = model.norm == "layer"
    turns = cos_sin_fp32(rng.random(dim // 2, np.float32) * np.float32(6))
    rotations = [xp.from_numpy(table) for table in turns]

    def add_norm(x: Tensor) -> Tensor:
        """x as a sum: once without rounding, once with."""
        found: list[Tensor] = []
        for first in (0.5, 0.6):
            residual, delta = x.clone().mul_(first), x.clone().mul_(1 - first)
            found += [residual, backend.add_rms_norm(residual, delta, weight, _EPS, centered=centered)]
        return xp.cat(found, 1)

    def rope(x: Tensor) -> Tensor:
        q = x.view(-1, heads, dim).clone()
        k = q.clone()
        cos, sin = (table.expand(x.shape[0], -1).contiguous() for table in rotations)
        backend.rope(q, k, cos, sin)
        return xp.cat([q, k], 1).flatten(1)

    if is_quick:
        squares: Any = norm_inputs(hidden, count, dtype)
    else:
        # A GPU has no fp32 form of a norm to look at: there its rounded results have to show it.
        num_draws = _EDGE_DRAWS_ON_GPU if backend.device.type == "cuda" else _EDGE_DRAWS
        edges = edge_inputs(hidden, _EPS, dtype, num_draws)
        squares = np.concatenate((norm_inputs(hidden, 4 * count, dtype), edges))
    rotated = rope_inputs(heads, *turns, count, dtype)
    return [
        ProbedOp(
            "rms_norm", xp.from_numpy(squares), lambda x: backend.rms_norm(x, weight, _EPS, centered=centered)
        ),
        ProbedOp("add_rms_norm", xp.from_numpy(squares), add_norm),
        ProbedOp("rope", xp.from_numpy(rotated), rope),
        ProbedOp(*_activation_op(backend, model, count, dtype)),
        *_expert_ops(backend, model, count, dtype),
    ]


def _expert_ops(backend: Backend, model: DecoderConfig, count: int, dtype: DType) -> Iterator[ProbedOp]:
    """Yield the choice of experts, and the sum of their outputs. Logits of two experts are equal."""
    if not model.num_experts:
        return
    xp, top_k = arrays_on(backend.device), model.experts_per_token
    generator = xp.generator(2)
    logits = xp.randn(count, model.num_experts, generator=generator) * 3
    logits[:, -1] = logits[:, 0]

    biases = xp.linspace(-0.2, 0.2, model.num_experts)
    sigmoid = SigmoidScores(biases, model.routed_scale, model.router_eps) if model.sigmoid_router else None

    def choose(x: Tensor) -> Tensor:
        weights, ids = backend.route(x, top_k, normalizes=model.normalizes_experts, sigmoid=sigmoid)
        return xp.cat([weights.double(), ids.double()], 1)

    def add(x: Tensor) -> Tensor:
        outputs = x.view(-1, top_k, model.hidden_size)
        return backend.combine(outputs, outputs[:, :, 0].float().contiguous())

    yield ProbedOp("route", logits, choose)
    yield ProbedOp("combine", xp.randn(count, top_k * model.hidden_size, generator=generator).to(dtype), add)


def _activation_op(
    backend: Backend, model: DecoderConfig, count: int, dtype: DType
) -> tuple[str, Tensor, BatchOp]:
    inputs = arrays_on(backend.device).from_numpy(silu_inputs(model.activation_size, count, dtype))
    if model.activation == "gelu_tanh":
        return "gelu_mul", inputs, backend.gelu_mul
    if model.activation == "clamped_swiglu":
        limits = {"alpha": model.swiglu_alpha, "limit": model.swiglu_limit}
        return "swiglu_mul", inputs, lambda x: backend.swiglu_mul(x, **limits)
    if model.activation == "relu2":
        return "relu2", inputs, lambda x: activate(backend, x, layer_shape(model))
    return "silu_mul", inputs, backend.silu_mul


def sampler_ops(backend: Backend, vocab: int, *, is_quick: bool = False) -> list[ProbedOp]:
    """Return the sampler's operations. Settings of a token are functions of its logits, so that they do not
    depend on its place in the batch. Our own kernels sum a vocabulary in blocks: they get a few of them.
    is_quick: without the operations on rare inputs."""
    xp = arrays_on(backend.device)
    if not backend.recipe.depends_on_device:
        vocab = _cut(vocab, _MAX_OWN_VOCABULARY)
    logits = xp.from_numpy(logits_inputs(vocab))

    def argmax(x: Tensor) -> Tensor:
        return backend.sample(x, _sampling_batch(x, temperature=_full(x, 0.0)))

    def sample(x: Tensor) -> Tensor:
        settings = {"top_k": _full(x, 40, xp.int32), "top_p": _full(x, 0.95), "min_p": _full(x, 0.01)}
        return backend.sample(x, _sampling_batch(x, **settings))

    def sample_top_p(x: Tensor) -> Tensor:
        """top_p is the probability of the likeliest token, to the last bit."""
        gap = x.amax(1)
        top_p = (1 / (1 + backend.exp(-gap).double())).float()
        settings = {"temperature": _full(x, 1.0), "top_p": top_p, "seeds": (gap * 2**20).long()}
        return backend.sample(x, _sampling_batch(x, **settings))

    def greedy(x: Tensor) -> Tensor:
        return xp.stack([part.double() for part in backend.sample_greedy(x)], 1)

    def topk(x: Tensor) -> Tensor:
        return xp.cat([part.double() for part in backend.topk(x, 5)], 1)

    if is_quick:
        return [
            ProbedOp("greedy", logits, greedy),
            ProbedOp("sample", logits, sample),
            ProbedOp("logsumexp", logits, backend.logsumexp),
            ProbedOp("top", logits, topk),
        ]
    few = few_logits_inputs(min(vocab, FEW_TOKENS), 8 if backend.can.is_interpreted else _NUM_FEW_PROBES)
    tied = noise_inputs(vocab, range(len(_TEMPERATURES)), _POSITION, _TEMPERATURES)
    ties = xp.from_numpy(tied)
    firsts, temperatures = ties[:, 0], xp.tensor(_TEMPERATURES)

    def sample_ties(x: Tensor) -> Tensor:
        is_own: Tensor = x[:, :1] == firsts
        seeds = is_own.long().argmax(1)
        return backend.sample(x, _sampling_batch(x, seeds=seeds, temperature=temperatures[seeds]))

    return [
        ProbedOp("argmax", logits, argmax),
        ProbedOp("greedy", logits, greedy),
        ProbedOp("sample", logits, sample),
        ProbedOp("sample, ties", ties, sample_ties),
        ProbedOp("sample, top-p", xp.from_numpy(top_p_inputs(vocab, _NUM_TOP_P_PROBES)), sample_top_p),
        ProbedOp("logsumexp", logits, backend.logsumexp),
        ProbedOp("logsumexp, few tokens", xp.from_numpy(few), backend.logsumexp),
        ProbedOp("top", logits, topk),
    ]


def _full(x: Tensor, value: float, dtype: DType | None = None) -> Tensor:
    """Return one equal value for each row of x."""
    xp = arrays_on(x.device)
    return xp.full((len(x),), value, dtype=dtype or xp.float32)


def _sampling_batch(x: Tensor, **settings: Tensor) -> SamplingBatch:
    """Return settings for each row of x: plain sampling, except for those that are given."""
    xp = arrays_on(x.device)
    plain = {
        "temperature": _full(x, 0.8),
        "top_k": _full(x, 0, xp.int32),
        "top_p": _full(x, 1.0),
        "min_p": _full(x, 0.0),
        "seeds": _full(x, 7, xp.int64),
        "positions": _full(x, _POSITION, xp.int64),
    }
    return SamplingBatch(**plain | settings)
