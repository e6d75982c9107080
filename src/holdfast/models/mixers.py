"""Recurrent layers of a model: their sizes, and the names and shapes of their tensors.

A layer is of one kind. What kind each layer of a model has is a list in its `DecoderConfig`.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

LayerKind = Literal["attention", "recurrent", "both"]
Shape: TypeAlias = tuple[int, ...]
# Of a layer's tensors by name: each part of their rows, one after the other, with its factor.
WeightScales: TypeAlias = tuple[tuple[str, tuple[tuple[int, float], ...]], ...]


@dataclass(frozen=True)
class DeltaSizes:
    """A gated delta rule (Gated DeltaNet).

    grouped: stored as in_proj_qkvz and in_proj_ba, in which q, k, v and z, or b and a, of a key head and
    its value heads are together. Else each projection is a tensor. grouped_ba: only b and a are so.
    in_turns: as in `GatedDelta`. has_decay: -exp(A_log) is stored, as A. split_qkv: q, k and v are tensors of
    their own, and so are their convolutions. norm_eps: None: that of the model's norms.
    """

    kernel: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    grouped: bool
    grouped_ba: bool = False
    in_turns: bool = False
    has_decay: bool = False
    split_qkv: bool = False
    beta_scale: float = 1.0
    norm_eps: float | None = None

    @property
    def keys(self) -> int:
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        return self.value_heads * self.value_dim

    @property
    def conv_width(self) -> int:
        return 2 * self.keys + self.values

    @property
    def in_width(self) -> int:
        """Outputs of the projection of the layer's input: inputs of the recurrence, then the gate."""
        return self.conv_width + 2 * self.value_heads + self.values

    @property
    def out_width(self) -> int:
        return self.values

    @property
    def state_shape(self) -> Shape:
        return self.value_heads, self.key_dim, self.value_dim

    @property
    def log_width(self) -> int:
        return self.conv_width + 2 * self.value_heads

    @property
    def parts(self) -> dict[str, int]:
        """The widths of q, k and v."""
        return {"q": self.keys, "k": self.keys, "v": self.values}

    def tensors(self, hidden: int) -> dict[str, Shape]:
        heads = self.value_heads
        if self.split_qkv:
            widths = self.parts | {"a": heads, "b": heads, "g": self.values}
            found: dict[str, Shape] = {f"{name}_proj.weight": (size, hidden) for name, size in widths.items()}
            found |= {f"{name}_conv1d.weight": (size, 1, self.kernel) for name, size in self.parts.items()}
            found |= {"dt_bias": (heads,), "A_log": (heads,), "o_norm.weight": (self.value_dim,)}
            found["o_proj.weight"] = hidden, self.values
            return {f"linear_attn.{name}": shape for name, shape in found.items()}
        if self.grouped:
            inputs = {"in_proj_qkvz": self.conv_width + self.values, "in_proj_ba": 2 * heads}
        else:
            inputs = {"in_proj_qkv": self.conv_width, "in_proj_z": self.values}
            inputs |= (
                {"in_proj_ba": 2 * heads} if self.grouped_ba else {"in_proj_b": heads, "in_proj_a": heads}
            )
        return {
            **{f"linear_attn.{name}.weight": (size, hidden) for name, size in inputs.items()},
            "linear_attn.conv1d.weight": (self.conv_width, 1, self.kernel),
            "linear_attn.dt_bias": (heads,),
            f"linear_attn.{decay_name(self)}": (heads,),
            "linear_attn.norm.weight": (self.value_dim,),
            "linear_attn.out_proj.weight": (hidden, self.values),
        }


@dataclass(frozen=True)
class ConvSizes:
    """A short convolution (LFM2)."""

    kernel: int
    width: int
    bias: bool

    @property
    def conv_width(self) -> int:
        return self.width

    @property
    def in_width(self) -> int:
        return 3 * self.width

    @property
    def out_width(self) -> int:
        return self.width

    @property
    def state_shape(self) -> Shape:
        return 0, 0, 0

    @property
    def log_width(self) -> int:
        return self.width

    def tensors(self, hidden: int) -> dict[str, Shape]:
        weights: dict[str, Shape] = {
            "conv.conv.weight": (self.width, 1, self.kernel),
            "conv.in_proj.weight": (3 * self.width, hidden),
            "conv.out_proj.weight": (hidden, self.width),
        }
        biases = {name.replace("weight", "bias"): shape[:1] for name, shape in weights.items()}
        return weights | (biases if self.bias else {})


@dataclass(frozen=True)
class SpaceSizes:
    """A state space layer of Mamba 2. norm_groups: of the norm of its output; 0: it is not normed.

    name: of its tensors.
    """

    kernel: int
    heads: int
    head_dim: int
    groups: int
    state_size: int
    conv_bias: bool
    bias: bool
    norm_groups: int
    name: str = "mamba"
    gates_first: bool = True
    dt_min: float = 0.0
    dt_max: float | None = None
    has_decay: bool = False  # as in `DeltaSizes`

    @property
    def width(self) -> int:
        return self.heads * self.head_dim

    @property
    def conv_width(self) -> int:
        return self.width + 2 * self.groups * self.state_size

    @property
    def in_width(self) -> int:
        """Outputs of the projection of the layer's input: inputs of the recurrence, then the gate."""
        return self.conv_width + self.heads + self.width

    @property
    def out_width(self) -> int:
        return self.width

    @property
    def state_shape(self) -> Shape:
        return self.heads, self.state_size, self.head_dim

    @property
    def log_width(self) -> int:
        return self.conv_width + self.heads

    def tensors(self, hidden: int) -> dict[str, Shape]:
        found: dict[str, Shape] = {
            "in_proj.weight": (self.in_width, hidden),
            "conv1d.weight": (self.conv_width, 1, self.kernel),
            "dt_bias": (self.heads,),
            decay_name(self): (self.heads,),
            "D": (self.heads,),
            "out_proj.weight": (hidden, self.width),
        }
        if self.norm_groups:
            found["norm.weight"] = (self.width,)
        if self.conv_bias:
            found["conv1d.bias"] = (self.conv_width,)
        if self.bias:
            found |= {"in_proj.bias": (self.in_width,), "out_proj.bias": (hidden,)}
        return {f"{self.name}.{name}": shape for name, shape in found.items()}


def decay_name(sizes: DeltaSizes | SpaceSizes) -> str:
    """Return the name of the tensor of decays."""
    return "A" if sizes.has_decay else "A_log"


MixerSizes: TypeAlias = DeltaSizes | ConvSizes | SpaceSizes
