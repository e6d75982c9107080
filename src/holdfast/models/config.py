"""The configuration of a decoder: its sizes, biases, norms and positions, parsed from an untrusted
config.json.

`parse_config` refuses a model that Holdfast cannot run, and says why. Keys that name code to run
(`auto_map`) are ignored.
"""

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, is_dataclass, replace
from dataclasses import fields as dataclass_fields
from typing import Any, Literal, cast

from holdfast.errors import UnsupportedModel
from holdfast.models.families import FAMILIES, Family, FamilyName, text_fields
from holdfast.models.fields import Fields, read_bool, read_float, read_ids, read_int, read_str, refuse
from holdfast.models.mixers import LayerKind, MixerSizes, WeightScales
from holdfast.models.rope import MAX_CONTEXT, LongRope, RopeKind, RopeScaling, parse_rope

Activation = Literal["silu", "gelu_tanh", "clamped_swiglu", "relu2"]
# Where a layer has norms: before attention and MLP, before and after each, after each; or one before
# both, which run side by side.
Block = Literal["pre", "sandwich", "post", "parallel"]
# RMS norm with weights of the model's dtype, with fp32 weights, or layer norm with fp32 weights.
Norm = Literal["rms", "rms_fp32", "layer"]

_MAX_PARAMETERS = 10**13
_MAX_EXPERTS = 1 << 17  # of all layers
_DTYPES = ("float32", "float16", "bfloat16")
_ACTIVATIONS: Mapping[str, Activation] = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}


@dataclass(frozen=True)
class DecoderConfig:
    """One decoder. `layer_windows[i]` is the attention window of layer i, its own position
    included; None for all. The fields with defaults are those in which families differ from Llama."""

    family: FamilyName
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    max_position_embeddings: int
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    tie_word_embeddings: bool
    layer_windows: tuple[int | None, ...]
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    torch_dtype: str | None
    activation: Activation = "silu"
    block: Block = "pre"
    recurrent_block: Block | None = None  # of recurrent layers, where it is another one
    norm: Norm = "rms"
    norm_offset: float = 0.0  # added to the stored weights of all norms
    whole_qk_norm: bool = False  # the norms of q and k are over all heads of a token
    fused_projections: bool = False  # stored as one tensor: qkv_proj, gate_up_proj
    rotary_dim: int | None = None  # the first dims of a head, which are rotated; None: all
    interleaved_rope: bool = False  # rope rotates dims (0, 1), (2, 3), ...; else the halves of a head
    local_rope_theta: float | None = None  # of layers with rope "local", which is never scaled
    layer_ropes: tuple[RopeKind, ...] | None = None  # None: all "global"
    attention_scale: float | None = None  # None: 1 / sqrt(head_dim)
    attention_soft_cap: float | None = None
    logits_soft_cap: float | None = None
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logits_scale: float = 1.0
    num_experts: int = 0  # in each layer that has experts; 0: the model has none
    experts_per_token: int = 0
    expert_size: int = 0  # the intermediate size of an expert
    shared_expert_size: int = 0  # of the expert that sees all tokens; 0: there is none
    shared_expert_gate: bool = True  # its output is multiplied by a sigmoid
    normalizes_experts: bool = False  # the weights of a token's experts add up to 1
    dense_layers: tuple[int, ...] = ()  # layers of a mixture of experts that have one MLP
    router_bias: bool = False
    interleaved_experts: bool = False  # stored together: [experts, inputs, outputs], gate and up in turns
    attention_sinks: bool = False  # each query head has one more score, which has no value
    clip_qkv: float | None = None  # q, k and v are clamped to -clip_qkv .. clip_qkv
    swiglu_alpha: float = 1.0  # of the activation "clamped_swiglu"
    swiglu_limit: float = 0.0
    sigmoid_router: bool = False  # the weights of experts are sigmoids
    expert_bias: bool = False  # of their choice, not of their weights
    router_eps: float = 1e-6  # added to their sum before they are divided by it
    routed_scale: float = 1.0  # of these weights
    gated_attention: bool = False  # each dim of its output has a gate, stored with q
    layer_kinds: tuple[LayerKind, ...] | None = None  # None: all "attention"
    mixer: MixerSizes | None = None  # of recurrent layers
    weight_scales: WeightScales = ()  # what stored weights are multiplied by when they are loaded
    bare_layers: tuple[int, ...] = ()  # layers without a MLP
    splits_layers: bool = False  # what mixes tokens and the MLP of a layer are stored as two layers

    @property
    def rope_kinds(self) -> tuple[RopeKind, ...]:
        """The kinds of rope that layers use, by first use."""
        return tuple(dict.fromkeys(self.layer_ropes or ("global",)))

    @property
    def is_llama_like(self) -> bool:
        """Return whether a layer differs from Llama's by biases, norms of q and k, and windows at most."""
        return all(getattr(self, name) == default for name, default in FAMILY_DEFAULTS.items())

    @property
    def activation_size(self) -> int:
        """The intermediate size of an expert, or of the MLP of a model without experts."""
        return self.expert_size or self.intermediate_size

    @property
    def num_gates(self) -> int:
        """1: what the activation gets has a gate before each of its numbers, in a MLP and in an expert. Else 0."""
        return 0 if self.activation == "relu2" else 1

    @property
    def activation_inputs(self) -> int:
        return (1 + self.num_gates) * self.activation_size

    def has_experts(self, layer: int) -> bool:
        return self.num_experts > 0 and layer not in self.dense_layers and self.has_mlp(layer)

    def block_at(self, layer: int) -> Block:
        """Return where the layer has norms."""
        return self.recurrent_block or self.block if self.mixer_sizes(layer) is not None else self.block

    def has_mlp(self, layer: int) -> bool:
        """Return whether the layer has a MLP or experts."""
        return layer not in self.bare_layers

    def stored_layer(self, layer: int, *, is_mlp: bool) -> int:
        """Return the index under which a part of a layer is stored."""
        if not self.splits_layers:
            return layer
        return 2 * layer - sum(bare < layer for bare in self.bare_layers) + is_mlp

    def has_attention(self, layer: int) -> bool:
        return self.layer_kinds is None or self.layer_kinds[layer] != "recurrent"

    def mixer_sizes(self, layer: int) -> MixerSizes | None:
        """Return the sizes of the layer's recurrent part; None if it has none."""
        return self.mixer if self.layer_kinds and self.layer_kinds[layer] != "attention" else None

    @property
    def num_attention_layers(self) -> int:
        return sum(map(self.has_attention, range(self.num_layers)))

    @property
    def num_recurrent_layers(self) -> int:
        return sum(self.mixer_sizes(layer) is not None for layer in range(self.num_layers))

    def for_length(self, max_len: int) -> "DecoderConfig":
        """Return the configuration for contexts of up to max_len tokens. It decides once which of two sets
        of rope factors is used (longrope), whatever the length of a request."""
        scaling = self.rope_scaling
        if not isinstance(scaling, LongRope):
            return self
        chosen: Literal["short", "long"] = (
            "long" if max_len > scaling.original_max_position_embeddings else "short"
        )
        return replace(self, rope_scaling=replace(scaling, chosen=chosen))

    @property
    def num_parameters(self) -> int:
        """The number of weights, without norms and biases."""
        heads = self.num_heads * (3 if self.gated_attention else 2) + 2 * self.num_kv_heads
        attention = self.num_attention_layers * self.hidden_size * self.head_dim * heads
        if self.mixer is not None:
            width = self.mixer.in_width + self.mixer.out_width
            attention += self.num_recurrent_layers * self.hidden_size * width
        num_sparse = sum(map(self.has_experts, range(self.num_layers)))
        inner = (self.num_layers - num_sparse - len(self.bare_layers)) * self.intermediate_size
        inner += num_sparse * (self.num_experts * self.expert_size + self.shared_expert_size)
        heads = 1 if self.tie_word_embeddings else 2
        return (
            attention
            + (2 + self.num_gates) * self.hidden_size * inner
            + heads * self.vocab_size * self.hidden_size
        )


# Fields with defaults: a configuration that has them all is one of Llama's kind.
FAMILY_DEFAULTS: Mapping[str, object] = {
    one.name: one.default for one in dataclass_fields(DecoderConfig) if one.default is not MISSING
}


def plain_value(value: object) -> object:
    """Return a field as plain data: sizes of recurrent layers as an object with their kind."""
    if not is_dataclass(value) or isinstance(value, type):
        return value
    return {"kind": type(value).__name__, **asdict(value)}


def parse_config(fields: Fields, generation: Fields | None = None) -> DecoderConfig:
    """Return the decoder that config.json describes, with the stop ids of generation_config.json."""
    fields = text_fields(fields)
    family = _parse_family(fields)
    known = FAMILIES[family]
    given, fields = fields, known.rewrite({**known.defaults, **fields})
    _refuse_unsupported(fields, known)
    hidden_size = read_int(fields, "hidden_size", 1, 1 << 17)
    vocab_size = read_int(fields, "vocab_size", 1, 1 << 22)
    num_layers = read_int(fields, "num_hidden_layers", 1, 1 << 10)
    num_heads, num_kv_heads, head_dim = _parse_heads(fields, hidden_size)
    context = read_int(fields, "max_position_embeddings", 1, MAX_CONTEXT)
    allows_partial = "partial_rotary_factor" in known.defaults
    rope = parse_rope(fields, context, head_dim, known.rope_theta, allows_partial=allows_partial)
    shared: dict[str, object] = {
        "qkv_bias": False,
        "o_bias": False,
        "mlp_bias": False,
        "qk_norm": False,
        "layer_windows": (None,) * num_layers,
        "activation": _ACTIVATIONS[str(fields.get("hidden_act") or "silu")],
    }
    config = DecoderConfig(
        family=family,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=read_int(fields, "intermediate_size", 1, 1 << 20),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rms_norm_eps=read_float(fields, "rms_norm_eps", 0.0, 1.0, 1e-6),
        rope_theta=rope.theta,
        rope_scaling=rope.scaling,
        rotary_dim=rope.rotary_dim,
        max_position_embeddings=context,
        tie_word_embeddings=read_bool(fields, "tie_word_embeddings", False),
        eos_token_ids=_parse_eos(given, generation or {}, known, vocab_size),
        bos_token_id=_parse_bos(given, known, vocab_size),
        torch_dtype=_parse_dtype(fields),
        **cast(dict[str, Any], shared | known.traits(fields, num_layers)),
    )
    if config.num_layers * config.num_experts > _MAX_EXPERTS:
        what = f"experts in {config.num_layers} layers that are at most {_MAX_EXPERTS} together"
        raise refuse("num_experts", config.num_experts, what)
    if config.num_parameters > _MAX_PARAMETERS:
        raise UnsupportedModel(
            f"the configuration describes {config.num_parameters:.2g} parameters; at most {_MAX_PARAMETERS:.0e} are supported"
        )
    return config


def _parse_family(fields: Fields) -> FamilyName:
    model_type = read_str(fields, "model_type")
    architectures = fields.get("architectures") or []
    if not isinstance(architectures, list) or not all(isinstance(each, str) for each in architectures):
        raise refuse("architectures", architectures, "a list of names")
    by_architecture = {known.architecture: name for name, known in FAMILIES.items()}
    supported = f"Holdfast runs {', '.join(by_architecture)}"
    if model_type is None:
        model_type = next((by_architecture[each] for each in architectures if each in by_architecture), None)
    if model_type not in FAMILIES:
        named = model_type or ", ".join(architectures) or "not given"
        kind = ", a mixture of experts" if "moe" in named.lower() or "mixtral" in named.lower() else ""
        raise UnsupportedModel(f"the model's architecture is {named}{kind}; {supported}")
    family = cast(FamilyName, model_type)
    if architectures and FAMILIES[family].architecture not in architectures:
        raise UnsupportedModel(f"the model's architecture is {', '.join(architectures)}; {supported}")
    return family


def _refuse_unsupported(fields: Fields, known: Family) -> None:
    quantization = fields.get("quantization_config")
    method = quantization.get("quant_method") if isinstance(quantization, Mapping) else None
    if quantization is not None and (method is None or method != known.quant_method):
        own = f", {known.quant_method} as its publisher stores it" if known.quant_method else ""
        raise UnsupportedModel(
            f"the weights are quantised ({method or 'quantization_config'}); Holdfast reads safetensors in float32, "
            f"float16 or bfloat16{own} and GGUF: use the unquantised model or a GGUF of it"
        )
    has_experts = "num_experts_per_tok" in known.defaults
    for key in ("num_local_experts", "num_experts", "n_routed_experts"):
        if fields.get(key) not in (None, 0) and not has_experts:
            raise UnsupportedModel(
                f"the model is a mixture of experts ({key}), which its architecture does not have; check model_type"
            )
    activation = fields.get("hidden_act", "silu")
    if not isinstance(activation, str) or activation not in _ACTIVATIONS:
        raise refuse("hidden_act", activation, " or ".join(map(repr, _ACTIVATIONS)))


def _parse_heads(fields: Fields, hidden_size: int) -> tuple[int, int, int]:
    num_heads = read_int(fields, "num_attention_heads", 1, 1 << 12)
    num_kv_heads = num_heads
    if fields.get("num_key_value_heads") is not None:
        num_kv_heads = read_int(fields, "num_key_value_heads", 1, 1 << 12)
    if num_heads % num_kv_heads:
        raise refuse("num_key_value_heads", num_kv_heads, f"a divisor of num_attention_heads, {num_heads}")
    if fields.get("head_dim") is not None:
        head_dim = read_int(fields, "head_dim", 2, 1 << 10)
    elif hidden_size % num_heads:
        raise refuse("hidden_size", hidden_size, f"a multiple of num_attention_heads, {num_heads}")
    else:
        head_dim = read_int({"head_dim": hidden_size // num_heads}, "head_dim", 2, 1 << 10)
    if head_dim % 2:
        raise refuse("head_dim", head_dim, "an even number: rotary positions rotate pairs")
    return num_heads, num_kv_heads, head_dim


def _parse_eos(fields: Fields, generation: Fields, known: Family, vocab_size: int) -> tuple[int, ...]:
    """Return the ids of both files, config.json's first, or the family's default if neither has any."""
    key = "eos_token_id"
    ids = read_ids(fields, key, vocab_size) + read_ids(generation, key, vocab_size)
    if not ids and key not in fields:
        ids = _default_id(known, key, vocab_size)
    return tuple(dict.fromkeys(ids))


def _parse_bos(fields: Fields, known: Family, vocab_size: int) -> int | None:
    key = "bos_token_id"
    if key not in fields:
        return next(iter(_default_id(known, key, vocab_size)), None)
    return None if fields[key] is None else read_int(fields, key, 0, vocab_size - 1)


def _default_id(known: Family, key: str, vocab_size: int) -> tuple[int, ...]:
    """Return the family's id, if the vocabulary has it."""
    value = known.defaults.get(key)
    return (value,) if isinstance(value, int) and value < vocab_size else ()


def _parse_dtype(fields: Fields) -> str | None:
    key = "dtype" if fields.get("dtype") is not None else "torch_dtype"
    value = read_str(fields, key)
    if value is None or value == "auto":
        return None
    name = value.removeprefix("torch.")
    if name not in _DTYPES:
        raise refuse(key, value, f"one of {', '.join(_DTYPES)}")
    return name
