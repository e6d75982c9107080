"""The operations of a decoder, as one Protocol that every backend implements.

The contract: with `canonical=True`, or in operations without that argument, a row of the result
depends only on the same row of the inputs (in attention also on the keys and values of its own
request) and on the recipe. It does not depend on the number of rows, the row's index, the other
rows or the number of threads.

Shapes: a row is a token. H query heads, KVH KV heads, D head_dim, N and K out and in features, V
vocabulary. Activations, weights and the KV cache have one dtype; all arithmetic is fp32.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from holdfast.numerics.arrays import Device, DType, Tensor
from holdfast.numerics.experts import ExpertLinears, Experts, SigmoidScores
from holdfast.numerics.forward_batch import ForwardBatch, KVLayer, StateLayer
from holdfast.numerics.layer import LayerShape, LayerWeights, RopeCosSin
from holdfast.numerics.recipe import Recipe
from holdfast.numerics.recurrence import GatedDelta, ShortConv, StateShape, StateSpace
from holdfast.numerics.sampling import SamplingBatch, TokenHistory


@dataclass(frozen=True)
class Linear:
    """A weight in the layout of one backend. Only the backend that packed it can read `data`."""

    data: Tensor
    bias: Tensor | None  # fp32 [N]
    in_features: int
    out_features: int
    dtype: DType
    # Triton: 0 is the library's own GEMM, rounded by it. S >= 1 is split-K: the fp32 partial sums
    # of S splits are added in order, then the bias, then rounded once.
    split_k: int = 0
    # Triton, split-N: {number of rows: output columns of the first of two GEMMs}, if two are faster
    # than one. Same bits.
    split_n: Mapping[int, int] = field(default_factory=dict)
    # Triton, a weight of an expert: the form of its grouped GEMM in fast passes.
    expert_form: int | None = None
    # C, a weight in quantised blocks: format and output columns of its parts.
    blocks: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Capabilities:
    """What a backend does in its own way. Who needs to know asks here, never for the backend's name."""

    # Certification tests passes of these sizes, in tokens, up to a largest one.
    sizes: Callable[[int], tuple[int, ...]]
    layer_sizes: tuple[int, ...]  # of them, those at which it tests whole layers
    # A kernel takes at most so many rows at once, in code that does not know how many follow. Of larger
    # passes certification tests two. None: a library may choose its kernel by the number of rows.
    block_rows: int | None = None
    # The sampler takes row by row, in code that does not know their number: it is tested with few.
    samples_by_row: bool = True
    rounds_in_gemm: bool = False  # `linear` is another kernel than `logits`, not its result rounded
    # A certified pass computes its head in fast form. If not, the head is always in canonical form.
    certifies_head: bool = False
    # Routers and experts follow the form of the pass. If not, they are always in canonical form.
    certifies_experts: bool = False
    is_interpreted: bool = False  # each pass takes seconds: only what is indispensable is tested
    libraries: tuple[str, ...] = ()  # whose versions decide bits, besides torch


class Backend(Protocol):
    """Computes a decoder on one device, in one dtype."""

    @property
    def recipe(self) -> Recipe: ...

    @property
    def can(self) -> Capabilities: ...

    @property
    def device(self) -> Device: ...

    @property
    def build(self) -> str:
        """The instruction set and the compiler of the kernels, for a certificate. They decide no bit.
        Empty if the recipe says it all."""

    @property
    def page_size(self) -> int:
        """Positions per KV page."""

    @property
    def split_pages(self) -> int:
        """Pages that requests with the same ones can read together in attention; 0: each reads its own."""

    def in_fp32(self) -> "Backend":
        """Return this backend in fp32, which shows what rounding hides, or itself if fp32 says nothing new."""

    def expert_forms(self, w: Linear) -> tuple[Linear, ...]:
        """Return a weight of an expert in each form in which fast passes multiply it; () if there is one."""

    def new_kv_layer(self, num_pages: int, kv_heads: int, head_dim: int) -> KVLayer:
        """Return pages of zeros. The shapes are those of `KVLayer`, the strides the backend's."""

    def tile_tokens(self, span_len: int, group: int) -> int:
        """Return tokens per attention tile for a span of `span_len` tokens, with `group` query heads per KV
        head.

        0: this backend uses no tiles.
        """

    def prepare(self, batch: ForwardBatch, heads: int, kv_heads: int) -> ForwardBatch:
        """Add to the batch what is the same for all layers, such as the list of attention work. Called once
        a pass. It changes no bit."""

    def pack(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        """Return weight [N, K] and bias [N] in the layout of `linear`.

        The C backend copies; the others may keep `weight`.
        """

    def pack_experts(self, weights: Iterable[tuple[Tensor, Tensor | None]], count: int) -> ExpertLinears:
        """Pack one projection of all experts: `count` weights [N, K] with their biases. Each is read when
        the one before is packed."""

    def linear(self, x: Tensor, w: Linear, *, canonical: bool) -> Tensor:
        """Multiply x [rows, K] -> [rows, N], summed in fp32, bias added in fp32, rounded once to the dtype."""

    def logits(self, x: Tensor, w: Linear, *, canonical: bool) -> Tensor:
        """Multiply x [rows, K] -> fp32 [rows, N]: `linear` without the rounding, if the backend has the sums
        in fp32."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, *, centered: bool = False) -> Tensor:
        """Norm x [rows, D] or [rows, heads, D] -> the same shape: rounded(x / rms(x)) * weight.

        The inner rounding is to the weight's dtype: with fp32 weights only the result is rounded.
        centered: the mean is subtracted first; the weight is fp32.
        """

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
        """residual += delta in place, rounded to the dtype; return its rms_norm, or without a weight
        a copy. All [rows, D].

        Before the addition delta is normed by delta_norm and multiplied by delta_scale, and rounded
        after each.
        """

    def rope(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> None:
        """Rotate q [rows, H, D] and k [rows, KVH, D] in place (rotate-half).

        cos, sin: fp32 [rows, D / 2], gathered by position. q and k may be views of the qkv GEMM's
        result.
        """

    def store_kv(self, k: Tensor, v: Tensor, layer: KVLayer, slots: Tensor) -> None:
        """Write k, v [rows, KVH, D] to their slots int64 [rows]. Slot -1 is skipped."""

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
        """Attend: q [rows, H, D] -> [rows, H * D]; padding rows are zero.

        The token at position p sees positions max(0, p - window + 1) .. p of its request, all
        written before. A score s becomes soft_cap * tanh(s / soft_cap). sinks, fp32 [H]: a score of
        each head whose value is zero. It is neither scaled nor capped. It is the first of the sum, before
        all positions.
        """

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """gate_up [rows, 2 * I] -> rounded(silu(gate)) * up, [rows, I]."""

    def gelu_mul(self, gate_up: Tensor) -> Tensor:
        """As `silu_mul`, with GELU in its tanh form."""

    def swiglu_mul(self, gate_up: Tensor, *, alpha: float, limit: float) -> Tensor:
        """gate_up [rows, 2 * I] -> gate * sigmoid(alpha * gate) * (up + 1), [rows, I], rounded once.

        Before that, gate is limited to `limit` and up to -limit .. limit. NaN stays NaN.
        """

    def sigmoid_mul(self, x: Tensor, gate: Tensor) -> Tensor:
        """Multiply x [rows, N] by sigmoid(gate), [rows, N] with any row stride; rounded once."""

    def gated_delta(self, x: Tensor, weights: GatedDelta, layer: StateLayer, batch: ForwardBatch) -> Tensor:
        """Run the gated delta rule: x [rows, input_width] -> [rows, value_heads * value_dim].

        x may have any row stride. It and the log are in the dtype; everything inside is fp32, and the result
        is rounded once. Padding rows are zero. For each token, in the order of positions:

            q, k, v = silu(sum of conv[j] * inputs, the oldest position first)
            q, k    = each head's q / sqrt(sum of q^2 + 1e-6), likewise k; then q / sqrt(key_dim)
            beta    = beta_scale * sigmoid(b)
            S       = exp(decay * softplus(a + dt_bias)) * S             [rows of k, columns of v]
            S       = S + k (beta * (v - S^T k))^T
            result  = S^T q

        softplus(x) is max(x, 0) + log1p(exp(-|x|)).
        """

    def ssd(self, x: Tensor, weights: StateSpace, layer: StateLayer, batch: ForwardBatch) -> Tensor:
        """Run a state space layer of Mamba 2: x [rows, input_width] -> [rows, heads * head_dim].

        Strides, dtypes, rounding and padding rows are as in `gated_delta`. For each token:

            x, b, c = silu(conv_bias + sum of conv[j] * inputs, the oldest position first)
            dt      = softplus(dt + dt_bias), limited to dt_min .. dt_max
            S       = exp(dt * decay) * S + b (dt * x)^T                 [rows of b, columns of x]
            result  = S^T c + skip * x
        """

    def short_conv(self, x: Tensor, weights: ShortConv, layer: StateLayer, batch: ForwardBatch) -> Tensor:
        """Run a gated short convolution: x [rows, 3 * width], the columns of b, c and x -> [rows, width].

        The log holds rounded(b * x). The result is rounded(c * (conv_bias + sum of conv[j] * logged values, the
        oldest position first)). Padding rows are zero. Of a `RecurrentBatch` it reads slots and starts alone.
        """

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
        """Norm each group of columns of x [rows, N], times weight and silu(gate) -> [rows, N], rounded once.

        gate [rows, N] may have any row stride. weight: fp32 [group] or [N]; None: x * silu(gate), without a
        norm. gates_first: x is multiplied by silu(gate) before the norm instead of after it.
        """

    def new_state_layer(self, num_slots: int, log_len: int, shape: StateShape) -> StateLayer:
        """Return slots of zeros for a recurrent layer of this shape."""

    def exp(self, x: Tensor) -> Tensor:
        """e^x of fp32 x, element by element."""

    def soft_cap(self, logits: Tensor, cap: float) -> None:
        """logits fp32 [rows, V] = cap * tanh(logits / cap), in place."""

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
        """Run a whole layer, with the bits of `layer.run_layer`.

        residual and x [rows, hidden] are updated in place.
        """

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
        """Run consecutive layers, with the bits of `layer.run_layers`. ropes: those that the layers name."""

    def experts(self, x: Tensor, layer: Experts, shape: LayerShape, *, canonical: bool) -> Tensor:
        """Run the layer's experts: x [rows, hidden] -> [rows, hidden], by the rules of
        `numerics/experts.py`."""

    def route(
        self, logits: Tensor, top_k: int, *, normalizes: bool, sigmoid: SigmoidScores | None = None
    ) -> tuple[Tensor, Tensor]:
        """Choose experts: the router's logits fp32 [rows, experts] -> the weights fp32 [rows, top_k] and
        ids [rows, top_k] of each token's experts, by descending logit, ties to the lowest id. sigmoid: by
        descending biased score instead."""

    def combine(self, outputs: Tensor, weights: Tensor) -> Tensor:
        """Add outputs [rows, top_k, hidden], weights fp32 [rows, top_k] -> [rows, hidden], in fp32 and in
        the order of top_k."""

    def embed(self, table: Tensor, token_ids: Tensor) -> Tensor:
        """Read rows: table [V, D], token_ids int64 [rows] -> [rows, D]. A negative id reads row 0."""

    def sample(self, logits: Tensor, batch: SamplingBatch) -> Tensor:
        """Sample: logits fp32 [n, V] -> token ids int64 [n], by the rule of `numerics/sampling.py`."""

    def sample_greedy(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the argmax of each row, int64 [n], as `sample` at temperature 0; and its logprob, fp32 [n].
        That of NO_TOKEN means nothing."""

    def logsumexp(self, logits: Tensor) -> Tensor:
        """logits fp32 [n, V] -> fp32 [n]."""

    def topk(self, logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Return the k largest: values fp32 [n, k] in descending order and ids int64 [n, k], ties to the
        lowest id."""

    def new_token_history(self, num_pages: int) -> TokenHistory | None:
        """Return what logits processors need of tokens that only the device knows. None if the host knows
        all tokens of a pass when it starts."""
