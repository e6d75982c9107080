"""Layers with recurrent state: their weights, and the part of a layer that stands in place of attention.

The canonical form of a recurrence is token by token, in fp32, with one order of sums, in prefill as in
decode. So the state after n tokens is a function of these tokens alone, however they were cut into passes.

    in_proj   x [tokens, hidden] -> inputs of the recurrence | gate      both in the model's dtype
    recurrence                                                           `Backend.gated_delta`, `ssd`, `short_conv`
    norm      of its output, times silu(gate)                            `Backend.gated_rms_norm`
    out_proj  -> [tokens, hidden]
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from holdfast.numerics.arrays import Tensor
from holdfast.numerics.forward_batch import ForwardBatch, StateLayer

if TYPE_CHECKING:
    from holdfast.numerics.ops import Backend, Linear


class StateShape(Protocol):
    """What a request has in a recurrent layer: the shape of its state, and the columns of its log."""

    @property
    def state_shape(self) -> tuple[int, ...]: ...

    @property
    def log_width(self) -> int: ...


@dataclass(frozen=True)
class GatedDelta:
    """The weights of a gated delta rule. All are fp32.

    The inputs of a token are q [key_heads * key_dim], k [key_heads * key_dim], v [value_heads * value_dim],
    then a and b [value_heads] each. Value head h reads q and k of head h // (value_heads // key_heads), or, in
    turns, of head h % key_heads.
    """

    conv: Tensor  # [kernel, width of q, k and v], the oldest position first
    decay: Tensor  # [value_heads], negative: -exp(A_log)
    dt_bias: Tensor  # [value_heads]
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    beta_scale: float = 1.0
    in_turns: bool = False

    @property
    def conv_width(self) -> int:
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def input_width(self) -> int:
        """Columns of a token's inputs."""
        return self.conv_width + 2 * self.value_heads

    @property
    def log_width(self) -> int:
        return self.input_width

    @property
    def output_width(self) -> int:
        return self.value_heads * self.value_dim

    @property
    def state_shape(self) -> tuple[int, int, int]:
        """Of the state of a request: heads, rows, columns. The columns do not see each other."""
        return self.value_heads, self.key_dim, self.value_dim


@dataclass(frozen=True)
class StateSpace:
    """The weights of a state space layer of Mamba 2. All are fp32.

    The inputs of a token are x [heads * head_dim], b [groups * state_size], c [groups * state_size], then
    dt [heads]. Head h reads b and c of group h // (heads // groups).
    """

    conv: Tensor  # [kernel, width of x, b and c], the oldest position first
    conv_bias: Tensor | None  # [width of x, b and c]
    decay: Tensor  # [heads], negative: -exp(A_log)
    dt_bias: Tensor  # [heads]
    skip: Tensor  # [heads]: D
    heads: int
    head_dim: int
    groups: int
    state_size: int
    dt_min: float = 0.0
    dt_max: float = float("inf")

    @property
    def conv_width(self) -> int:
        return self.heads * self.head_dim + 2 * self.groups * self.state_size

    @property
    def input_width(self) -> int:
        return self.conv_width + self.heads

    @property
    def log_width(self) -> int:
        return self.input_width

    @property
    def output_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def state_shape(self) -> tuple[int, int, int]:
        return self.heads, self.state_size, self.head_dim


@dataclass(frozen=True)
class ShortConv:
    """The weights of a short convolution, fp32. It has no state besides its last inputs.

    The inputs of a token are b, c and x [width] each. The log holds b * x.
    """

    conv: Tensor  # [kernel, width], the oldest position first
    conv_bias: Tensor | None  # [width]

    @property
    def conv_width(self) -> int:
        return self.conv.shape[1]

    @property
    def input_width(self) -> int:
        return 3 * self.conv_width

    @property
    def log_width(self) -> int:
        return self.conv_width

    @property
    def output_width(self) -> int:
        return self.conv_width

    @property
    def state_shape(self) -> tuple[int, int, int]:
        return 0, 0, 0


Recurrence: TypeAlias = GatedDelta | StateSpace | ShortConv


@dataclass(frozen=True)
class Mixer:
    """What stands in place of attention in a recurrent layer, or beside it.

    norm: fp32 [norm_group], the same for each group of the output, or [width of the output]; None: the
    output is multiplied by silu(gate) and not normed. Without has_gate there is neither.
    gates_first: the output is multiplied by silu(gate) before the norm.
    """

    in_proj: "Linear"
    recurrence: Recurrence
    out_proj: "Linear"
    has_gate: bool = True
    norm: Tensor | None = None
    norm_group: int = 0
    norm_eps: float = 1e-6
    gates_first: bool = False


def run_mixer(
    ops: "Backend", x: Tensor, mixer: Mixer, layer: StateLayer, batch: ForwardBatch, *, canonical: bool
) -> Tensor:
    """Run the mixer on the normed tokens x [tokens, hidden] -> [tokens, hidden]. It updates the layer's state."""
    mixed = run_recurrent_part(ops, x, mixer, layer, batch, canonical=canonical)
    return ops.linear(mixed, mixer.out_proj, canonical=canonical)


def run_recurrent_part(
    ops: "Backend", x: Tensor, mixer: Mixer, layer: StateLayer, batch: ForwardBatch, *, canonical: bool
) -> Tensor:
    """Run the mixer up to its out_proj: x [tokens, hidden] -> [tokens, output_width]."""
    inputs = ops.linear(x, mixer.in_proj, canonical=canonical)  # [tokens, inputs | gate]
    width = mixer.recurrence.input_width
    mixed = run_recurrence(ops, inputs[:, :width], mixer.recurrence, layer, batch)
    if not mixer.has_gate:
        return mixed
    return ops.gated_rms_norm(
        *(mixed, inputs[:, width:], mixer.norm),
        eps=mixer.norm_eps,
        group=mixer.norm_group,
        gates_first=mixer.gates_first,
    )


def run_recurrence(
    ops: "Backend", inputs: Tensor, weights: Recurrence, layer: StateLayer, batch: ForwardBatch
) -> Tensor:
    """Run the recurrence: inputs [tokens, input_width] -> [tokens, output_width]."""
    if isinstance(weights, GatedDelta):
        return ops.gated_delta(inputs, weights, layer, batch)
    if isinstance(weights, StateSpace):
        return ops.ssd(inputs, weights, layer, batch)
    return ops.short_conv(inputs, weights, layer, batch)
