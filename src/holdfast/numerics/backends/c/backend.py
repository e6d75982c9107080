"""The C backend: checks shapes, passes addresses to the kernels, returns new tensors.

The kernels do not check their arguments. Everything that could make them access other memory is
checked here.
"""

import struct
from collections.abc import Sequence

import numpy as np

from holdfast.numerics.arrays import Device, DType, Tensor, arrays_on, dtype_name, main_memory
from holdfast.numerics.backends.c.kernels import CODES, CKernels, address, is_fp32
from holdfast.numerics.backends.c.layers import (
    MAX_HEAD_DIM,
    MAX_ROPES,
    LayerTable,
    is_fusible,
    make_table,
    norm_address,
    norm_code,
)
from holdfast.numerics.backends.c.recurrence import CRecurrence, checked_spans
from holdfast.numerics.backends.c.threads import ThreadCount, usable_seconds, waiting_counter
from holdfast.numerics.backends.cpu import CpuBackend, new_bytes
from holdfast.numerics.batch_sizes import cpu_batch_sizes
from holdfast.numerics.blocks import BLOCK_FORMATS, Blocks
from holdfast.numerics.forward_batch import ForwardBatch, KVLayer
from holdfast.numerics.layer import LayerShape, LayerWeights, RopeCosSin, run_layer, run_layers
from holdfast.numerics.ops import Capabilities, Linear
from holdfast.numerics.recipe import PORTABLE, Recipe
from holdfast.numerics.sampling import SamplingBatch
from holdfast.numerics.versions import VERSIONS

_BF16_AMX = 3  # of packed weights and of GEMMs
_KV_BLOCK = 64  # BLOCK in attention.c
_REFERENCE_ROWS = 16
_BLOCK_ROWS = 128  # in block_linear.c; ROW_BLOCK in linear.c is less
_BLOCK_HEADER = struct.Struct("<16q")  # BlockWeight in block_linear.c
_MAX_BLOCK_PARTS = 5
_ACTIVATIONS = {"silu": 0, "gelu_tanh": 1, "relu2": 2}  # `Layers` in kernels.h


class CBackend(CRecurrence, CpuBackend):
    """Implements `Backend` with the kernels built for this CPU.

    Its recipe is portable: every CPU computes the same bits. bf16 on a CPU with AMX is the exception, a
    recipe of its own, unless `portable` is set.
    """

    can = Capabilities(
        cpu_batch_sizes,
        layer_sizes=(1, 2, _REFERENCE_ROWS, 2 * _REFERENCE_ROWS),
        block_rows=_BLOCK_ROWS,
    )

    def __init__(
        self,
        dtype: DType,
        kernels: CKernels,
        num_threads: int,
        *,
        device: Device | None = None,
        portable: bool = False,
        block_formats: frozenset[str] = frozenset(),
    ) -> None:
        self.dtype, self.device = dtype, device or main_memory(dtype)
        self._arrays = arrays_on(self.device)
        self._kernels = kernels
        self._threads = ThreadCount(num_threads, waiting_counter(kernels), usable_seconds)
        # By the first layer's id and their number.
        self._tables: dict[tuple[int, int], LayerTable] = {}
        self._code = CODES[dtype]
        uses_amx = kernels.has_amx and dtype_name(dtype) == "bfloat16" and not portable
        self._gemm_code = _BF16_AMX if uses_amx else self._code
        self.build = f"{kernels.variant}, {kernels.built.compiler}"
        self.block_formats = block_formats & frozenset(BLOCK_FORMATS)
        self.recipe = Recipe(
            path="c",
            rows=_REFERENCE_ROWS,
            k_slices=1,
            kv_block=_KV_BLOCK,
            query_tile=0,
            dtype=dtype_name(dtype),
            variant="amx-bf16" if uses_amx else PORTABLE,
            version=VERSIONS["kernels/c"],
            blocks="+".join(sorted(self.block_formats)),
        )

    @property
    def _num_threads(self) -> int:
        """How many threads compute the next operation."""
        return self._threads.update()

    def in_fp32(self) -> "CBackend":
        if self._code == 0:
            return self
        other = CBackend(self._arrays.float32, self._kernels, self._num_threads, device=self.device)
        other._threads = self._threads
        return other

    def pack(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        out_features, in_features = weight.shape
        weight = weight.to(self.dtype)
        if weight.stride(1) != 1:
            weight = weight.contiguous()
        size = self._kernels.packed_bytes(out_features, in_features, self._gemm_code)
        data = new_bytes(size, self.device)
        stride = weight.stride(0)
        self._kernels.run.pack(
            data.data_ptr(),
            weight.data_ptr(),
            stride,
            out_features,
            in_features,
            self._gemm_code,
            self._num_threads,
        )
        bias32 = None if bias is None else bias.to(self._arrays.float32, copy=True).contiguous()
        return Linear(data, bias32, in_features, out_features, self.dtype)

    def pack_blocks(self, parts: Sequence[Blocks], bias: Tensor | None = None) -> Linear:
        assert 1 <= len(parts) <= _MAX_BLOCK_PARTS
        in_features = parts[0].in_features
        sizes = [self._block_bytes(part, in_features) for part in parts]
        data = new_bytes(_BLOCK_HEADER.size + sum(sizes), self.device)
        header, start = [len(parts)], _BLOCK_HEADER.size
        for part, size in zip(parts, sizes, strict=True):
            number, columns = BLOCK_FORMATS[part.format].type_number, part.out_features
            raw = part.data.contiguous()
            self._kernels.run.block_pack(
                *(data[start:].data_ptr(), raw.data_ptr(), columns, in_features, number, self._num_threads)
            )
            header += [number, columns, start]
            start += size
        words = _BLOCK_HEADER.pack(*header, *[0] * (16 - len(header)))
        data[: len(words)] = self._arrays.from_numpy(np.frombuffer(bytearray(words), np.uint8))
        bias32 = None if bias is None else bias.to(self._arrays.float32, copy=True).contiguous()
        out_features = sum(part.out_features for part in parts)
        blocks = tuple((part.format, part.out_features) for part in parts)
        return Linear(data, bias32, in_features, out_features, self.dtype, blocks=blocks)

    def _block_bytes(self, part: Blocks, in_features: int) -> int:
        form = BLOCK_FORMATS[part.format]
        assert part.in_features == in_features and in_features % form.length == 0
        assert part.data.shape == (part.out_features, in_features // form.length * form.num_bytes)
        return self._kernels.block_bytes(form.type_number, part.out_features, in_features)

    def linear(self, x: Tensor, w: Linear, *, canonical: bool) -> Tensor:
        return self._gemm(x, w, self.dtype)

    def logits(self, x: Tensor, w: Linear, *, canonical: bool) -> Tensor:
        return self._gemm(x, w, self._arrays.float32)

    def _gemm(self, x: Tensor, w: Linear, out_dtype: DType) -> Tensor:
        rows, in_features = x.shape
        assert in_features == w.in_features
        assert x.dtype == self.dtype
        assert w.dtype == self.dtype
        row_stride, step = x.stride()
        if step != 1 and in_features > 1:
            x = x.contiguous()
            row_stride = in_features
        y = self._arrays.empty(rows, w.out_features, dtype=out_dtype)
        run = self._kernels.run.block_linear if w.blocks else self._kernels.run.linear
        run(
            *(y.data_ptr(), x.data_ptr(), row_stride, w.data.data_ptr()),
            0 if w.bias is None else w.bias.data_ptr(),
            *(rows, w.out_features, in_features, self._code if w.blocks else self._gemm_code),
            *(CODES[out_dtype], self._num_threads),
        )
        return y

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, *, centered: bool = False) -> Tensor:
        rows, width = x.shape[0], x.shape[-1]
        heads = x.shape[1] if x.dim() == 3 else 1
        x = _with_packed_heads(x)
        assert x.dtype == self.dtype
        out = self._arrays.empty(*x.shape, dtype=self.dtype)
        self._kernels.run.rms_norm(
            *(out.data_ptr(), x.data_ptr(), x.stride(0), norm_address(weight, width)),
            *(rows, heads, width, eps, self._code, norm_code(weight, self.dtype, centered), centered),
            self._num_threads,
        )
        return out

    def add_rms_norm(
        self,
        residual: Tensor,
        delta: Tensor,
        weight: Tensor | None,
        eps: float,
        *,
        delta_norm: Tensor | None = None,
        delta_scale: float = 1.0,
        centered: bool = False,
    ) -> Tensor:
        rows, width = residual.shape
        assert residual.is_contiguous()
        assert residual.numel() == delta.numel()
        assert residual.dtype == self.dtype
        assert delta.dtype == self.dtype
        assert weight is None or delta_norm is None or weight.dtype == delta_norm.dtype
        delta = delta.contiguous()
        out = self._arrays.empty(rows, width, dtype=self.dtype)
        self._kernels.run.add_rms_norm(
            *(out.data_ptr(), residual.data_ptr(), delta.data_ptr()),
            *(norm_address(delta_norm, width), norm_address(weight, width), rows, width, self._code),
            norm_code(weight if delta_norm is None else delta_norm, self.dtype, centered),
            *(centered, self._num_threads, eps, delta_scale),
        )
        return out

    def rope(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> None:
        rows, heads, width = q.shape
        _, kv_heads, _ = k.shape
        q_row, q_head, q_step = q.stride()
        k_row, k_head, k_step = k.stride()
        assert heads == 1 or q_head == width, "the heads of a row must be contiguous"
        assert kv_heads == 1 or k_head == width, "the heads of a row must be contiguous"
        assert q_step == 1 == k_step
        assert k.numel() == rows * kv_heads * width
        assert cos.numel() == sin.numel() == rows * (width // 2)
        assert cos.is_contiguous()
        assert sin.is_contiguous()
        assert is_fp32(cos)
        assert q.dtype == self.dtype
        self._kernels.run.rope(
            *(q.data_ptr(), q_row, heads, k.data_ptr(), k_row, kv_heads),
            *(cos.data_ptr(), sin.data_ptr(), rows, width, self._code, self._num_threads),
        )

    def store_kv(self, k: Tensor, v: Tensor, layer: KVLayer, slots: Tensor) -> None:
        rows, heads, width = k.shape
        k, v = _with_packed_heads(k), _with_packed_heads(v)
        assert layer.keys.shape[1:3] == (heads, width)
        assert slots.shape[0] == rows
        assert k.dtype == layer.keys.dtype
        self._kernels.run.store_kv(
            *(layer.keys.data_ptr(), layer.values.data_ptr()),
            *(k.data_ptr(), k.stride(0), v.data_ptr(), v.stride(0)),
            *(slots.data_ptr(), rows, heads, width, layer.keys.shape[3], self._code, self._num_threads),
        )

    def attention(
        self,
        q: Tensor,
        layer: KVLayer,
        batch: ForwardBatch,
        *,
        scale: float,
        window: int | None,
        soft_cap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        num_tokens, heads, width = q.shape
        _, kv_heads, key_width, page_size = layer.keys.shape
        spans, max_pages = batch.page_table.shape
        assert width == key_width <= MAX_HEAD_DIM
        assert heads % kv_heads == 0
        assert q.dtype == layer.keys.dtype
        assert _KV_BLOCK % page_size == 0 or page_size % _KV_BLOCK == 0, (
            f"pages of {page_size} positions do not fit blocks of 64"
        )
        assert sinks is None or (sinks.shape == (heads,) and is_fp32(sinks))
        assert sinks is None or sinks.is_contiguous()
        q = _with_packed_heads(q)
        out = self._arrays.empty(num_tokens, heads * width, dtype=self.dtype)
        self._kernels.run.attention(
            *(out.data_ptr(), q.data_ptr(), q.stride(0), layer.keys.data_ptr(), layer.values.data_ptr()),
            *(batch.positions.data_ptr(), batch.span_starts.data_ptr(), batch.page_table.data_ptr()),
            address(sinks),
            *(num_tokens, spans, max_pages, heads, kv_heads, width, page_size),
            *(scale, soft_cap or 0.0, 0 if window is None else window, self._code, self._num_threads),
        )
        return out

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        return self._activation_mul(gate_up, is_gelu=False)

    def gelu_mul(self, gate_up: Tensor) -> Tensor:
        return self._activation_mul(gate_up, is_gelu=True)

    def _activation_mul(self, gate_up: Tensor, is_gelu: bool) -> Tensor:
        rows, double = gate_up.shape
        assert gate_up.dtype == self.dtype
        assert double % 2 == 0
        gate_up = gate_up.contiguous()
        out = self._arrays.empty(rows, double // 2, dtype=self.dtype)
        self._kernels.run.activation_mul(
            *(out.data_ptr(), gate_up.data_ptr(), rows, double // 2, is_gelu, self._code, self._num_threads)
        )
        return out

    def swiglu_mul(self, gate_up: Tensor, *, alpha: float, limit: float) -> Tensor:
        rows, double = gate_up.shape
        assert gate_up.dtype == self.dtype
        assert double % 2 == 0
        gate_up = gate_up.contiguous()
        out = self._arrays.empty(rows, double // 2, dtype=self.dtype)
        self._kernels.run.swiglu_mul(
            *(out.data_ptr(), gate_up.data_ptr(), rows, double // 2, alpha, limit),
            *(self._code, self._num_threads),
        )
        return out

    def exp(self, x: Tensor) -> Tensor:
        assert is_fp32(x)
        out = x.contiguous().clone()
        self._kernels.run.exp(out.data_ptr(), out.numel(), self._num_threads)
        return out

    def soft_cap(self, logits: Tensor, cap: float) -> None:
        assert is_fp32(logits)
        assert logits.is_contiguous()
        self._kernels.run.soft_cap(logits.data_ptr(), logits.numel(), cap, self._num_threads)

    def layer(
        self,
        residual: Tensor,
        x: Tensor,
        weights: LayerWeights,
        shape: LayerShape,
        kv: KVLayer,
        batch: ForwardBatch,
        rope: RopeCosSin,
        *,
        canonical: bool,
    ) -> None:
        table = self._find_table((weights,), shape, (kv,))
        if table is None:
            run_layer(self, residual, x, weights, shape, kv, batch, rope, canonical=canonical)
        else:
            self._run_table(residual, x, table, batch, (rope,))

    def layers(
        self,
        residual: Tensor,
        x: Tensor,
        weights: Sequence[LayerWeights],
        shape: LayerShape,
        kv: Sequence[KVLayer],
        batch: ForwardBatch,
        ropes: Sequence[RopeCosSin],
        *,
        canonical: bool,
    ) -> None:
        table = self._find_table(weights, shape, kv) if weights else None
        if table is None:
            run_layers(self, residual, x, weights, shape, kv, batch, ropes, canonical=canonical)
        else:
            self._run_table(residual, x, table, batch, ropes)

    def _find_table(
        self, weights: Sequence[LayerWeights], shape: LayerShape, kv: Sequence[KVLayer]
    ) -> LayerTable | None:
        """Return the table of these layers; None if the layer kernel does not have all they have."""
        key = id(weights[0]), len(weights)
        found = self._tables.get(key)
        if found is not None and found.holds(weights, shape, kv):
            return found
        if not all(is_fusible(one, shape) for one in weights):
            return None
        found = self._tables[key] = make_table(weights, shape, kv, self.dtype)
        return found

    def _run_table(
        self, residual: Tensor, x: Tensor, table: LayerTable, batch: ForwardBatch, ropes: Sequence[RopeCosSin]
    ) -> None:
        num_tokens, hidden = x.shape
        shape, keys = table.shape, table.kv[0].keys
        assert residual.is_contiguous() and x.is_contiguous() and residual.shape == x.shape
        assert residual.dtype == x.dtype == self.dtype
        assert hidden == table.hidden
        assert len(ropes) <= MAX_ROPES
        for rope in ropes:
            assert rope.cos.shape == rope.sin.shape == (num_tokens, shape.head_dim // 2)
            assert rope.cos.is_contiguous() and rope.sin.is_contiguous()
        if num_tokens == 0:
            return
        first, last = ropes[0], ropes[-1]
        spans, max_pages = batch.page_table.shape
        recurrent = checked_spans(batch) if table.is_recurrent else None
        self._kernels.run.layers(
            *(residual.data_ptr(), x.data_ptr(), table.address, len(table.weights)),
            *(first.cos.data_ptr(), last.cos.data_ptr(), first.sin.data_ptr(), last.sin.data_ptr()),
            *(batch.positions.data_ptr(), batch.slots.data_ptr()),
            *(batch.span_starts.data_ptr(), batch.page_table.data_ptr()),
            *(num_tokens, spans, max_pages, keys.shape[3], hidden),
            *(shape.heads, shape.kv_heads, shape.head_dim, self._gemm_code, self._num_threads),
            *(shape.centered_norm, shape.is_parallel, _ACTIVATIONS[shape.activation]),
            *(shape.eps, shape.scale, shape.soft_cap or 0.0, shape.residual_scale),
            *(0 if recurrent is None else recurrent.data_ptr(), 0 if recurrent is None else len(recurrent)),
            shape.gated_attention,
        )

    def embed_packed(self, table: Linear, token_ids: Tensor) -> Tensor:
        ids = self._row_ids(token_ids, table.out_features)
        assert len(table.blocks) == 1
        out = self._arrays.empty(ids.numel(), table.in_features, dtype=self.dtype)
        self._kernels.run.packed_rows(
            *(out.data_ptr(), table.data.data_ptr(), ids.data_ptr()),
            *(ids.numel(), table.in_features, self._code),
        )
        return out

    def _row_ids(self, token_ids: Tensor, num_rows: int) -> Tensor:
        """Return the ids, checked; negative ones are 0."""
        assert token_ids.dtype == self._arrays.int64 and token_ids.is_contiguous()
        numbers = token_ids.tolist()
        if not numbers:
            return token_ids
        assert max(numbers) < num_rows
        return token_ids if min(numbers) >= 0 else token_ids.clamp(min=0)

    def embed_blocks(self, table: Blocks, token_ids: Tensor) -> Tensor:
        form, width = BLOCK_FORMATS[table.format], table.in_features
        ids = self._row_ids(token_ids, table.out_features)
        assert table.data.is_contiguous()
        assert table.data.shape[1] == width // form.length * form.num_bytes
        out = self._arrays.empty(ids.numel(), width, dtype=self.dtype)
        self._kernels.run.block_rows(
            *(out.data_ptr(), table.data.data_ptr(), ids.data_ptr()),
            *(ids.numel(), width, form.type_number, self._code),
        )
        return out

    def sample(self, logits: Tensor, batch: SamplingBatch) -> Tensor:
        rows, vocabulary = _check_logits(logits)
        out = self._arrays.empty(rows, dtype=self._arrays.int64)
        fields = (batch.temperature, batch.top_k, batch.top_p, batch.min_p, batch.seeds, batch.positions)
        assert all(field.shape == (rows,) for field in fields)
        self._kernels.run.sample(
            out.data_ptr(),
            logits.data_ptr(),
            rows,
            vocabulary,
            *(field.data_ptr() for field in fields),
            self._num_threads,
        )
        return out

    def sample_greedy(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        rows, vocabulary = _check_logits(logits)
        ids, logprobs = (
            self._arrays.empty(rows, dtype=self._arrays.int64),
            self._arrays.empty(rows, dtype=self._arrays.float32),
        )
        self._kernels.run.greedy(
            ids.data_ptr(), logprobs.data_ptr(), logits.data_ptr(), rows, vocabulary, self._num_threads
        )
        return ids, logprobs

    def logsumexp(self, logits: Tensor) -> Tensor:
        rows, vocabulary = _check_logits(logits)
        out = self._arrays.empty(rows, dtype=self._arrays.float32)
        self._kernels.run.logsumexp(out.data_ptr(), logits.data_ptr(), rows, vocabulary, self._num_threads)
        return out

    def topk(self, logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
        rows, vocabulary = _check_logits(logits)
        k = min(k, vocabulary)
        values = self._arrays.empty(rows, k, dtype=self._arrays.float32)
        ids = self._arrays.empty(rows, k, dtype=self._arrays.int64)
        if k > 0:
            self._kernels.run.topk(
                values.data_ptr(), ids.data_ptr(), logits.data_ptr(), rows, vocabulary, k, self._num_threads
            )
        return values, ids


def _with_packed_heads(x: Tensor) -> Tensor:
    """Return the heads of a row contiguous; rows may have any stride."""
    if x.is_contiguous():
        return x
    strides = x.stride()
    return x if strides[-1] == 1 and (len(strides) == 2 or strides[1] == x.shape[2]) else x.contiguous()


def _check_logits(logits: Tensor) -> tuple[int, int]:
    rows, vocabulary = logits.shape
    assert is_fp32(logits)
    assert logits.is_contiguous()
    assert vocabulary > 0
    return rows, vocabulary
