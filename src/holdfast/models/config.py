"""The configuration of a decoder: its sizes, biases, norms and positions, parsed from an untrusted
config.json.

`parse_config` refuses a model that Holdfast cannot run, and says why. Keys that name code to run
(`auto_map`) are ignored.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

from holdfast.errors import UnsupportedModel
from holdfast.models.fields import Fields, read_bool, read_float, read_ids, read_int, read_str, refuse
from holdfast.models.rope import MAX_CONTEXT, RopeScaling, parse_rope

FamilyName = Literal["llama", "mistral", "qwen2", "qwen3"]

_MAX_PARAMETERS = 10**13
_DTYPES = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class DecoderConfig:
    """One decoder. `layer_windows[i]` is the attention window of layer i, its own position
    included; None for all."""

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

    @property
    def num_parameters(self) -> int:
        """The number of weights, without norms and biases."""
        attention = 2 * self.hidden_size * self.head_dim * (self.num_heads + self.num_kv_heads)
        layer = attention + 3 * self.hidden_size * self.intermediate_size
        heads = 1 if self.tie_word_embeddings else 2
        return self.num_layers * layer + heads * self.vocab_size * self.hidden_size


@dataclass(frozen=True)
class Family:
    """A family's architecture, and its defaults for fields that a configuration leaves out."""

    architecture: str
    num_kv_heads: int | None
    head_dim: int | None
    max_position_embeddings: int
    bos_token_id: int | None
    eos_token_id: int | None


FAMILIES: Mapping[FamilyName, Family] = {
    "llama": Family("LlamaForCausalLM", None, None, 2048, 1, 2),
    "mistral": Family("MistralForCausalLM", 8, None, 131072, 1, 2),
    "qwen2": Family("Qwen2ForCausalLM", 32, None, 32768, None, None),
    "qwen3": Family("Qwen3ForCausalLM", 32, 128, 32768, None, None),
}


def parse_config(fields: Fields, generation: Fields | None = None) -> DecoderConfig:
    """The decoder that config.json describes, with the stop ids of generation_config.json."""
    family = _parse_family(fields)
    _refuse_unsupported(fields)
    known = FAMILIES[family]
    hidden_size = read_int(fields, "hidden_size", 1, 1 << 17)
    vocab_size = read_int(fields, "vocab_size", 1, 1 << 22)
    num_layers = read_int(fields, "num_hidden_layers", 1, 1 << 10)
    num_heads, num_kv_heads, head_dim = _parse_heads(fields, known, hidden_size)
    context = read_int(fields, "max_position_embeddings", 1, MAX_CONTEXT, known.max_position_embeddings)
    rope_theta, rope_scaling = parse_rope(fields, context)
    has_attention_bias = read_bool(fields, "attention_bias", False)
    if has_attention_bias and family == "mistral":
        raise refuse("attention_bias", True, "false: Mistral's attention has no biases")
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
        rope_theta=rope_theta,
        rope_scaling=rope_scaling,
        max_position_embeddings=context,
        qkv_bias=family == "qwen2" or has_attention_bias,
        o_bias=family in ("llama", "qwen3") and has_attention_bias,
        mlp_bias=family == "llama" and read_bool(fields, "mlp_bias", False),
        qk_norm=family == "qwen3",
        tie_word_embeddings=read_bool(fields, "tie_word_embeddings", False),
        layer_windows=_parse_windows(fields, family, num_layers),
        eos_token_ids=_parse_eos(fields, generation or {}, known, vocab_size),
        bos_token_id=_parse_bos(fields, known, vocab_size),
        torch_dtype=_parse_dtype(fields),
    )
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


def _refuse_unsupported(fields: Fields) -> None:
    quantization = fields.get("quantization_config")
    if quantization is not None:
        method = quantization.get("quant_method") if isinstance(quantization, Mapping) else None
        raise UnsupportedModel(
            f"the weights are quantised ({method or 'quantization_config'}); Holdfast reads safetensors in float32, "
            "float16 or bfloat16 and GGUF: use the unquantised model or a GGUF of it"
        )
    for key in ("num_local_experts", "num_experts", "n_routed_experts"):
        if fields.get(key) not in (None, 0):
            raise UnsupportedModel(
                f"the model is a mixture of experts ({key}); Holdfast runs dense decoders only"
            )
    activation = fields.get("hidden_act", "silu")
    if activation != "silu":
        raise refuse("hidden_act", activation, "'silu'")


def _parse_heads(fields: Fields, known: Family, hidden_size: int) -> tuple[int, int, int]:
    num_heads = read_int(fields, "num_attention_heads", 1, 1 << 12)
    num_kv_heads = num_heads
    if fields.get("num_key_value_heads", known.num_kv_heads) is not None:
        num_kv_heads = read_int(fields, "num_key_value_heads", 1, 1 << 12, known.num_kv_heads)
    if num_heads % num_kv_heads:
        raise refuse("num_key_value_heads", num_kv_heads, f"a divisor of num_attention_heads, {num_heads}")
    if fields.get("head_dim", known.head_dim) is not None:
        head_dim = read_int(fields, "head_dim", 2, 1 << 10, known.head_dim)
    elif hidden_size % num_heads:
        raise refuse("hidden_size", hidden_size, f"a multiple of num_attention_heads, {num_heads}")
    else:
        head_dim = read_int({"head_dim": hidden_size // num_heads}, "head_dim", 2, 1 << 10)
    if head_dim % 2:
        raise refuse("head_dim", head_dim, "an even number: rotary positions rotate pairs")
    return num_heads, num_kv_heads, head_dim


def _parse_windows(fields: Fields, family: FamilyName, num_layers: int) -> tuple[int | None, ...]:
    if family == "llama":
        return (None,) * num_layers
    is_used = family == "mistral" or read_bool(fields, "use_sliding_window", False)
    window = None
    if is_used and fields.get("sliding_window", 4096) is not None:
        window = read_int(fields, "sliding_window", 1, MAX_CONTEXT, 4096)
    first = 0 if family == "mistral" else read_int(fields, "max_window_layers", 0, 1 << 20, 28)
    windows = tuple(window if i >= first else None for i in range(num_layers))
    types = fields.get("layer_types")
    if types is None:
        return windows
    if not isinstance(types, list) or len(types) != num_layers:
        raise refuse("layer_types", types, f"a list of {num_layers} names")
    for each in types:
        if each not in ("full_attention", "sliding_attention") or (
            each != "full_attention" and window is None
        ):
            raise refuse("layer_types", each, "full_attention, or sliding_attention with a sliding_window")
    by_type = tuple(window if each == "sliding_attention" else None for each in types)
    if family == "mistral" and by_type != windows:
        raise refuse("layer_types", types, "the same attention in every layer of a Mistral model")
    return by_type


def _parse_eos(fields: Fields, generation: Fields, known: Family, vocab_size: int) -> tuple[int, ...]:
    """The ids of both files, config.json's first; the family's default if neither has any."""
    key = "eos_token_id"
    ids = read_ids(fields, key, vocab_size) + read_ids(generation, key, vocab_size)
    if not ids and key not in fields and known.eos_token_id is not None and known.eos_token_id < vocab_size:
        ids = (known.eos_token_id,)
    return tuple(dict.fromkeys(ids))


def _parse_bos(fields: Fields, known: Family, vocab_size: int) -> int | None:
    value = fields.get("bos_token_id", known.bos_token_id)
    if value is None or (
        "bos_token_id" not in fields and known.bos_token_id is not None and known.bos_token_id >= vocab_size
    ):
        return None
    return read_int({"bos_token_id": value}, "bos_token_id", 0, vocab_size - 1)


def _parse_dtype(fields: Fields) -> str | None:
    key = "dtype" if fields.get("dtype") is not None else "torch_dtype"
    value = read_str(fields, key)
    if value is None or value == "auto":
        return None
    name = value.removeprefix("torch.")
    if name not in _DTYPES:
        raise refuse(key, value, f"one of {', '.join(_DTYPES)}")
    return name
