"""The canary: every operation of the backend once on fixed inputs, and a digest of the bits it gives.

The fingerprint names libraries, versions and settings. A library may behave differently for a reason
that no list names: a variable it read when it was loaded, another file under the same version, an
instruction set it chose. So every build runs the operations in their reference form and puts the
digests into the fingerprint, by operation. A second digest, over other batch sizes in fast form,
belongs to the certificate's subject.

Inputs are made by integer hashing, so that they are equal on every machine: random signs, mantissas
and scales of 2^-4 to 2^3, in which the order of a sum shows.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from holdfast.models.config import DecoderConfig
from holdfast.models.decoder import layer_shape
from holdfast.models.mixers import ConvSizes, MixerSizes, SpaceSizes
from holdfast.models.shapes import gemm_shapes
from holdfast.models.weight_loader import norm_dtype
from holdfast.numerics.arrays import DType, Tensor, arrays_on
from holdfast.numerics.backends.torch.noise import SPLITMIX_GAMMA, mix64
from holdfast.numerics.blocks import BLOCK_FORMATS, BlockBackend, blocks_of
from holdfast.numerics.experts import activate
from holdfast.numerics.forward_batch import ForwardBatch, RecurrentBatch
from holdfast.numerics.ops import Backend, Linear
from holdfast.numerics.recurrence import GatedDelta, Recurrence, ShortConv, StateSpace, run_recurrence
from holdfast.numerics.sampling import SamplingBatch
from holdfast.worker.device import free_memory
from holdfast.worker.spot_check import logits_checksums

_PERIOD = 262139  # different inputs; a prime, so that the rows of a weight differ
_MAX_CPU_WEIGHT = 1 << 23  # elements; a larger weight is tried with fewer columns
_MAX_C_WEIGHT = 1 << 20  # the same for C kernels, whose form does not depend on the size
_STRIDE = 20011  # values between the starts of two parts
_NUM_SAMPLED = 8
_NUM_LOGGED = 8  # positions in half of a recurrent layer's log
_SHORT_WINDOW = 40  # shorter than the context of the attention
_FP32_OUTPUTS = ("head", "router", "shared_gate")
_FAST_SIZES = (1, 5)  # and twice the reference
_BLOCK_SHAPE = (72, 768)  # of a weight in quantised blocks: a whole number of every format's, and no panel


@dataclass(frozen=True)
class Canary:
    """Digests in hexadecimal: of each operation in reference form, and of all in fast form."""

    reference: Mapping[str, str]
    fast: str


def run_canary(backend: Backend, model: DecoderConfig) -> Canary:
    """Needs no weights of the model. Takes about 0.1 s for a small model."""
    with arrays_on(backend.device).inference():
        bench = _Bench(backend, model)
        reference, fast = bench.digests()
        del bench
        if backend.device.type == "cuda":
            free_memory(backend.device)
    all_fast = hashlib.sha256("\n".join(f"{name} {digest}" for name, digest in fast.items()).encode())
    return Canary(reference, all_fast.hexdigest())


def _splitmix(count: int) -> NDArray[np.uint64]:
    """Return numbers by splitmix64 of their index."""
    return mix64(np.arange(1, count + 1, dtype=np.uint64) * np.uint64(SPLITMIX_GAMMA))


def _words(count: int) -> NDArray[np.uint32]:
    """32 random bits each; little-endian, as the bytes of a file."""
    words: NDArray[np.uint32] = (_splitmix(count) >> np.uint64(32)).astype("<u4")
    return words


@lru_cache(maxsize=1)
def _values() -> NDArray[np.float32]:
    """_PERIOD numbers."""
    z = _splitmix(_PERIOD)
    sign, mantissa = z >> np.uint64(63), (z >> np.uint64(8)) & np.uint64(0x7FFFFF)
    exponent = np.uint64(123) + ((z >> np.uint64(40)) & np.uint64(7))
    bits = sign << np.uint64(31) | exponent << np.uint64(23) | mantissa
    values: NDArray[np.float32] = bits.astype(np.uint32).view(np.float32)
    return values


def _digest(out: Tensor) -> str:
    """Return SHA-256 over a checksum of each row that depends on every bit of it."""
    rows = out.reshape(out.shape[0], -1)
    xp = arrays_on(out.device)
    if rows.dtype != xp.int64:
        rows = rows.float()  # exact
    checksums = logits_checksums(rows.contiguous().view(xp.float32))
    return hashlib.sha256(checksums.cpu().numpy().tobytes()).hexdigest()


def _recurrence(sizes: MixerSizes, take: Callable[[int, int], Tensor]) -> Recurrence:
    """Return a recurrence of fixed weights. take(size, part) returns fixed values."""
    conv = take(sizes.kernel * sizes.conv_width, 16).view(sizes.kernel, -1) * 0.25
    if isinstance(sizes, ConvSizes):
        return ShortConv(conv, take(sizes.width, 17) if sizes.bias else None)
    if isinstance(sizes, SpaceSizes):
        return StateSpace(
            *(conv, take(sizes.conv_width, 17) if sizes.conv_bias else None),
            *(-take(sizes.heads, 18).abs(), take(sizes.heads, 19), take(sizes.heads, 20)),
            *(sizes.heads, sizes.head_dim, sizes.groups, sizes.state_size),
            dt_min=sizes.dt_min,
            dt_max=math.inf if sizes.dt_max is None else sizes.dt_max,
        )
    decay, dt_bias = -take(sizes.value_heads, 18).abs(), take(sizes.value_heads, 19)
    heads = (sizes.key_heads, sizes.value_heads, sizes.key_dim, sizes.value_dim)
    return GatedDelta(conv, decay, dt_bias, *heads)


class _Bench:
    """The operations of one backend, for one model's shapes."""

    def __init__(self, backend: Backend, model: DecoderConfig) -> None:
        self._backend, self._model = backend, model
        self._arrays = arrays_on(backend.device)
        self._fp32, self._dtype = self._arrays.float32, self._arrays.dtype(backend.recipe.dtype)
        self._is_interpreted = backend.can.is_interpreted
        self._num_rows = 1 if self._is_interpreted else backend.recipe.rows
        self._num_logits = min(model.vocab_size, 64) if self._is_interpreted else model.vocab_size
        self._num_sampled = 1 if self._is_interpreted else _NUM_SAMPLED
        self._block_formats = sorted(backend.block_formats) if isinstance(backend, BlockBackend) else []
        values = self._arrays.from_numpy(np.concatenate((_values(), _values())))
        self._values = {dtype: values.to(dtype) for dtype in (self._fp32, self._dtype)}
        self._shapes = {(n, k): (name, bias) for name, n, k, bias in reversed(gemm_shapes(model))}
        largest = max(n * k for n, k in map(self._cut, self._shapes))
        self._buffer = self._take(largest, self._dtype)  # for every weight

    def digests(self) -> tuple[dict[str, str], dict[str, str]]:
        """Return the digest of every operation in canonical form where there are two, and those of GEMMs in
        fast form and of a decode token. The head too, if it ever runs in fast form."""
        reference, fast = {}, {}
        sizes = _FAST_SIZES if self._is_interpreted else (*_FAST_SIZES, 2 * self._num_rows)
        for name, linear, is_fp32, runs_fast in self._linears():
            reference[name] = _digest(self._gemm(linear, self._num_rows, is_fp32, canonical=True))
            if name.startswith("blocks "):
                reference[f"{name}, rows"] = _digest(self._embed(linear))
            for size in sizes if runs_fast else ():
                fast[f"{name} {size}"] = _digest(self._gemm(linear, size, is_fp32, canonical=False))
        reference |= {name: _digest(out) for name, out in self._others()}
        if not self._is_interpreted:  # it takes seconds for one token
            fast["decode"] = _digest(self._attention(1, None))
        return reference, fast

    def _linears(self) -> Iterator[tuple[str, Linear, bool, bool]]:
        """Yield the name of each weight, the weight, whether its result is fp32 and whether it runs in fast form."""
        for (n, k), (name, has_bias) in reversed(self._shapes.items()):
            runs_fast = name != "head" or self._backend.can.certifies_head
            yield f"{name} {n}x{k}", self._linear(name, n, k, has_bias), name in _FP32_OUTPUTS, runs_fast
        for name in self._block_formats:
            yield f"blocks {name}", self._block_linear(name), True, True

    def _others(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the name and the result of every operation but those of `_linears`."""
        yield "subnormal numbers", self._subnormal()
        yield "rms_norm", self._rms_norm()
        yield "add_rms_norm", self._add_rms_norm()
        yield "rope", self._rope()
        yield from self._activations()
        if not self._is_interpreted:
            yield "attention", self._attention(self._num_rows, None)
            if any(window is not None for window in self._model.layer_windows):
                yield "attention, window", self._attention(self._num_rows, _SHORT_WINDOW)
        if self._model.mixer is not None:
            yield from self._recurrence(self._model.mixer)
        yield "sample", self._sample()
        logits = self._logits()
        ids, logprobs = self._backend.sample_greedy(logits)
        yield "greedy", self._arrays.stack([ids.double(), logprobs.double()], 1).view(self._arrays.int64)
        yield "logsumexp", self._backend.logsumexp(logits)[:, None]
        values, ids = self._backend.topk(logits, 5)
        yield "topk", self._arrays.cat([values.double(), ids.double()], 1).view(self._arrays.int64)

    def _take(self, count: int, dtype: DType, part: int = 0) -> Tensor:
        """`count` of the fixed values in memory of their own, different ones for each part."""
        twice = self._values[dtype]
        start = part * _STRIDE
        if start + count <= len(twice):
            return twice[start : start + count].clone()
        return self._arrays.tile(twice[start : start + _PERIOD], (-(-count // _PERIOD),))[:count]

    def _rows(self, num_rows: int, *shape: int, part: int = 1) -> Tensor:
        count = num_rows * int(np.prod(shape))
        return self._take(count, self._dtype, part).view(num_rows, *shape)

    def _logits(self) -> Tensor:
        """fp32 [num_sampled, vocab]."""
        count = self._num_sampled * self._num_logits
        return self._take(count, self._fp32, 2).view(self._num_sampled, -1)

    def _cut(self, shape: tuple[int, int]) -> tuple[int, int]:
        """On a GPU the library chooses its kernel by the shape, and fills the memory in no time."""
        n, k = shape
        limit = _MAX_CPU_WEIGHT if self._backend.recipe.depends_on_device else _MAX_C_WEIGHT
        if self._backend.device.type == "cuda" or n * k <= limit:
            return shape
        return min(n, max(64, limit // k // 64 * 64)), k

    def _linear(self, name: str, n: int, k: int, has_bias: bool) -> Linear:
        n, k = self._cut((n, k))
        bias = self._take(n, self._fp32, 3) if has_bias else None
        weight = self._buffer[: n * k].view(n, k)
        if name.startswith("expert_"):
            return self._backend.pack_experts([(weight, bias)], 1).linears[0]
        return self._backend.pack(weight, bias)

    def _block_linear(self, name: str) -> Linear:
        """Return a weight in blocks of fixed bytes, with scales of 2^-12 to 2^3."""
        assert isinstance(self._backend, BlockBackend)
        (n, k), form = _BLOCK_SHAPE, BLOCK_FORMATS[name]
        num_blocks, num_scales = n * k // form.length, (form.scales.stop - form.scales.start) // 2
        raw = _words(num_blocks * (form.num_bytes + num_scales) // 4 + 1).view(np.uint8)
        data, rest = raw[: num_blocks * form.num_bytes], raw[num_blocks * form.num_bytes :]
        exponents = 3 + (rest[: num_blocks * num_scales] & 15).reshape(num_blocks, -1)
        return self._backend.pack_blocks([blocks_of(name, data.reshape(num_blocks, -1), exponents, n)])

    def _embed(self, table: Linear) -> Tensor:
        assert isinstance(self._backend, BlockBackend)
        return self._backend.embed_packed(table, self._arrays.arange(table.out_features))

    def _gemm(self, linear: Linear, num_rows: int, is_fp32: bool, *, canonical: bool) -> Tensor:
        """As it runs."""
        backend = self._backend
        gemm = backend.linear if backend.can.rounds_in_gemm and not is_fp32 else backend.logits
        return gemm(self._rows(num_rows, linear.in_features), linear, canonical=canonical)

    def _subnormal(self) -> Tensor:
        """Return a GEMM whose products and sums are subnormal in fp32."""
        (_, width), _ = next(iter(self._shapes.items()))
        tiny = 2.0 ** (-12 if self._dtype == self._arrays.float16 else -70)
        linear = self._backend.pack(self._buffer[: 64 * width].view(64, width).clone().mul_(tiny))
        x = self._rows(self._num_rows, width).mul_(tiny)
        return self._backend.logits(x, linear, canonical=True)

    def _norm_weight(self) -> Tensor:
        dtype = norm_dtype(self._model.norm, self._dtype)
        return self._take(self._model.hidden_size, dtype, 4)

    def _rms_norm(self) -> Tensor:
        model, rows = self._model, self._num_rows
        inputs, weight = self._rows(rows, model.hidden_size), self._norm_weight()
        plain = self._backend.rms_norm(inputs, weight, 1e-5, centered=model.norm == "layer")
        heads = self._rows(rows, model.num_kv_heads, model.head_dim)
        of_heads = self._backend.rms_norm(heads, self._take(model.head_dim, self._dtype, 5), 1e-5)
        return self._arrays.cat([plain, of_heads.flatten(1)], 1)

    def _add_rms_norm(self) -> Tensor:
        hidden = self._model.hidden_size
        residual = self._rows(self._num_rows, hidden, part=6)
        delta, weight = self._rows(self._num_rows, hidden), self._norm_weight()
        centered = self._model.norm == "layer"
        normed = self._backend.add_rms_norm(residual, delta, weight, 1e-5, centered=centered)
        return self._arrays.cat([residual, normed], 1)

    def _rope(self) -> Tensor:
        """cos and sin are fixed values here; the model's tables have a digest of their own."""
        model, rows = self._model, self._num_rows
        q = self._rows(rows, model.num_heads, model.head_dim)
        k = self._rows(rows, model.num_kv_heads, model.head_dim, part=7)
        cos, sin = self._take(rows * model.head_dim, self._fp32, 8).view(2, rows, -1)
        self._backend.rope(q, k, cos, sin)
        return self._arrays.cat([q.flatten(1), k.flatten(1)], 1)

    def _activations(self) -> Iterator[tuple[str, Tensor]]:
        rows = self._rows(self._num_rows, self._model.activation_inputs)
        name = {"silu": "silu_mul", "gelu_tanh": "gelu_mul", "clamped_swiglu": "swiglu_mul"}
        activation = self._model.activation
        yield name.get(activation, activation), activate(self._backend, rows, layer_shape(self._model))
        if self._model.logits_soft_cap is not None:
            logits = self._logits()
            self._backend.soft_cap(logits, self._model.logits_soft_cap)
            yield "soft_cap", logits

    def _attention(self, num_tokens: int, window: int | None) -> Tensor:
        """Return the last tokens of one request of two and a half KV blocks or more."""
        backend, model = self._backend, self._model
        context = max(num_tokens, 5 * backend.recipe.kv_block // 2)
        num_pages = -(-context // backend.page_size)
        layer = backend.new_kv_layer(num_pages, model.num_kv_heads, model.head_dim)
        xp = self._arrays
        slots = xp.arange(context)
        kv_shape = model.num_kv_heads, model.head_dim
        keys, values = (self._rows(context, *kv_shape, part=part) for part in (9, 10))
        backend.store_kv(keys, values, layer, slots)
        batch = ForwardBatch(
            token_ids=xp.zeros(num_tokens, dtype=xp.int64),
            positions=slots[context - num_tokens :].contiguous(),
            slots=slots[context - num_tokens :].contiguous(),
            span_starts=xp.tensor([0, num_tokens], dtype=xp.int32),
            page_table=xp.arange(num_pages, dtype=xp.int32)[None],
        )
        q = self._rows(num_tokens, model.num_heads, model.head_dim, part=11)
        return backend.attention(
            *(q, layer, batch),
            scale=model.head_dim**-0.5,
            window=window,
            soft_cap=model.attention_soft_cap,
            sinks=self._take(model.num_heads, self._fp32, 12) if model.attention_sinks else None,
        )

    def _recurrence(self, sizes: MixerSizes) -> Iterator[tuple[str, Tensor]]:
        """Yield the last tokens of one request: its state goes on from a checkpoint, and a logged token is
        computed again."""
        backend, xp, rows = self._backend, self._arrays, self._num_rows
        count = 2 * rows
        layer = backend.new_state_layer(1, 2 * _NUM_LOGGED, sizes)
        weights = _recurrence(sizes, lambda size, part: self._take(size, self._fp32, part))
        inputs = self._rows(count, weights.input_width, part=13)
        parts = []
        for start, checkpoint, store, stop in ((0, 0, rows, rows + 1), (rows + 1, rows, count, count)):
            spans = xp.tensor([[0, start, checkpoint, store, 0, stop - start]], dtype=xp.int32)
            none = xp.zeros(stop - start, dtype=xp.int64)
            starts = xp.tensor([0, stop - start], dtype=xp.int32)
            batch = ForwardBatch(
                *(none, none, none - 1, starts, spans[:, :1]),
                recurrent=RecurrentBatch(spans, start - checkpoint),
            )
            batch = backend.prepare(batch, self._model.num_heads, self._model.num_kv_heads)
            parts.append(run_recurrence(backend, inputs[start:stop], weights, layer, batch))
        yield "recurrence", self._arrays.cat(parts)
        gate = self._rows(rows, weights.output_width, part=14)
        mixed, group = parts[0][:rows], weights.output_width
        norm = self._take(group, self._fp32, 15)
        for gates_first in (False, True):
            name = f"gated_rms_norm, gate {'first' if gates_first else 'last'}"
            yield (
                name,
                backend.gated_rms_norm(mixed, gate, norm, eps=1e-5, group=group, gates_first=gates_first),
            )
        yield "sigmoid_mul", backend.sigmoid_mul(mixed, gate)

    def _sample(self) -> Tensor:
        n, xp = self._num_sampled, self._arrays

        def full(value: float) -> Tensor:
            return xp.full((n,), value, dtype=xp.float32)

        numbers = xp.arange(n)
        top_k = ((numbers % 4 == 1) * 40).to(xp.int32)
        batch = SamplingBatch(full(0.8), top_k, full(0.95), full(0.001), numbers, numbers + 100)
        return self._backend.sample(self._logits(), batch)[:, None]
