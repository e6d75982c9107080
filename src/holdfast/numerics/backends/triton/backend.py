"""The Triton backend: our kernels around the vendor library's GEMMs, on a GPU or in Triton's
interpreter.

A GEMM has one of three forms. All other operations have one form.

    canonical     split-K as the recipe says, in slabs of exactly `recipe.rows` rows
    fast          split-K as the recipe says, with the batch's own number of rows
    vendor_gemm   the library's own GEMM; fast passes of a backend that was opened with vendor_gemm=True

The kernel after a GEMM adds its partial sums, so a layer is four GEMMs and five or six kernels.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from holdfast.numerics.backends.triton import elementwise, norm, recurrence, rope_store
from holdfast.numerics.backends.triton.attention import paged
from holdfast.numerics.backends.triton.gemms import gemm, grouped_gemm, partial_sums, routing, small_m_gemm
from holdfast.numerics.backends.triton.gemms.partial_sums import ExpertOutputs
from holdfast.numerics.backends.triton.sampler import sampling
from holdfast.numerics.backends.triton.sampler.token_history import DeviceTokenHistory
from holdfast.numerics.batch_sizes import padded_batch_sizes, padded_head_size
from holdfast.numerics.experts import ExpertLinears, Experts, SigmoidScores, activate
from holdfast.numerics.forward_batch import ForwardBatch, KVLayer, StateLayer
from holdfast.numerics.layer import LayerShape, LayerWeights, RopeCosSin, mix, project, run_layers
from holdfast.numerics.ops import Capabilities, Linear
from holdfast.numerics.recipe import Recipe
from holdfast.numerics.recurrence import StateShape, run_recurrent_part
from holdfast.numerics.versions import VERSIONS

_REFERENCE_ROWS = 256


def _few_sizes(max_tokens: int) -> tuple[int, ...]:
    """For the interpreter, in which each size takes seconds to test."""
    return tuple(sorted({1, 2, 8, _REFERENCE_ROWS, 2 * _REFERENCE_ROWS, max_tokens}))


class TritonBackend:
    """The Triton backend on one device.

    split_k: (N, K) -> `Linear.split_k`. split_n: (N, K) -> `Linear.split_n`, which changes no bit.
    """

    page_size = paged.PAGE_SIZE
    split_pages = paged.SPLIT_PAGES
    build = ""
    layers = run_layers
    tile_tokens = staticmethod(paged.tile_tokens)
    attention = staticmethod(paged.attention)
    rms_norm = staticmethod(norm.rms_norm)
    rope = staticmethod(rope_store.rope)
    store_kv = staticmethod(rope_store.store)
    gated_delta = staticmethod(recurrence.gated_delta)
    ssd = staticmethod(recurrence.ssd)
    short_conv = staticmethod(recurrence.short_conv)
    gated_rms_norm = staticmethod(recurrence.gated_rms_norm)
    sigmoid_mul = staticmethod(recurrence.sigmoid_mul)
    exp = staticmethod(torch.exp)
    soft_cap = staticmethod(elementwise.soft_cap)
    embed = staticmethod(elementwise.embed)
    sample = staticmethod(sampling.sample)
    sample_greedy = staticmethod(sampling.sample_greedy)
    logsumexp = staticmethod(sampling.logsumexp)
    topk = staticmethod(sampling.topk)

    def __init__(
        self,
        dtype: torch.dtype,
        device: torch.device,
        split_k: Mapping[tuple[int, int], int],
        vendor_gemm: bool,
        split_n: Mapping[tuple[int, int], Mapping[int, int]] | None = None,
    ) -> None:
        self.dtype = dtype
        self.device = device
        self._split_k = dict(split_k)
        self._split_n = dict(split_n or {})
        self._vendor_gemm = vendor_gemm
        is_interpreted = device.type == "cpu"
        self.can = Capabilities(
            _few_sizes if is_interpreted else padded_batch_sizes,
            layer_sizes=(1, 2, 8, 32, 128, 256, 512),
            samples_by_row=False,
            rounds_in_gemm=True,
            certifies_head=True,
            certifies_experts=True,
            is_interpreted=is_interpreted,
            libraries=("triton",),
        )
        self.recipe = Recipe(
            path="triton",
            rows=_REFERENCE_ROWS,
            k_slices=1,
            kv_block=paged.KV_BLOCK,
            query_tile=0,
            dtype=str(dtype).removeprefix("torch."),
            variant="interpreter" if is_interpreted else "cuda",
            version=VERSIONS["kernels/triton"],
            products=" ".join(f"{n}x{k}/{s}" for (n, k), s in sorted(self._split_k.items())),
        )

    def in_fp32(self) -> "TritonBackend":
        """Itself: in fp32 a GPU uses other instructions."""
        return self

    def expert_forms(self, w: Linear) -> tuple[Linear, ...]:
        if w.expert_form is None:
            return ()
        return tuple(replace(w, expert_form=form) for form in range(len(grouped_gemm.forms(self.dtype))))

    def new_kv_layer(self, num_pages: int, kv_heads: int, head_dim: int) -> KVLayer:
        """Keys are stored like values, the dims of a position together; `keys` is a transposed
        view."""
        shape = (num_pages, kv_heads, self.page_size, head_dim)
        keys = torch.zeros(shape, dtype=self.dtype, device=self.device)
        values = torch.zeros(shape, dtype=self.dtype, device=self.device)
        return KVLayer(keys.transpose(2, 3), values)

    def new_state_layer(self, num_slots: int, log_len: int, shape: StateShape) -> StateLayer:
        state = torch.zeros((num_slots, *shape.state_shape), dtype=torch.float32, device=self.device)
        log = torch.zeros((num_slots, log_len, shape.log_width), dtype=self.dtype, device=self.device)
        return StateLayer(state, log)

    def prepare(self, batch: ForwardBatch, heads: int, kv_heads: int) -> ForwardBatch:
        batch = paged.prepare(batch, heads, kv_heads)
        if batch.recurrent is None:
            return batch
        work = recurrence.prepare(batch.recurrent, batch.num_tokens)
        return replace(batch, recurrent=replace(batch.recurrent, work=work))

    def pack(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        out_features, in_features = weight.shape
        data = weight.to(self.device, self.dtype).contiguous()
        shape = out_features, in_features
        split_k = self._split_k.get(shape, 0)
        if bias is None:
            split_n = {} if split_k else self._split_n.get(shape, {})
            return Linear(data, None, in_features, out_features, self.dtype, split_k, split_n)
        bias = bias.to(self.device, torch.float32).contiguous()
        return Linear(data, bias, in_features, out_features, self.dtype, max(split_k, 1))

    def pack_experts(self, weights: Iterable[tuple[Tensor, Tensor | None]], count: int) -> ExpertLinears:
        """One tensor for all experts; each weight is copied to its place."""
        data = biases = None
        for number, (weight, bias) in enumerate(weights):
            if data is None:
                data = torch.empty((count, *weight.shape), dtype=self.dtype, device=self.device)
            data[number].copy_(weight)
            if bias is not None:
                if biases is None:
                    biases = torch.empty((count, *bias.shape), dtype=torch.float32, device=self.device)
                biases[number].copy_(bias)
        assert data is not None, "a layer without experts"
        _, out_features, in_features = data.shape
        stacked = Linear(data, biases, in_features, out_features, self.dtype, expert_form=0)
        parts = (
            replace(stacked, data=data[number], bias=None if biases is None else biases[number])
            for number in range(count)
        )
        return ExpertLinears(tuple(parts), stacked)

    def _gemm(self, x: Tensor, w: Linear, canonical: bool) -> Tensor:
        """Return a finished result or partial sums; the next kernel adds the bias."""
        if canonical:
            return gemm.multiply(x, w, slab=self.recipe.rows)
        return gemm.multiply(x, w, vendor_gemm=self._vendor_gemm)

    def _gate_up(self, x: Tensor, w: Linear, canonical: bool, shape: LayerShape) -> Tensor:
        """activation(gate) * up of [gate, up] = x w^T; one fused kernel for few rows."""
        if shape.activation == "relu2":
            return activate(self, self.linear(x, w, canonical=canonical), shape)
        gelu = shape.activation == "gelu_tanh"
        unfinished = canonical or self._vendor_gemm or w.split_k or w.bias is not None
        if not unfinished and small_m_gemm.supports(x.shape[0], w.data, 0):
            return small_m_gemm.gate_up(x, w.data, gelu=gelu)
        return elementwise.silu_mul(self._gemm(x, w, canonical), w.bias, self.dtype, gelu=gelu)

    def linear(self, x: Tensor, w: Linear, *, canonical: bool) -> Tensor:
        if w.expert_form is not None:
            return grouped_gemm.multiply_one(x, w, canonical=canonical, dtype=self.dtype)
        return partial_sums.reduce(self._gemm(x, w, canonical), w.bias, self.dtype)

    def logits(self, x: Tensor, w: Linear, *, canonical: bool) -> Tensor:
        if w.expert_form is not None:
            return grouped_gemm.multiply_one(x, w, canonical=canonical, dtype=torch.float32)
        if w.out_features == 1 and w.bias is None:
            return routing.row_dot(x, w.data)
        num_rows, slab = len(x), self.recipe.rows if canonical else None
        if not canonical:
            x = F.pad(x, (0, 0, 0, padded_head_size(num_rows) - num_rows))
        product = gemm.multiply_fp32(x, w, slab=slab)[..., :num_rows, :]
        return partial_sums.reduce(product, w.bias, torch.float32)

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
        return norm.add_rms_norm(
            *(residual, delta, None, weight, eps),
            delta_norm=delta_norm,
            delta_scale=delta_scale,
            centered=centered,
        )

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        return elementwise.silu_mul(gate_up, None, self.dtype)

    def gelu_mul(self, gate_up: Tensor) -> Tensor:
        return elementwise.silu_mul(gate_up, None, self.dtype, gelu=True)

    def swiglu_mul(self, gate_up: Tensor, *, alpha: float, limit: float) -> Tensor:
        return elementwise.swiglu_mul(gate_up, None, self.dtype, alpha=alpha, limit=limit)

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
        delta, bias = self._mix(x, weights, shape, kv, batch, rope, canonical)
        if not weights.has_mlp:
            norm.add_rms_norm(
                *(residual, delta, bias, weights.next_norm, shape.eps),
                out=x,
                delta_norm=weights.attention_norm,
                delta_scale=shape.residual_scale,
                centered=shape.centered_norm,
            )
            return
        added = norm.add_rms_norm(
            *(residual, delta, bias, weights.post_norm, shape.eps),
            delta_norm=weights.attention_norm,
            delta_scale=shape.residual_scale,
            centered=shape.centered_norm,
        )
        inner, bias = self._mlp(x if shape.is_parallel else added, weights, shape, canonical)
        norm.add_rms_norm(
            *(residual, inner, bias, weights.next_norm, shape.eps),
            out=x,
            delta_norm=weights.mlp_norm,
            delta_scale=shape.residual_scale,
            centered=shape.centered_norm,
        )

    def _mix(
        self,
        x: Tensor,
        weights: LayerWeights,
        shape: LayerShape,
        kv: KVLayer,
        batch: ForwardBatch,
        rope: RopeCosSin,
        canonical: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """As `layer.mix`. Return a finished result or partial sums, and the bias to add."""
        if weights.mixer is not None and weights.qkv is not None:
            return mix(self, x, weights, shape, kv, batch, rope, canonical=canonical), None
        if weights.mixer is not None:
            assert kv.states is not None
            mixed = run_recurrent_part(self, x, weights.mixer, kv.states, batch, canonical=canonical)
            return self._gemm(mixed, weights.mixer.out_proj, canonical), weights.mixer.out_proj.bias
        assert weights.o is not None
        q, gate = self._queries(x, weights, shape, kv, batch, rope, canonical)
        attended = paged.attention(
            *(q, kv, batch),
            scale=shape.scale,
            window=weights.window,
            soft_cap=shape.soft_cap,
            sinks=weights.sinks,
        )
        if gate is not None:
            attended = recurrence.sigmoid_mul(attended, gate)
        return self._gemm(attended, weights.o, canonical), weights.o.bias

    def _mlp(
        self, x: Tensor, weights: LayerWeights, shape: LayerShape, canonical: bool
    ) -> tuple[Tensor | ExpertOutputs, Tensor | None]:
        """Return a finished result, partial sums or the outputs of experts, and the bias to add."""
        if weights.experts is not None:
            return self._expert_outputs(x, weights.experts, shape, canonical), None
        assert weights.gate_up is not None
        assert weights.down is not None
        inner = self._gate_up(x, weights.gate_up, canonical, shape)
        return self._gemm(inner, weights.down, canonical), weights.down.bias

    def experts(self, x: Tensor, layer: Experts, shape: LayerShape, *, canonical: bool) -> Tensor:
        return routing.combine(self._expert_outputs(x, layer, shape, canonical))

    def _expert_outputs(self, x: Tensor, layer: Experts, shape: LayerShape, canonical: bool) -> ExpertOutputs:
        """The forms for any number of rows of an expert have the same bits, so a canonical pass
        differs only in the router's and the shared expert's GEMMs, and in the form."""
        gate_up, down = layer.gate_up.stacked, layer.down.stacked
        assert gate_up is not None
        assert down is not None
        num_experts = len(gate_up.data)
        slab = self.recipe.rows if canonical else None
        router = gemm.multiply_fp32(x, layer.router, slab=slab)
        weights, ids = routing.route(
            *(router, layer.router.bias, num_experts, layer.top_k),
            normalizes=layer.normalizes,
            sigmoid=layer.sigmoid,
        )
        tile = grouped_gemm.choose_tile(ids.numel(), num_experts, self.dtype, canonical=canonical)
        assignment = routing.assign(ids, num_experts, tile)
        is_gated = shape.activation != "relu2"
        inner = grouped_gemm.multiply(
            *(x, gate_up.data, gate_up.bias, assignment, tile),
            rows_per_input=layer.top_k,
            gated=shape if is_gated else None,
        )
        inner = inner if is_gated else activate(self, inner, shape)
        outputs = grouped_gemm.multiply(inner, down.data, down.bias, assignment, tile)
        if layer.shared is None:
            return ExpertOutputs(outputs, weights)
        inner = self._gate_up(x, layer.shared.gate_up, canonical, shape)
        shared = self.linear(inner, layer.shared.down, canonical=canonical)
        if layer.shared_gate is None:  # the sigmoid of infinity is 1
            gate = torch.full((len(x), 1), float("inf"), dtype=torch.float32, device=x.device)
        else:
            gate = self.logits(x, layer.shared_gate, canonical=canonical)
        return ExpertOutputs(outputs, weights, shared, gate)

    def route(
        self, logits: Tensor, top_k: int, *, normalizes: bool, sigmoid: SigmoidScores | None = None
    ) -> tuple[Tensor, Tensor]:
        return routing.route(
            *(logits.contiguous()[None], None, logits.shape[1], top_k), normalizes=normalizes, sigmoid=sigmoid
        )

    def combine(self, outputs: Tensor, weights: Tensor) -> Tensor:
        return routing.combine(ExpertOutputs(outputs.flatten(0, 1), weights.contiguous()))

    def _queries(
        self,
        x: Tensor,
        weights: LayerWeights,
        shape: LayerShape,
        kv: KVLayer,
        batch: ForwardBatch,
        rope: RopeCosSin,
        canonical: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """As `layer.project`; fused, unless the norm of q is over all heads or q, k and v are clipped."""
        assert weights.qkv is not None
        q_norm, k_norm = weights.q_norm, weights.k_norm
        norms = None if q_norm is None or k_norm is None else (q_norm, k_norm)
        is_whole = norms is not None and norms[0].numel() != shape.head_dim
        if is_whole or (norms is not None and shape.centered_norm) or shape.clip_qkv is not None:
            q, gate = project(self, x, weights, shape, kv, batch, rope, canonical=canonical)
            return q.contiguous(), gate
        if not shape.gated_attention:
            qkv, bias, gate = self._gemm(x, weights.qkv, canonical), weights.qkv.bias, None
        else:
            qkv, bias = self.linear(x, weights.qkv, canonical=canonical), None
            gate = qkv[:, (shape.heads + 2 * shape.kv_heads) * shape.head_dim :]
        q = rope_store.rope_store(qkv, bias, norms, shape, rope.cos, rope.sin, kv, batch.slots)
        return q, gate

    def new_token_history(self, num_pages: int) -> DeviceTokenHistory:
        return DeviceTokenHistory(num_pages, self.page_size, self.device)
