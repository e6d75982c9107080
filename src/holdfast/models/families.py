"""The families of decoders: what each adds to the fields that all share.

A family is its architecture's name, the defaults of fields that a configuration leaves out (both are in
`families.json`), and a function from the configuration to the fields of `DecoderConfig` in which it differs
from Llama.
docs/adding-a-family.md says how to add one.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

from holdfast.models.fields import Fields, read_bool, read_float, read_int, refuse
from holdfast.models.mixers import ConvSizes, DeltaSizes, LayerKind, SpaceSizes, WeightScales
from holdfast.models.rope import MAX_CONTEXT

FamilyName = Literal[
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "granite",
    "smollm3",
    "phi3",
    "olmo2",
    "gemma2",
    "gemma3_text",
    "cohere2",
    "mixtral",
    "qwen2_moe",
    "qwen3_moe",
    "olmoe",
    "gpt_oss",
    "lfm2",
    "lfm2_moe",
    "qwen3_next",
    "qwen3_5_text",
    "qwen3_5_moe_text",
    "granitemoehybrid",
    "falcon_h1",
    "nemotron_h",
    "olmo_hybrid",
]
Traits = dict[str, Any]  # fields of DecoderConfig
Windows = tuple[int | None, ...]

_MAX_SCALE = 1e6
_MAX_KERNEL = 16  # of a convolution
_INFINITE = ({"__float__": "Infinity"}, "Infinity")  # as JSON spells it
_SLIDING, _FULL = "sliding_attention", "full_attention"


def _unchanged(fields: Fields) -> Fields:
    return fields


@dataclass(frozen=True)
class Family:
    """One family. traits(fields, number of layers) gives what differs from Llama; rewrite brings
    other spellings of a configuration into one form. rope_theta: the default, wherever a
    configuration has it. quant_method: the quantised form of its safetensors that is read."""

    architecture: str
    defaults: Mapping[str, object]
    traits: Callable[[Fields, int], Traits]
    rewrite: Callable[[Fields], Fields] = _unchanged
    rope_theta: float = 10000.0
    quant_method: str | None = None


def _llama(fields: Fields, num_layers: int) -> Traits:
    return _biases(fields, "qkv", "o") | {"mlp_bias": read_bool(fields, "mlp_bias", False)}


def _mistral(fields: Fields, num_layers: int) -> Traits:
    if read_bool(fields, "attention_bias", False):
        raise refuse("attention_bias", True, "false: Mistral's attention has no biases")
    window = _optional_window(fields)
    windows = _windows(fields, num_layers, window, lambda layer: True)
    if set(windows) != {window}:
        types = fields.get("layer_types")
        raise refuse("layer_types", types, "the same attention in every layer of a Mistral model")
    return {"layer_windows": windows}


def _qwen2(fields: Fields, num_layers: int) -> Traits:
    first = read_int(fields, "max_window_layers", 0, 1 << 20, 28)
    window = _switched_window(fields)
    windows = _windows(fields, num_layers, window, lambda layer: layer >= first)
    return {"qkv_bias": True, "layer_windows": windows}


def _qwen3(fields: Fields, num_layers: int) -> Traits:
    windows = _qwen2(fields, num_layers)["layer_windows"]
    return _biases(fields, "qkv", "o") | {"qk_norm": True, "layer_windows": windows}


def _granite(fields: Fields, num_layers: int) -> Traits:
    return _llama(fields, num_layers) | {
        "embedding_scale": _scale(fields, "embedding_multiplier"),
        "attention_scale": _scale(fields, "attention_multiplier"),
        "residual_scale": _scale(fields, "residual_multiplier"),
        "logits_scale": 1.0 / _scale(fields, "logits_scaling"),
    }


def _smollm3(fields: Fields, num_layers: int) -> Traits:
    interval = read_int(fields, "no_rope_layer_interval", 1, 1 << 20, 4)
    rotated = fields.get("no_rope_layers")  # despite its name: 1 for a layer with rope
    if rotated is None:
        rotated = [int((layer + 1) % interval != 0) for layer in range(num_layers)]
    if not isinstance(rotated, list) or len(rotated) != num_layers or any(x not in (0, 1) for x in rotated):
        raise refuse("no_rope_layers", rotated, f"a list of {num_layers} zeros and ones")
    has_rope: Sequence[int] = rotated
    window = _switched_window(fields)
    return _llama(fields, num_layers) | {
        "layer_ropes": tuple("global" if each else "none" for each in has_rope),
        "layer_windows": _windows(fields, num_layers, window, lambda layer: not has_rope[layer]),
    }


def _phi3(fields: Fields, num_layers: int) -> Traits:
    return {
        "fused_projections": True,
        "layer_windows": _windows(fields, num_layers, _optional_window(fields), lambda layer: True),
    }


def _olmo2(fields: Fields, num_layers: int) -> Traits:
    own = {"norm": "rms_fp32", "block": "post", "qk_norm": True, "whole_qk_norm": True}
    return _biases(fields, "qkv", "o") | own


def _olmo_hybrid(fields: Fields, num_layers: int) -> Traits:
    """Return the fields. Recurrent layers have their norms before, those with attention after."""
    rope = fields.get("rope_parameters") or {}
    theta = rope.get("rope_theta") if isinstance(rope, Mapping) else None
    has_rope = theta is not None or fields.get("rope_theta") is not None
    doubles = read_bool(fields, "linear_allow_neg_eigval", True)
    sizes = _delta_sizes(fields, grouped=False)
    return _olmo2(fields, num_layers) | {
        "recurrent_block": "pre",
        "layer_kinds": _layer_kinds(fields, num_layers, "linear_attention"),
        "layer_ropes": None if has_rope else ("none",) * num_layers,
        "mixer": replace(sizes, split_qkv=True, beta_scale=2.0 if doubles else 1.0, norm_eps=1e-5),
    }


def _gemma2(fields: Fields, num_layers: int) -> Traits:
    if read_bool(fields, "use_bidirectional_attention", False):
        raise refuse("use_bidirectional_attention", True, "false: a decoder sees no later tokens")
    hidden_size = read_int(fields, "hidden_size", 1, 1 << 17)
    return _biases(fields, "qkv", "o") | {
        "norm": "rms_fp32",
        "norm_offset": 1.0,
        "block": "sandwich",
        "embedding_scale": math.sqrt(hidden_size),
        "attention_scale": 1.0 / math.sqrt(read_float(fields, "query_pre_attn_scalar", 0.0, _MAX_SCALE)),
        "attention_soft_cap": _optional_scale(fields, "attn_logit_softcapping"),
        "logits_soft_cap": _optional_scale(fields, "final_logit_softcapping"),
        "layer_windows": _windows_by_pattern(fields, num_layers),
    }


def _gemma3(fields: Fields, num_layers: int) -> Traits:
    traits = _gemma2(fields, num_layers)
    windows: Windows = traits["layer_windows"]
    return traits | {
        "qk_norm": True,
        "attention_soft_cap": None,  # the reference implementation reads it and has none
        "local_rope_theta": read_float(fields, "rope_local_base_freq", 1.0, 1e15),
        "layer_ropes": tuple("global" if window is None else "local" for window in windows),
    }


def _cohere2(fields: Fields, num_layers: int) -> Traits:
    if read_bool(fields, "use_qk_norm", False):
        raise refuse("use_qk_norm", True, "false: Cohere2 has no norms of q and k")
    windows = _windows_by_pattern(fields, num_layers)
    return _biases(fields, "qkv", "o") | {
        "norm": "layer",
        "block": "parallel",
        "interleaved_rope": True,
        "layer_windows": windows,
        "layer_ropes": tuple("none" if each is None else "global" for each in windows),
        "logits_scale": _scale(fields, "logit_scale"),
    }


def _mixtral(fields: Fields, num_layers: int) -> Traits:
    experts = _experts(fields, 8, "intermediate_size")
    return _mistral(fields, num_layers) | experts | {"normalizes_experts": True}


def _qwen2_moe(fields: Fields, num_layers: int) -> Traits:
    """Return the fields. Without `layer_types` every second layer below `max_window_layers` has the window."""
    last = read_int(fields, "max_window_layers", 0, 1 << 20, 28)
    window = _switched_window(fields)
    shared = "shared_expert_intermediate_size"
    return {
        "qkv_bias": read_bool(fields, "qkv_bias", True),
        "layer_windows": _windows(fields, num_layers, window, lambda layer: layer < last and layer % 2 == 0),
        "shared_expert_size": read_int(fields, shared, 1, 1 << 20, 5632),
        **_experts(fields, 60, "moe_intermediate_size"),
        "dense_layers": _dense_layers(fields, num_layers),
    }


def _qwen3_moe(fields: Fields, num_layers: int) -> Traits:
    window = _switched_window(fields)
    own = {"qk_norm": True, "layer_windows": (window,) * num_layers}
    experts = _experts(fields, 128, "moe_intermediate_size")
    return _biases(fields, "qkv", "o") | own | experts | {"dense_layers": _dense_layers(fields, num_layers)}


def _olmoe(fields: Fields, num_layers: int) -> Traits:
    own = {"qk_norm": True, "whole_qk_norm": True, "clip_qkv": _optional_scale(fields, "clip_qkv")}
    return _biases(fields, "qkv", "o") | own | _experts(fields, 64, "intermediate_size")


def _gpt_oss(fields: Fields, num_layers: int) -> Traits:
    window = _optional_window(fields)
    return {
        **_biases(fields, "qkv", "o"),
        **_experts(fields, 128, "intermediate_size"),
        "normalizes_experts": True,
        "interleaved_experts": True,
        "mlp_bias": True,
        "router_bias": True,
        "norm": "rms_fp32",
        "attention_sinks": True,
        "layer_windows": _windows(fields, num_layers, window, lambda layer: layer % 2 == 0),
        "activation": "clamped_swiglu",
        "swiglu_alpha": _scale(fields, "swiglu_alpha"),
        "swiglu_limit": _scale(fields, "swiglu_limit"),
    }


def _lfm2(fields: Fields, num_layers: int) -> Traits:
    return {
        "qk_norm": True,
        "layer_kinds": _layer_kinds(fields, num_layers, "conv"),
        "mixer": ConvSizes(
            kernel=read_int(fields, "conv_L_cache", 1, _MAX_KERNEL),
            width=read_int(fields, "hidden_size", 1, 1 << 17),
            bias=read_bool(fields, "conv_bias", False),
        ),
    }


def _lfm2_moe(fields: Fields, num_layers: int) -> Traits:
    return {
        **_lfm2(fields, num_layers),
        **_experts(fields, 32, "moe_intermediate_size"),
        "normalizes_experts": read_bool(fields, "norm_topk_prob", True),
        "dense_layers": tuple(range(read_int(fields, "num_dense_layers", 0, num_layers, 2))),
        "sigmoid_router": True,
        "expert_bias": read_bool(fields, "use_expert_bias", True),
        "routed_scale": _scale(fields, "routed_scaling_factor"),
    }


def _qwen3_5(fields: Fields, num_layers: int) -> Traits:
    return _biases(fields, "qkv", "o") | {
        "norm": "rms_fp32",
        "norm_offset": 1.0,
        "qk_norm": True,
        "gated_attention": True,
        "layer_kinds": _layer_kinds(fields, num_layers, "linear_attention"),
        "mixer": _delta_sizes(fields, grouped=False),
    }


def _qwen3_5_moe(fields: Fields, num_layers: int) -> Traits:
    experts = _experts(fields, 256, "moe_intermediate_size") | {"normalizes_experts": True}
    shared = read_int(fields, "shared_expert_intermediate_size", 1, 1 << 20)
    return _qwen3_5(fields, num_layers) | experts | {"shared_expert_size": shared}


def _qwen3_next(fields: Fields, num_layers: int) -> Traits:
    return {
        **_qwen3_5_moe(fields, num_layers),
        "normalizes_experts": read_bool(fields, "norm_topk_prob", True),
        "dense_layers": _dense_layers(fields, num_layers),
        "mixer": _delta_sizes(fields, grouped=True),
    }


def _granitemoehybrid(fields: Fields, num_layers: int) -> Traits:
    position = fields.get("position_embedding_type")
    if position not in (None, "nope", "rope"):
        raise refuse("position_embedding_type", position, "rope, nope or null")
    traits = _granite(fields, num_layers) | {
        "layer_kinds": _layer_kinds(fields, num_layers, "mamba"),
        "layer_ropes": None if position == "rope" else ("none",) * num_layers,
        "mixer": _space_sizes(fields),
    }
    if not fields["num_local_experts"]:
        return traits
    size = read_int(fields, "shared_intermediate_size", 1, 1 << 20)
    shared = {"shared_expert_size": size, "shared_expert_gate": False, "normalizes_experts": True}
    return traits | _experts(fields, 8, "expert_size") | shared


def _falcon_h1(fields: Fields, num_layers: int) -> Traits:
    for key in ("mamba_proj_bias", "projectors_bias", "attention_bias", "mlp_bias"):
        if fields.get(key):
            raise refuse(key, fields[key], "false")
    has_norm = read_bool(fields, "mamba_rms_norm", False)
    mixer = replace(
        _space_sizes(fields),
        norm_groups=read_int(fields, "mamba_n_groups", 1, 1 << 12) if has_norm else 0,
        gates_first=not read_bool(fields, "mamba_norm_before_gate", True),
    )
    return {
        "layer_kinds": ("both",) * num_layers,
        "mixer": mixer,
        "embedding_scale": _scale(fields, "embedding_multiplier"),
        "logits_scale": _scale(fields, "lm_head_multiplier"),
        "weight_scales": _falcon_h1_scales(fields, mixer),
    }


def _falcon_h1_scales(fields: Fields, mixer: SpaceSizes) -> WeightScales:
    """Return the multipliers of activations, as factors of the weights before or after them."""
    hidden, inner = (read_int(fields, key, 1, 1 << 20) for key in ("hidden_size", "intermediate_size"))
    heads, kv_heads = (read_int(fields, f"num_{key}_heads", 1, 1 << 12) for key in ("attention", "key_value"))
    head_dim = read_int(fields, "head_dim", 1, 1 << 12, hidden // heads)
    read, write = (_scale(fields, f"attention_{key}_multiplier") for key in ("in", "out"))
    gate, down = _multipliers(fields, "mlp_multipliers", 2)
    states = mixer.groups * mixer.state_size
    widths = (mixer.width, mixer.width, states, states, mixer.heads)
    factors = [
        _scale(fields, "ssm_in_multiplier") * one for one in _multipliers(fields, "ssm_multipliers", 5)
    ]
    keys = kv_heads * head_dim
    found: WeightScales = (
        ("self_attn.q_proj.weight", ((heads * head_dim, read),)),
        ("self_attn.k_proj.weight", ((keys, read * _scale(fields, "key_multiplier")),)),
        ("self_attn.v_proj.weight", ((keys, read),)),
        ("self_attn.o_proj.weight", ((hidden, write),)),
        ("mamba.in_proj.weight", tuple(zip(widths, factors, strict=True))),
        ("mamba.out_proj.weight", ((hidden, _scale(fields, "ssm_out_multiplier")),)),
        ("mlp.gate_proj.weight", ((inner, gate),)),
        ("mlp.down_proj.weight", ((hidden, down),)),
    )
    return tuple((name, parts) for name, parts in found if any(factor != 1.0 for _, factor in parts))


def _multipliers(fields: Fields, key: str, count: int) -> list[float]:
    values = fields.get(key)
    if values is None:
        return [1.0] * count
    if not isinstance(values, list) or len(values) != count:
        raise refuse(key, values, f"a list of {count} numbers")
    return [read_float({key: each}, key, 0.0, _MAX_SCALE) for each in values]


def _nemotron_h(fields: Fields, num_layers: int) -> Traits:
    refused = ("attention_bias", "residual_in_fp32", "sliding_window", "moe_latent_size")
    for key in refused:
        if fields.get(key):
            raise refuse(key, fields[key], "false or nothing")
    if fields.get("mlp_hidden_act", "relu2") != "relu2":
        raise refuse("mlp_hidden_act", fields["mlp_hidden_act"], "relu2")
    mlps = cast("list[str | None]", fields["mlp_types"])
    traits = {
        "norm": "rms_fp32",
        "activation": "relu2",
        "mlp_bias": read_bool(fields, "mlp_bias", False),
        "layer_kinds": _layer_kinds(fields, num_layers, "mamba"),
        "layer_ropes": ("none",) * num_layers,
        "mixer": _space_sizes(fields),
        "splits_layers": True,
        "bare_layers": tuple(layer for layer, kind in enumerate(mlps) if kind is None),
    }
    if "moe" not in mlps:
        return traits
    if fields.get("n_group", 1) != fields.get("topk_group", 1):
        raise refuse("topk_group", fields.get("topk_group"), "n_group: experts are chosen among all")
    if fields.get("n_shared_experts", 1) != 1:
        raise refuse("n_shared_experts", fields["n_shared_experts"], "1")
    return traits | {
        **_experts({**fields, "num_experts": fields.get("n_routed_experts")}, 8, "moe_intermediate_size"),
        "normalizes_experts": read_bool(fields, "norm_topk_prob", True),
        "shared_expert_size": read_int(fields, "moe_shared_expert_intermediate_size", 1, 1 << 20),
        "shared_expert_gate": False,
        "dense_layers": tuple(layer for layer, kind in enumerate(mlps) if kind != "moe"),
        "sigmoid_router": True,
        "expert_bias": True,
        "router_eps": 1e-20,
        "routed_scale": _scale(fields, "routed_scaling_factor"),
    }


def _space_sizes(fields: Fields) -> SpaceSizes:
    heads = read_int(fields, "mamba_n_heads", 1, 1 << 12)
    groups = read_int(fields, "mamba_n_groups", 1, 1 << 12)
    if heads % groups:
        raise refuse("mamba_n_heads", heads, f"a multiple of mamba_n_groups, {groups}")
    hidden = read_int(fields, "hidden_size", 1, 1 << 17)
    if fields.get("mamba_d_head") == "auto":
        width = fields.get("mamba_d_ssm") or read_int(fields, "mamba_expand", 1, 64, 2) * hidden
        width = read_int({"mamba_d_ssm": width}, "mamba_d_ssm", heads, 1 << 20)
        fields = {**fields, "mamba_d_head": width // heads}
    low, high = _time_step_limit(fields)
    return SpaceSizes(
        kernel=read_int(fields, "mamba_d_conv", 1, _MAX_KERNEL),
        heads=heads,
        head_dim=read_int(fields, "mamba_d_head", 1, 1 << 10),
        groups=groups,
        state_size=read_int(fields, "mamba_d_state", 1, 1 << 10),
        conv_bias=read_bool(fields, "mamba_conv_bias", True),
        bias=read_bool(fields, "mamba_proj_bias", False),
        norm_groups=groups,
        dt_min=low,
        dt_max=high,
    )


def _time_step_limit(fields: Fields) -> tuple[float, float | None]:
    """Return the lowest and the highest step of a state space layer; None: there is no highest one."""
    limit = fields.get("time_step_limit")
    if limit is None:
        return 0.0, None
    given = limit if isinstance(limit, list | tuple) else ()
    numbers = [math.inf if one in _INFINITE else one for one in given]
    if (
        len(numbers) != 2
        or not all(isinstance(one, int | float) and not isinstance(one, bool) for one in numbers)
        or not 0 <= numbers[0] < numbers[1]
    ):
        raise refuse("time_step_limit", limit, "two numbers, the lower one first and not negative")
    return float(numbers[0]), None if numbers[1] == math.inf else float(numbers[1])


def _delta_sizes(fields: Fields, *, grouped: bool) -> DeltaSizes:
    key_heads = read_int(fields, "linear_num_key_heads", 1, 1 << 12)
    value_heads = read_int(fields, "linear_num_value_heads", 1, 1 << 12)
    if value_heads % key_heads:
        raise refuse(
            "linear_num_value_heads", value_heads, f"a multiple of linear_num_key_heads, {key_heads}"
        )
    return DeltaSizes(
        kernel=read_int(fields, "linear_conv_kernel_dim", 1, _MAX_KERNEL),
        key_heads=key_heads,
        value_heads=value_heads,
        key_dim=read_int(fields, "linear_key_head_dim", 1, 1 << 10),
        value_dim=read_int(fields, "linear_value_head_dim", 1, 1 << 10),
        grouped=grouped,
    )


def _layer_kinds(fields: Fields, num_layers: int, recurrent: str) -> tuple[LayerKind, ...]:
    """Return the kind of each layer, as `layer_types` says. recurrent: its name of those with a state."""
    types = fields.get("layer_types")
    if not isinstance(types, list) or len(types) != num_layers:
        raise refuse("layer_types", types, f"a list of {num_layers} names")
    for each in types:
        if each not in (_FULL, recurrent):
            raise refuse("layer_types", each, f"{_FULL} or {recurrent}")
    return tuple("attention" if each == _FULL else "recurrent" for each in types)


def _experts(fields: Fields, default: int, size_key: str) -> Traits:
    """Files name the number of experts in either way, whatever the family."""
    counts = [fields[key] for key in ("num_experts", "num_local_experts") if fields.get(key) is not None]
    if len(set(map(repr, counts))) > 1:
        raise refuse("num_local_experts", counts[1], f"num_experts, {counts[0]!r}")
    num_experts = read_int({"num_experts": (counts or [default])[0]}, "num_experts", 1, 1 << 12)
    return {
        "num_experts": num_experts,
        "experts_per_token": read_int(fields, "num_experts_per_tok", 1, num_experts),
        "expert_size": read_int(fields, size_key, 1, 1 << 20),
        "normalizes_experts": read_bool(fields, "norm_topk_prob", False),
    }


def _dense_layers(fields: Fields, num_layers: int) -> tuple[int, ...]:
    """Layers with one MLP: those listed, and those between every `decoder_sparse_step`-th."""
    step = read_int(fields, "decoder_sparse_step", 1, 1 << 20, 1)
    listed = fields.get("mlp_only_layers") or []
    if not isinstance(listed, list) or any(type(each) is not int for each in listed):
        raise refuse("mlp_only_layers", listed, "a list of layers")
    return tuple(layer for layer in range(num_layers) if layer in listed or (layer + 1) % step)


def _gemma_fields(fields: Fields) -> Fields:
    """`hidden_activation` is Gemma's name; `hidden_act` may hold an older value."""
    activation = fields.get("hidden_activation") or fields.get("hidden_act") or "gelu_pytorch_tanh"
    return {**fields, "hidden_act": activation}


def _gemma3_fields(fields: Fields) -> Fields:
    """Rope of both kinds of layers: `rope_theta` and `rope_local_base_freq` (transformers 4), or two
    sections of `rope_parameters` (transformers 5)."""
    fields = _gemma_fields(fields)
    rope = fields.get("rope_parameters")
    if not isinstance(rope, Mapping) or not (_SLIDING in rope or _FULL in rope):
        return fields
    local, whole = ({} if rope.get(kind) is None else rope[kind] for kind in (_SLIDING, _FULL))
    if not isinstance(local, Mapping) or not isinstance(whole, Mapping):
        raise refuse("rope_parameters", rope, f"an object for {_SLIDING} and one for {_FULL}")
    if local.get("rope_type", "default") != "default":
        raise refuse("rope_type", local["rope_type"], "default in layers with a sliding window")
    plain = {key: value for key, value in fields.items() if key not in ("rope_parameters", "rope_scaling")}
    if local.get("rope_theta") is not None:
        plain["rope_local_base_freq"] = local["rope_theta"]
    if whole.get("rope_theta") is not None:
        plain["rope_theta"] = whole["rope_theta"]
    return {**plain, "rope_parameters": dict(whole)}


def _cohere_fields(fields: Fields) -> Fields:
    return {**fields, "rms_norm_eps": fields["layer_norm_eps"]}


def _gpt_oss_fields(fields: Fields) -> Fields:
    """Fill in the rope scaling of the published models if a configuration has none."""
    if fields.get("rope_parameters") or fields.get("rope_scaling"):
        return fields
    return {**fields, "rope_scaling": _GPT_OSS_ROPE}


def _lfm2_fields(fields: Fields) -> Fields:
    """`intermediate_size` is adjusted by rules of its own; older files list the layers with attention."""
    plain = _lfm2_moe_fields(fields)
    size_key = "block_ff_dim" if fields.get("block_ff_dim") is not None else "intermediate_size"
    size = read_int(fields, size_key, 1, 1 << 20)
    if read_bool(fields, "block_auto_adjust_ff_dim", True):
        factor = read_float(fields, "block_ffn_dim_multiplier", 0.0, _MAX_SCALE, 1.0)
        multiple = read_int(fields, "block_multiple_of", 1, 1 << 20, 256)
        size = -(-int(factor * int(2 * size / 3)) // multiple) * multiple
    if fields.get("layer_types") is None:
        num_layers = read_int(fields, "num_hidden_layers", 1, 1 << 10)
        attending = fields.get("full_attn_idxs")
        if attending is None:
            attending = list(range(num_layers))
        if not isinstance(attending, list):
            raise refuse("full_attn_idxs", attending, "a list of layers")
        plain["layer_types"] = [_FULL if layer in attending else "conv" for layer in range(num_layers)]
    return {**plain, "intermediate_size": size}


def _granitemoehybrid_fields(fields: Fields) -> Fields:
    """Without experts the MLP is what is the shared expert otherwise. Newer files name layers in general words."""
    types = fields.get("layer_types") or fields.get("layers_block_type")
    words = {"attention": _FULL, "linear_attention": "mamba"}
    plain = {
        **fields,
        "layer_types": [words.get(one, one) for one in types] if isinstance(types, list) else types,
    }
    if not fields["num_local_experts"]:
        return {**plain, "intermediate_size": fields["shared_intermediate_size"]}
    return {**plain, "expert_size": fields["intermediate_size"]}


def _nemotron_h_fields(fields: Fields) -> Fields:
    """Join a layer that mixes tokens with the MLP after it: `layer_types`, and `mlp_types`, None where there is none."""
    parts = (
        fields.get("layers_block_type") or fields.get("layer_types") or fields.get("hybrid_override_pattern")
    )
    if not isinstance(parts, list | str):
        raise refuse("hybrid_override_pattern", parts, f"a text of {', '.join(_NEMOTRON_PARTS)}")
    kinds: list[str] = []
    mlps: list[str | None] = []
    for part in parts:
        kind = _NEMOTRON_PARTS.get(part) if isinstance(part, str) else None
        if kind in ("mamba", _FULL):
            kinds.append(kind)
            mlps.append(None)
        elif kind is not None and mlps and mlps[-1] is None:
            mlps[-1] = kind
        else:
            raise refuse(
                "hybrid_override_pattern", parts, "a MLP or nothing after each layer that mixes tokens"
            )
    own = {key: fields.get(theirs) for key, theirs in _NEMOTRON_SPACE.items()}
    return {
        **own,
        **fields,
        "mamba_proj_bias": fields.get("use_bias", False),
        "num_hidden_layers": len(kinds),
        "layer_types": kinds,
        "mlp_types": mlps,
        "rms_norm_eps": fields["layer_norm_epsilon"],
        "hidden_act": "silu",  # of the convolutions; MLPs have mlp_hidden_act
    }


def _lfm2_moe_fields(fields: Fields) -> dict[str, object]:
    plain = {**fields, "rms_norm_eps": fields["norm_eps"], "hidden_act": "silu"}
    if fields.get("tie_embedding") is not None:
        plain["tie_word_embeddings"] = fields["tie_embedding"]
    return plain


def _qwen3_5_fields(fields: Fields) -> Fields:
    """Every `full_attention_interval`-th layer has attention, if `layer_types` does not say which."""
    plain = dict(fields)
    if fields.get("layer_types") is None:
        interval = read_int(fields, "full_attention_interval", 1, 1 << 20, 4)
        num_layers = read_int(fields, "num_hidden_layers", 1, 1 << 10)
        kinds = ["linear_attention" if (layer + 1) % interval else _FULL for layer in range(num_layers)]
        plain["layer_types"] = kinds
    if fields.get("intermediate_size") is None and "moe_intermediate_size" in fields:
        plain["intermediate_size"] = fields["moe_intermediate_size"]  # no layer has this MLP
    return plain


def _olmo_hybrid_fields(fields: Fields) -> Fields:
    """Sizes of the heads follow from those of attention if they are not given."""
    heads = read_int(fields, "num_attention_heads", 1, 1 << 12)
    sizes = {"linear_num_key_heads": heads, "linear_num_value_heads": heads}
    plain = {
        **_qwen3_5_fields(fields),
        **{key: size for key, size in sizes.items() if fields.get(key) is None},
    }
    if plain.get("linear_key_head_dim") is None:
        hidden = read_int(fields, "hidden_size", 1, 1 << 17)
        plain["linear_key_head_dim"] = int(
            0.75 * hidden / read_int(plain, "linear_num_key_heads", 1, 1 << 12)
        )
    if plain.get("linear_value_head_dim") is None:
        plain["linear_value_head_dim"] = 2 * read_int(plain, "linear_key_head_dim", 1, 1 << 10)
    return plain


_WITH_IMAGES = {
    "gemma3": "gemma3_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
}


def text_fields(fields: Fields) -> Fields:
    """Return the configuration of the language model in that of a model with images (`text_config`)."""
    model_type = fields.get("model_type")
    if not isinstance(model_type, str) or model_type not in _WITH_IMAGES:
        return fields
    text = fields.get("text_config")
    if not isinstance(text, Mapping):
        raise refuse("text_config", text, "an object: the configuration of the language model")
    outer = {key: value for key, value in fields.items() if key not in ("text_config", "vision_config")}
    return {**outer, **text, "model_type": _WITH_IMAGES[model_type], "architectures": None}


def _biases(fields: Fields, *projections: str) -> Traits:
    """`attention_bias` means the biases of these projections."""
    has_bias = read_bool(fields, "attention_bias", False)
    return {f"{projection}_bias": has_bias for projection in projections}


def _scale(fields: Fields, key: str) -> float:
    return read_float(fields, key, 0.0, _MAX_SCALE, 1.0)


def _optional_scale(fields: Fields, key: str) -> float | None:
    return None if fields.get(key) is None else read_float(fields, key, 0.0, _MAX_SCALE)


def _optional_window(fields: Fields) -> int | None:
    if fields.get("sliding_window", 4096) is None:
        return None
    return read_int(fields, "sliding_window", 1, MAX_CONTEXT, 4096)


def _switched_window(fields: Fields) -> int | None:
    return _optional_window(fields) if read_bool(fields, "use_sliding_window", False) else None


def _windows_by_pattern(fields: Fields, num_layers: int) -> Windows:
    """Return the windows where every n-th layer has none, and `layer_types` may say otherwise."""
    pattern = read_int(fields, "sliding_window_pattern", 1, 1 << 20)
    window = read_int(fields, "sliding_window", 1, MAX_CONTEXT)
    return _windows(fields, num_layers, window, lambda layer: (layer + 1) % pattern != 0)


def _windows(
    fields: Fields, num_layers: int, window: int | None, is_windowed: Callable[[int], bool]
) -> Windows:
    """Return the window of each layer: as `layer_types` says, without it by the family's rule."""
    types = fields.get("layer_types")
    if types is None:
        return tuple(window if is_windowed(layer) else None for layer in range(num_layers))
    if not isinstance(types, list) or len(types) != num_layers:
        raise refuse("layer_types", types, f"a list of {num_layers} names")
    for each in types:
        if each not in (_FULL, _SLIDING) or (each == _SLIDING and window is None):
            raise refuse("layer_types", each, f"{_FULL}, or {_SLIDING} with a sliding_window")
    return tuple(window if each == _SLIDING else None for each in types)


_GPT_OSS_ROPE: dict[str, object] = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
_NEMOTRON_PARTS = {"M": "mamba", "mamba": "mamba", "linear_attention": "mamba"}
_NEMOTRON_PARTS |= {"*": _FULL, "attention": _FULL, _FULL: _FULL}
_NEMOTRON_PARTS |= {"-": "mlp", "mlp": "mlp", "E": "moe", "moe": "moe"}
_NEMOTRON_SPACE = {
    "mamba_n_heads": "mamba_num_heads",
    "mamba_n_groups": "n_groups",
    "mamba_d_state": "ssm_state_size",
    "mamba_d_head": "mamba_head_dim",
    "mamba_d_conv": "conv_kernel",
    "mamba_conv_bias": "use_conv_bias",
}
# What a family does with the fields of a configuration, and how it brings other spellings into one form.
_FUNCTIONS: Mapping[FamilyName, tuple[Callable[[Fields, int], Traits], Callable[[Fields], Fields]]] = {
    "llama": (_llama, _unchanged),
    "mistral": (_mistral, _unchanged),
    "qwen2": (_qwen2, _unchanged),
    "qwen3": (_qwen3, _unchanged),
    "granite": (_granite, _unchanged),
    "smollm3": (_smollm3, _unchanged),
    "phi3": (_phi3, _unchanged),
    "olmo2": (_olmo2, _unchanged),
    "gemma2": (_gemma2, _gemma_fields),
    "gemma3_text": (_gemma3, _gemma3_fields),
    "cohere2": (_cohere2, _cohere_fields),
    "mixtral": (_mixtral, _unchanged),
    "qwen2_moe": (_qwen2_moe, _unchanged),
    "qwen3_moe": (_qwen3_moe, _unchanged),
    "olmoe": (_olmoe, _unchanged),
    "gpt_oss": (_gpt_oss, _gpt_oss_fields),
    "lfm2": (_lfm2, _lfm2_fields),
    "lfm2_moe": (_lfm2_moe, _lfm2_moe_fields),
    "qwen3_next": (_qwen3_next, _qwen3_5_fields),
    "granitemoehybrid": (_granitemoehybrid, _granitemoehybrid_fields),
    "falcon_h1": (_falcon_h1, _unchanged),
    "nemotron_h": (_nemotron_h, _nemotron_h_fields),
    "olmo_hybrid": (_olmo_hybrid, _olmo_hybrid_fields),
    "qwen3_5_text": (_qwen3_5, _qwen3_5_fields),
    "qwen3_5_moe_text": (_qwen3_5_moe, _qwen3_5_fields),
}
_DECLARED: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("families.json").read_text(encoding="utf-8")
)
FAMILIES: Mapping[FamilyName, Family] = {
    name: Family(traits=traits, rewrite=rewrite, **_DECLARED[name])
    for name, (traits, rewrite) in _FUNCTIONS.items()
}
