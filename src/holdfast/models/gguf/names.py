"""GGUF's names for tensors and metadata, translated to Hugging Face's.

`names.json` has the names. Metadata becomes the fields of a config.json and goes through `parse_config`,
so the same rules hold for a GGUF file.
"""

import json
import re
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from holdfast.errors import BadWeights, UnsupportedModel
from holdfast.models.config import DecoderConfig, parse_config
from holdfast.models.fields import Fields, read_float, read_int, refuse
from holdfast.models.gguf.reader import GgufFile
from holdfast.models.mixers import DeltaSizes, MixerSizes, SpaceSizes
from holdfast.models.rope import FactorsRope

# Names of architectures, modules and fields in GGUF, by ours; of architectures the other way round.
_NAMES: dict[str, dict[str, str]] = json.loads(
    Path(__file__).with_suffix(".json").read_text(encoding="utf-8")
)
_MODULES = _NAMES["modules"]
_NORMALIZED = {"llama": True, "qwen2moe": False, "qwen3moe": True, "olmoe": False, "gpt-oss": True}
_NORMALIZED |= {"qwen35moe": True, "qwen3next": True, "lfm2moe": True, "nemotron_h_moe": True}
_SIGMOID = ("lfm2moe", "nemotron_h_moe")
_DELTA = ("qwen35", "qwen35moe", "qwen3next")
_SPACE = ("granitehybrid", "falcon-h1", "nemotron_h", "nemotron_h_moe")
_WINDOWED = ("llama", "gemma2", "gemma3", "cohere2", "phi3", "gpt-oss")
# The rows of q and k are stored in pairs: the converter turned the halves of a head into pairs.
PERMUTED = frozenset({"llama", "granite", "smollm3", "granitehybrid"})
_EXPERT = re.compile(r"model\.layers\.(\d+)\.mlp\.experts\.(\d+)\.(gate|up|down)_proj\.(weight|bias)")
_LARGEST_GEMMA = {"gemma2": 46, "gemma3": 62}  # layers of the models whose scale is not the head's


@dataclass(frozen=True)
class StoredName:
    """Where a tensor is in the file. expert: its index in a tensor of all experts; part: the one of
    num_parts equal parts of that expert's rows."""

    name: str
    expert: int | None = None
    part: int = 0
    num_parts: int = 1


def find_tensor(name: str, config: DecoderConfig, stored: Container[str]) -> StoredName:
    """Return where the tensor with this Hugging Face name is, or should be if it is missing."""
    name = _part_name(name, config)
    match = _EXPERT.fullmatch(name)
    if match is None:
        found = gguf_name(name, config)
        bare = found.removesuffix(".weight")  # a norm of Falcon-H1
        return StoredName(bare if found not in stored and bare in stored else found)
    layer, number, kind, suffix = match[1], int(match[2]), match[3], match[4]
    together = f"blk.{layer}.ffn_{kind}_exps.{suffix}"
    both = f"blk.{layer}.ffn_gate_up_exps.{suffix}"
    alone = [f"blk.{layer}.ffn_{kind}.{each}.{suffix}" for each in (number, 0, 1)]
    if together not in stored and any(each in stored for each in alone):  # files of early converters
        return StoredName(alone[0])
    if together not in stored and both in stored and kind != "down":
        return StoredName(both, number, part=int(kind == "up"), num_parts=2)
    return StoredName(together, number)


def _part_name(name: str, config: DecoderConfig) -> str:
    """Return the name of a tensor in a layer of the file, each of which is a part of a layer with a norm before it."""
    parts = name.split(".", 3)
    if not config.splits_layers or len(parts) < 4 or parts[1] != "layers":
        return name
    norm = parts[3].startswith("post_attention_layernorm")
    layer = config.stored_layer(int(parts[2]), is_mlp=norm or parts[3].startswith("mlp."))
    return f"model.layers.{layer}.{'input_layernorm.weight' if norm else parts[3]}"


def gguf_name(name: str, config: DecoderConfig) -> str:
    """Return the GGUF name of the tensor with this Hugging Face name, which belongs to no expert."""
    modules = _MODULES if config.block in ("pre", "parallel") else _MODULES | _NAMES["modules_after_parts"]
    if config.family == "gpt_oss":
        modules = _MODULES | {"post_attention_layernorm": "post_attention_norm"}
    if config.family in ("lfm2", "lfm2_moe"):
        modules = _MODULES | _NAMES["modules_lfm2"]
    if isinstance(config.mixer, DeltaSizes):
        modules = _MODULES | _NAMES["modules_delta"]
    if isinstance(config.mixer, SpaceSizes):
        modules = _MODULES | _NAMES["modules_space"]
    module, _, kind = name.rpartition(".")
    vectors = _NAMES["vectors"]
    if kind in vectors:
        return f"blk.{name.split('.')[2]}.{vectors[kind]}"
    if kind not in ("weight", "bias"):  # sinks
        module, kind = name, "weight"
    if module in modules:
        return f"{modules[module]}.{kind}"
    _, _, layer, module = module.split(".", 3)
    return f"blk.{layer}.{modules[module]}.{kind}"


def architecture(file: GgufFile) -> str:
    """Return the file's architecture, if Holdfast runs it."""
    name = file.metadata.get("general.architecture")
    known = _NAMES["families"]
    if name not in known:
        raise UnsupportedModel(
            f"{file.path.name} has the architecture {name!r}; Holdfast runs {', '.join(known)} GGUF files "
            "(Mistral files are llama files)"
        )
    return str(name)


def gguf_config(file: GgufFile) -> DecoderConfig:
    """Return the configuration of the decoder in a GGUF file."""
    config = parse_config(gguf_fields(file))
    _require_whole_heads(_own_fields(file, architecture(file)), config)
    return replace(_with_tensors(file, config), norm_offset=0.0)  # the converter has added it


def gguf_fields(file: GgufFile) -> dict[str, object]:
    """Return what the metadata of a GGUF file say in the fields of config.json."""
    arch = architecture(file)
    own = _own_fields(file, arch)
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise BadWeights(f"{file.path.name} has no token_embd.weight; it is not a complete language model")
    fields: dict[str, object] = {key: own[theirs] for key, theirs in _NAMES["keys"].items() if theirs in own}
    fields.setdefault("vocab_size", embedding.shape[0])
    fields.setdefault("num_key_value_heads", None)
    fields.setdefault("head_dim", None)
    fields |= _family_fields(arch, own) | _token_fields(file.metadata)
    fields["tie_word_embeddings"] = "output.weight" not in file.tensors
    fields["rope_scaling"] = _rope_fields(arch, own)
    if arch == "phi3":
        fields |= _phi3_fields(file, own, fields)
    return fields


def _own_fields(file: GgufFile, arch: str) -> dict[str, object]:
    prefix = f"{arch}."
    return {key.removeprefix(prefix): value for key, value in file.metadata.items() if key.startswith(prefix)}


def _family_fields(arch: str, own: Fields) -> dict[str, object]:
    window, is_llama = own.get("attention.sliding_window"), arch == "llama"
    fields: dict[str, object] = {"model_type": _NAMES["families"][arch]}
    if is_llama and own.get("expert_count"):
        fields["model_type"] = "mixtral"
    elif is_llama and window:
        fields["model_type"] = "mistral"
    if arch.startswith("nemotron_h"):
        fields |= _nemotron_fields(own)
        own = {**own, "feed_forward_length": fields["intermediate_size"]}
    if arch in _NORMALIZED and fields["model_type"] not in ("llama", "mistral"):
        fields |= _expert_fields(arch, own)
    if arch in _WINDOWED and window:
        fields |= {"sliding_window": window} | _layer_types(own)
    if arch in ("lfm2", "lfm2moe"):
        fields |= _lfm2_fields(own)
    if arch in _DELTA:
        fields |= _delta_fields(own)
    if arch in _SPACE:
        fields |= _space_fields(arch, own)
    if arch in _LARGEST_GEMMA:
        fields["query_pre_attn_scalar"] = _gemma_scalar(arch, own)
    if own.get("attention.clamp_kqv"):
        if arch != "olmoe":
            raise refuse("attention.clamp_kqv", own["attention.clamp_kqv"], f"nothing in a {arch} file")
        fields["clip_qkv"] = own["attention.clamp_kqv"]
    return fields


def _lfm2_fields(own: Fields) -> dict[str, object]:
    """Layers without KV heads have a convolution."""
    kv_heads = _by_layer(own, "attention.head_count_kv")
    return {
        "num_dense_layers": own.get("leading_dense_block_count", 0),
        "norm_eps": own.get("attention.layer_norm_rms_epsilon"),
        "num_key_value_heads": max(kv_heads, default=0),
        "layer_types": ["full_attention" if each else "conv" for each in kv_heads],
        "conv_L_cache": own.get("shortconv.l_cache"),
        "block_auto_adjust_ff_dim": False,  # the file has the size as it is
    }


def _by_layer(own: Fields, key: str) -> list[int]:
    """Return a number for each layer."""
    numbers = own.get(key)
    if not isinstance(numbers, list) or not all(type(each) is int for each in numbers):
        raise refuse(key, numbers, "a list, one number for each layer")
    return numbers


def _nemotron_fields(own: Fields) -> dict[str, object]:
    """Layers of the file have KV heads, or the size of a MLP, or neither."""
    num_layers = read_int(own, "block_count", 1, 1 << 10) - read_int(own, "nextn_predict_layers", 0, 16, 0)
    kv_heads = _by_layer(own, "attention.head_count_kv")[:num_layers]
    inner = _by_layer(own, "feed_forward_length")[:num_layers]
    mlp = "E" if own.get("expert_count") else "-"
    pattern = [mlp if size else "*" if heads else "M" for heads, size in zip(kv_heads, inner, strict=True)]
    return {
        "hybrid_override_pattern": "".join(pattern),
        "num_key_value_heads": max(kv_heads, default=0),
        "intermediate_size": max(inner, default=0) or 1,
        "layer_norm_epsilon": own.get("attention.layer_norm_rms_epsilon"),
        "n_routed_experts": own.get("expert_count"),
        "moe_shared_expert_intermediate_size": own.get("expert_shared_feed_forward_length"),
        "moe_latent_size": own.get("moe_latent_size"),
        "n_group": own.get("expert_group_count", 1),
        "topk_group": own.get("expert_group_used_count", 1),
    }


def _delta_fields(own: Fields) -> dict[str, object]:
    """Layers that only predict further tokens come last in the file, and are not read."""
    num_layers = read_int(own, "block_count", 1, 1 << 10) - read_int(own, "nextn_predict_layers", 0, 16, 0)
    value_heads = read_int(own, "ssm.time_step_rank", 1, 1 << 12)
    inner = read_int(own, "ssm.inner_size", 1, 1 << 20)
    head_dim = read_int(own, "attention.key_length", 1, 1 << 12, 256)
    rotary_dim = read_int(own, "rope.dimension_count", 1, head_dim, head_dim // 4)
    return {
        "num_hidden_layers": num_layers,
        "full_attention_interval": own.get("full_attention_interval", 4),
        "linear_conv_kernel_dim": own.get("ssm.conv_kernel"),
        "linear_key_head_dim": own.get("ssm.state_size"),
        "linear_value_head_dim": inner // value_heads,
        "linear_num_key_heads": own.get("ssm.group_count"),
        "linear_num_value_heads": value_heads,
        "partial_rotary_factor": rotary_dim / head_dim,
    }


def _space_fields(arch: str, own: Fields) -> dict[str, object]:
    """Layers of Granite without KV heads have a state. The file has Falcon's multipliers in its weights."""
    inner, heads = (
        read_int(own, "ssm.inner_size", 1, 1 << 20),
        read_int(own, "ssm.time_step_rank", 1, 1 << 12),
    )
    fields: dict[str, object] = {
        "mamba_d_ssm": inner,
        "mamba_n_heads": heads,
        "mamba_d_head": inner // heads,
        "mamba_n_groups": own.get("ssm.group_count"),
        "mamba_d_state": own.get("ssm.state_size"),
        "mamba_d_conv": own.get("ssm.conv_kernel"),
    }
    if arch != "granitehybrid":
        return fields
    kv_heads = _by_layer(own, "attention.head_count_kv")
    return fields | {
        "num_key_value_heads": max(kv_heads, default=0),
        "layer_types": ["attention" if each else "mamba" for each in kv_heads],
        "position_embedding_type": "rope" if own.get("rope.scaling.finetuned") else None,
        "num_local_experts": own.get("expert_count") or 0,
        "shared_intermediate_size": own.get("expert_shared_feed_forward_length")
        or own.get("feed_forward_length"),
    }


def _layer_types(own: Fields) -> dict[str, object]:
    """Return which layers have the window, if the file says it: a list, or every n-th layer has none."""
    pattern = own.get("attention.sliding_window_pattern")
    if pattern is None:
        return {}
    if not isinstance(pattern, list):
        period = read_int(own, "attention.sliding_window_pattern", 0, 1 << 10)
        num_layers = read_int(own, "block_count", 1, 1 << 10)
        pattern = [period == 0 or layer % period < period - 1 for layer in range(num_layers)]
    return {"layer_types": ["sliding_attention" if each else "full_attention" for each in pattern]}


def _expert_fields(arch: str, own: Fields) -> dict[str, object]:
    """Of a mixture of experts. Absent sizes follow from the others, as in llama.cpp."""
    read_int(own, "expert_count", 1, 1 << 12)
    num_used = read_int(own, "expert_used_count", 1, 1 << 12)
    size = read_int(own, "feed_forward_length", 1, 1 << 20)
    fields: dict[str, object] = {"norm_topk_prob": own.get("expert_weights_norm", _NORMALIZED[arch])}
    if arch in _SIGMOID:
        if own.get("expert_gating_func") not in (None, 2):
            raise refuse("expert_gating_func", own["expert_gating_func"], "a sigmoid, or nothing")
        fields["routed_scaling_factor"] = own.get("expert_weights_scale") or 1.0
        fields["moe_intermediate_size"] = own.get("expert_feed_forward_length") or size // num_used
        return fields
    for key, plain in (("expert_gating_func", (0, 1, 3)), ("expert_weights_scale", (0.0, 1.0))):
        if own.get(key) not in (None, *plain):
            raise refuse(key, own[key], "a softmax, or nothing" if "func" in key else "1 or nothing")
    if arch in ("qwen2moe", "qwen3moe", "qwen35moe", "qwen3next"):
        fields["moe_intermediate_size"] = own.get("expert_feed_forward_length") or size // num_used
        fields["shared_expert_intermediate_size"] = own.get("expert_shared_feed_forward_length") or size
    else:
        fields["intermediate_size"] = own.get("expert_feed_forward_length") or size
    return fields


def _gemma_scalar(arch: str, own: Fields) -> int:
    """Return what the scores are divided by, squared. The file does not say it: it is the head's size, in
    the largest models the hidden size by the number of heads."""
    if own.get("block_count") != _LARGEST_GEMMA[arch]:
        return read_int(own, "attention.key_length", 2, 1 << 10, 256)
    heads = read_int(own, "attention.head_count", 1, 1 << 12)
    return read_int(own, "embedding_length", 1, 1 << 17) // heads


def _phi3_fields(file: GgufFile, own: Fields, fields: Fields) -> dict[str, object]:
    """Partial rotary positions and longrope, whose factors are tensors."""
    found: dict[str, object] = {}
    heads = read_int(fields, "num_attention_heads", 1, 1 << 12)
    head_dim = read_int(fields, "hidden_size", 1, 1 << 17) // heads
    rotary_dim = read_int(own, "rope.dimension_count", 2, 1 << 10, max(head_dim, 2))
    found["partial_rotary_factor"] = rotary_dim / head_dim if head_dim else 1.0
    if "rope_factors_long.weight" not in file.tensors:
        return found
    original = own.get("rope.scaling.original_context_length")
    return found | {
        "original_max_position_embeddings": original,
        "rope_scaling": {
            "rope_type": "longrope",
            "short_factor": _read_factors(file, "rope_factors_short.weight", rotary_dim // 2),
            "long_factor": _read_factors(file, "rope_factors_long.weight", rotary_dim // 2),
            "attention_factor": own.get("rope.scaling.attn_factor"),
        },
    }


def _read_factors(file: GgufFile, name: str, count: int) -> list[float]:
    """Return one divisor for each rotary frequency."""
    tensor = file.tensors.get(name)
    if tensor is None or tensor.shape != (count,) or tensor.stored.name != "F32":
        found = "missing" if tensor is None else f"{tensor.stored.name} {tensor.shape}"
        raise BadWeights(f"{name} is {found}; expected F32, one a frequency")
    factors: list[float] = np.frombuffer(file.raw(name), dtype="<f4").tolist()
    for each in factors:
        read_float({name: each}, name, 0.0, 1e6)
    return factors


def _token_fields(metadata: Mapping[str, object]) -> dict[str, object]:
    """Return the fields of tokens. An answer ends at the end of the text, of the turn, or of the message."""
    ids = [metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot", "eom")]
    return {
        "eos_token_id": [each for each in ids if each is not None],
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
    }


def _rope_fields(arch: str, own: Fields) -> dict[str, object] | None:
    kind = own.get("rope.scaling.type")
    if kind is None and own.get("rope.scale_linear") not in (None, 1.0):
        return {"rope_type": "linear", "factor": own["rope.scale_linear"]}
    if kind in (None, "none"):
        return None
    rope: dict[str, object] = {"rope_type": kind, "factor": own.get("rope.scaling.factor")}
    if kind == "yarn":
        rope["truncate"] = arch != "gpt-oss"  # the file does not say it
        rope["original_max_position_embeddings"] = own.get("rope.scaling.original_context_length")
        for side in ("beta_fast", "beta_slow"):
            rope[side] = own.get(f"rope.scaling.yarn_{side}")
        for key, plain in (("yarn_ext_factor", 1.0), ("attn_factor", 1.0), ("yarn_attn_factor", 1.0)):
            if own.get(f"rope.scaling.{key}") not in (None, plain):
                raise refuse(f"rope.scaling.{key}", own[f"rope.scaling.{key}"], f"{plain:g} or nothing")
        if own.get("rope.scaling.yarn_log_multiplier") not in (None, 0.0):
            raise refuse("rope.scaling.yarn_log_multiplier", "a number", "nothing")
    return rope


def _mixer(file: GgufFile, config: DecoderConfig) -> MixerSizes | None:
    """Return the sizes of recurrent layers as the file stores them."""
    sizes, has = config.mixer, file.tensors.__contains__
    layers = (layer for layer in range(config.num_layers) if config.mixer_sizes(layer) is not None)
    first = config.stored_layer(next(layers, 0), is_mlp=False)
    if isinstance(sizes, DeltaSizes):
        joint = has(f"blk.{first}.ssm_ba.weight")
        return replace(sizes, grouped=False, grouped_ba=joint, in_turns=not joint, has_decay=True)
    if isinstance(sizes, SpaceSizes):
        groups = sizes.groups if has(f"blk.{first}.ssm_norm.weight") else 0
        has_bias = has(f"blk.{first}.ssm_conv1d.bias")
        return replace(sizes, norm_groups=groups, gates_first=True, conv_bias=has_bias, has_decay=True)
    return sizes


def _require_whole_heads(own: Fields, config: DecoderConfig) -> None:
    sizes = {
        "rope.dimension_count": config.rotary_dim or config.head_dim,
        "attention.value_length": config.head_dim,
    }
    for key, size in sizes.items():
        if own.get(key) not in (None, size):
            raise refuse(key, own[key], f"the head's size, {size}")


def _with_tensors(file: GgufFile, config: DecoderConfig) -> DecoderConfig:
    """Apply what GGUF expresses by tensors: biases, and one divisor for each rotary frequency."""
    has = file.tensors.__contains__
    kinds = {name.split(".", 2)[-1] for name in file.tensors if name.startswith("blk.")}
    config = replace(
        config,
        qkv_bias=config.qkv_bias or not kinds.isdisjoint(("attn_q.bias", "attn_qkv.bias")),
        o_bias=config.o_bias or "attn_output.bias" in kinds,
        mlp_bias=config.mlp_bias or "ffn_down.bias" in kinds,
        interleaved_experts=False,
        mixer=_mixer(file, config),
    )
    if not has("rope_freqs.weight"):
        return config
    if config.rope_scaling is not None:
        raise UnsupportedModel(f"{file.path.name} scales its rotary positions twice")
    factors = _read_factors(file, "rope_freqs.weight", config.head_dim // 2)
    return replace(config, rope_scaling=FactorsRope(tuple(factors)))
