"""Writes a transformers model as the GGUF file llama.cpp's converter would: `write_gguf(path,
model, quant)`.

Query and key rows of llama models and their like are interleaved, norms of Gemma and Qwen3.5 models have 1 added,
the value heads of Qwen3.5 stand in the order in which they take key heads in turns, Falcon's multipliers are in its weights,
experts of a layer are one tensor. One-dimensional tensors and routers stay F32, and so do rows
that are not a multiple of the format's block. Holdfast and transformers'
`from_pretrained(gguf_file=...)` read it. transformers ignores rope scaling and `head_dim` there:
give qwen3 models heads of 128 to compare with it.
"""

import math
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType

from holdfast.numerics.blocks import BLOCK_FORMATS, blocks_of

Experts = Literal["together", "alone", "gate_up"]  # how experts are stored; the converter: together

ARCHITECTURES = {
    "mistral": "llama",
    "gemma3_text": "gemma3",
    "mixtral": "llama",
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
    "gpt_oss": "gpt-oss",
    "qwen3_5_text": "qwen35",
    "qwen3_5_moe_text": "qwen35moe",
    "qwen3_next": "qwen3next",
    "granitemoehybrid": "granitehybrid",
    "falcon_h1": "falcon-h1",
    "lfm2_moe": "lfm2moe",
}
RECURRENT = ("qwen35", "qwen35moe", "qwen3next", "granitehybrid", "falcon-h1", "nemotron_h", "nemotron_h_moe")


def write_gguf(
    path: Path,
    model: Any,
    quant: str = "F32",
    metadata: Mapping[str, Any] | None = None,
    tensors: Mapping[str, np.ndarray] | None = None,
    experts: Experts = "together",
) -> Path:
    """`metadata`: further keys (tokenizer.ggml...); `tensors`: further F32 tensors
    (rope_freqs.weight)."""
    config = model.config
    arch = ARCHITECTURES.get(config.model_type, config.model_type)
    if arch == "nemotron_h" and "moe" in config.layers_block_type:
        arch = "nemotron_h_moe"
    writer = gguf.GGUFWriter(path, arch)
    _add_sizes(writer, model, arch)
    for key, value in (metadata or {}).items():
        _add_value(writer, key, value)
    architecture = getattr(gguf.MODEL_ARCH, arch.upper().replace("-", "_").replace("EHYBRID", "E_HYBRID"))
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    state = model.state_dict()
    for name, tensor in dict(_recurrent_tensors(state, config, arch) if arch in RECURRENT else state).items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor.detach().float().numpy()
        if name.startswith("blk."):
            _add_tensor(writer, name, values, "F32" if values.ndim < 2 or "conv1d" in name else quant)
            continue
        if ".experts." in name:
            for stored_name, part in _expert_tensors(name, values, arch, experts):
                _add_tensor(writer, stored_name, part, quant)
            continue
        if arch.startswith("gemma") and name.endswith("norm.weight"):
            values = values + 1
        if arch in ("llama", "granite", "smollm3", "granitehybrid") and (
            "q_proj" in name or "k_proj" in name
        ):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            values = interleave(values, heads)
        name = name.replace(".mlp.gate.", ".block_sparse_moe.gate.") if arch == "llama" else name
        name = f"{name}.weight" if name.endswith(".sinks") else name
        values = values[:, 0] if name.endswith("conv.conv.weight") else values
        values = values[0] if name.endswith("shared_expert_gate.weight") else values
        name = name.replace("expert_bias", "expert_bias.bias").replace(
            "score_correction_bias", "score_correction.bias"
        )
        name = name.replace("feed_forward.experts", "mlp.experts")
        stored_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored_name is not None, name
        is_plain = (
            ".ffn_gate_inp" in stored_name or ".shortconv.conv" in stored_name
        )  # the converter keeps them in F32
        _add_tensor(writer, stored_name, values, "F32" if is_plain else quant)
    for name, values in (tensors or {}).items():
        writer.add_tensor(name, values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _recurrent_tensors(state: Mapping[str, Any], config: Any, arch: str) -> Iterator[tuple[str, Any]]:
    """The tensors of a model with recurrent layers: those parts by GGUF's names, all values as in the file."""
    delta = {
        "in_proj_qkv": "attn_qkv",
        "in_proj_z": "attn_gate",
        "in_proj_b": "ssm_beta",
        "in_proj_a": "ssm_alpha",
    }
    delta |= {"in_proj_ba": "ssm_ba", "in_proj": "ssm_in"}
    delta |= {"conv1d": "ssm_conv1d", "norm": "ssm_norm", "out_proj": "ssm_out"}
    vectors = {"A_log": "ssm_a", "D": "ssm_d", "dt_bias": "ssm_dt.bias"}
    for name, tensor in state.items():
        value = tensor.detach().float()
        if arch.startswith("nemotron_h"):
            kind = config.layers_block_type[int(name.split(".")[2])] if ".layers." in name else ""
            is_space = kind == "linear_attention" and ".mixer." in name
            name = name.replace(".mixer.", ".mamba.") if is_space else name.replace("model.", "backbone.", 1)
        parts = name.split(".")
        if "linear_attn" not in parts and "mamba" not in parts:
            yield from _plain_tensor(name, value, config, arch)
            continue
        module = name.split(".linear_attn." if "linear_attn" in parts else ".mamba.")[1]
        if "linear_attn" in parts and arch != "qwen3next":
            value = _in_turns(module, value, config)
        if arch == "falcon-h1":
            value = _falcon_scaled(module, value, config)
        prefix = f"blk.{parts[2]}."
        if module in vectors:
            value = -torch.exp(value) if module == "A_log" else value
            is_column = "mamba" in parts and module != "dt_bias"
            yield prefix + vectors[module], value[:, None] if is_column else value
        elif module == "in_proj_qkvz.weight":
            ratio = config.linear_num_value_heads // config.linear_num_key_heads
            sizes = [config.linear_key_head_dim] * 2 + [ratio * config.linear_value_head_dim] * 2
            groups = value.view(config.linear_num_key_heads, sum(sizes), -1).split(sizes, 1)
            q, k, v, z = (each.reshape(-1, value.shape[1]) for each in groups)
            yield prefix + "attn_qkv.weight", torch.cat((q, k, v))
            yield prefix + "attn_gate.weight", z
        else:
            what, _, kind = module.rpartition(".")
            value = value[:, 0] if value.ndim == 3 else value
            if what == "norm" and "mamba" in parts:
                value = value.view(getattr(config, "mamba_n_groups", None) or config.n_groups, -1)
            yield f"{prefix}{delta[what]}.{kind}", value


def _plain_tensor(name: str, value: torch.Tensor, config: Any, arch: str) -> Iterator[tuple[str, Any]]:
    if arch.startswith("qwen3") and name.endswith("norm.weight"):
        value = value + 1
    if ".shared_mlp.input_linear" in name:
        kind = "_shexp" if config.num_local_experts else ""
        for half, part in zip(value.chunk(2), ("gate", "up"), strict=True):
            yield f"blk.{name.split('.')[2]}.ffn_{part}{kind}.weight", half.contiguous()
    elif ".shared_mlp.output_linear" in name:
        yield f"blk.{name.split('.')[2]}.ffn_down{'_shexp' if config.num_local_experts else ''}.weight", value
    elif ".block_sparse_moe." in name:
        name = name.replace("input_linear.weight", "experts.gate_up_proj")
        name = name.replace("output_linear.weight", "experts.down_proj").replace("router.layer.", "gate.")
        yield (
            name.replace(".block_sparse_moe.router.", ".mlp.gate.").replace(".block_sparse_moe.", ".mlp."),
            value,
        )
    else:
        yield name, _falcon_scaled(name, value, config) if arch == "falcon-h1" else value


def _in_turns(module: str, value: torch.Tensor, config: Any) -> torch.Tensor:
    """Bring the value heads into the order in which they take key heads in turns."""
    groups, heads, dim = (
        config.linear_num_key_heads,
        config.linear_num_value_heads,
        config.linear_value_head_dim,
    )
    first = 2 * groups * config.linear_key_head_dim
    rows = torch.arange(heads * dim).view(groups, heads // groups, dim).transpose(0, 1).reshape(-1)
    of_heads = torch.arange(heads).view(groups, -1).t().reshape(-1)
    if module.startswith(("in_proj_qkv", "conv1d")):
        return torch.cat((value[:first], value[first:][rows]))
    if module.startswith("in_proj_z"):
        return value[rows]
    if module.startswith("out_proj"):
        return value[:, rows]
    return value if module.startswith("norm") else value[of_heads]


def _falcon_scaled(name: str, value: torch.Tensor, config: Any) -> torch.Tensor:
    read, (gate, down) = config.attention_in_multiplier, config.mlp_multipliers
    factors = {
        "down_proj": down, "gate_proj": gate, "k_proj": config.key_multiplier * read, "q_proj": read, "v_proj": read,
        "o_proj": config.attention_out_multiplier, "out_proj": config.ssm_out_multiplier,
        "lm_head": config.lm_head_multiplier, "embed_tokens": config.embedding_multiplier,
    }  # fmt: skip
    for part, factor in factors.items():
        if part in name.split("."):
            return value * factor
    if not name.startswith("in_proj"):
        return value
    inner, states = config.mamba_d_ssm, config.mamba_n_groups * config.mamba_d_state
    widths = (inner, inner, states, states, config.mamba_n_heads)
    rows = [torch.full((width, 1), each) for width, each in zip(widths, config.ssm_multipliers, strict=True)]
    return value * config.ssm_in_multiplier * torch.cat(rows)


def _expert_tensors(
    name: str, values: np.ndarray, arch: str, experts: Experts
) -> Iterator[tuple[str, np.ndarray]]:
    """The tensor of all experts of a layer, in transformers' layout, as GGUF's."""
    layer, kind = name.split(".")[2], name.rpartition(".")[2]
    is_bias = kind.endswith("_bias")
    if arch == "gpt-oss" and not is_bias:
        values = values.swapaxes(1, 2)
    parts = {"up" if kind == "up_proj" else "down": values}
    if kind.startswith("gate_up"):
        half = values.shape[1] // 2
        turns = (slice(0, None, 2), slice(1, None, 2))
        halves = (slice(0, half), slice(half, None))
        gate, up = (values[:, at] for at in (turns if arch == "gpt-oss" else halves))
        parts = {"gate": gate, "up": up}
        if experts == "gate_up":
            parts = {"gate_up": np.concatenate((gate, up), 1)}
    for part, tensor in parts.items():
        suffix = "bias" if is_bias else "weight"
        if experts == "alone":
            yield from ((f"blk.{layer}.ffn_{part}.{n}.{suffix}", one) for n, one in enumerate(tensor))
        else:
            yield f"blk.{layer}.ffn_{part}_exps.{suffix}", np.ascontiguousarray(tensor)


def interleave(values: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows a0 a1 .. b0 b1 .. of each head to a0 b0 a1 b1 .., as llama.cpp's converter does."""
    half = values.shape[0] // num_heads // 2
    return values.reshape(num_heads, 2, half, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def _add_sizes(writer: gguf.GGUFWriter, model: Any, arch: str) -> None:
    config = model.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    if arch.startswith("nemotron_h"):
        _add_nemotron(writer, config, arch)
        return
    if arch in ("lfm2", "lfm2moe"):
        attends = [kind == "full_attention" for kind in config.layer_types]
        writer.add_head_count_kv([config.num_key_value_heads if each else 0 for each in attends])
        first = model.model.layers[0].feed_forward
        writer.add_feed_forward_length((first.w1 if hasattr(first, "w1") else first.gate_proj).out_features)
        if arch == "lfm2moe":
            _add_experts(writer, config, arch)
            writer.add_expert_feed_forward_length(config.moe_intermediate_size)
            writer.add_leading_dense_block_count(config.num_dense_layers)
            writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
            writer.add_expert_weights_scale(config.routed_scaling_factor)
        writer.add_shortconv_l_cache(config.conv_L_cache)
        writer.add_layer_norm_rms_eps(config.norm_eps)
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
        writer.add_vocab_size(config.vocab_size)
        return
    if arch == "granitehybrid":
        attends = [kind in ("attention", "full_attention") for kind in config.layer_types]
        writer.add_head_count_kv([config.num_key_value_heads if each else 0 for each in attends])
    else:
        writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_feed_forward_length(config.intermediate_size)
    if arch == "cohere2":
        writer.add_layer_norm_eps(config.layer_norm_eps)
    else:
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if arch != "phi3":
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    if arch in ("llama", "phi3"):
        writer.add_rope_dimension_count(int(head_dim * (rope.get("partial_rotary_factor") or 1.0)))
    _add_family(writer, config, arch)
    _add_experts(writer, config, arch)


def _add_family(writer: gguf.GGUFWriter, config: Any, arch: str) -> None:
    """What the converter writes for one family only."""
    if arch in RECURRENT:
        _add_recurrent(writer, config, arch)
    if arch in ("granite", "granitehybrid"):
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_logit_scale(config.logits_scaling)
    if arch in ("gemma2", "gemma3", "cohere2"):
        writer.add_sliding_window(config.sliding_window)
    if arch == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if arch == "cohere2":
        writer.add_logit_scale(config.logit_scale)
    rope = config.rope_parameters
    if arch == "phi3" and rope["rope_type"] == "longrope":
        original = config.original_max_position_embeddings
        factor = config.max_position_embeddings / original
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(factor) / math.log(original)))
        for length in ("long", "short"):
            factors = np.array(rope[f"{length}_factor"], dtype=np.float32)
            writer.add_tensor(f"rope_factors_{length}.weight", factors)


def _add_recurrent(writer: gguf.GGUFWriter, config: Any, arch: str) -> None:
    if arch.startswith("qwen3"):
        writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
        writer.add_ssm_state_size(config.linear_key_head_dim)
        writer.add_ssm_group_count(config.linear_num_key_heads)
        writer.add_ssm_time_step_rank(config.linear_num_value_heads)
        writer.add_ssm_inner_size(config.linear_value_head_dim * config.linear_num_value_heads)
        interval = config.layer_types.index("full_attention") + 1
        writer.add_uint32(f"{arch}.full_attention_interval", interval)
        writer.add_rope_dimension_sections([11, 11, 10, 0])  # of text: one position for all
        writer.add_rope_dimension_count(
            int(config.head_dim * config.rope_parameters["partial_rotary_factor"])
        )
        return
    writer.add_ssm_conv_kernel(config.mamba_d_conv)
    writer.add_ssm_state_size(config.mamba_d_state)
    writer.add_ssm_group_count(config.mamba_n_groups)
    writer.add_ssm_inner_size(config.mamba_n_heads * config.mamba_d_head)
    writer.add_ssm_time_step_rank(config.mamba_n_heads)
    if arch == "granitehybrid":
        writer.add_rope_scaling_finetuned(config.position_embedding_type == "rope")
        writer.add_expert_shared_feed_forward_length(config.shared_intermediate_size)


def _add_nemotron(writer: gguf.GGUFWriter, config: Any, arch: str) -> None:
    kinds = config.layers_block_type
    inner = config.moe_intermediate_size if arch.endswith("moe") else config.intermediate_size
    writer.add_head_count_kv(
        [config.num_key_value_heads if kind == "full_attention" else 0 for kind in kinds]
    )
    writer.add_feed_forward_length([inner if kind in ("mlp", "moe") else 0 for kind in kinds])
    writer.add_layer_norm_rms_eps(config.layer_norm_epsilon)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    writer.add_ssm_conv_kernel(config.conv_kernel)
    writer.add_ssm_state_size(config.ssm_state_size)
    writer.add_ssm_group_count(config.n_groups)
    writer.add_ssm_inner_size(config.mamba_num_heads * config.mamba_head_dim)
    writer.add_ssm_time_step_rank(config.mamba_num_heads)
    if arch.endswith("moe"):
        _add_experts(writer, config, arch)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        writer.add_expert_shared_feed_forward_length(config.moe_shared_expert_intermediate_size)
        writer.add_expert_weights_norm(config.norm_topk_prob)
        writer.add_expert_weights_scale(config.routed_scaling_factor)
        writer.add_expert_group_count(config.n_group)


def _add_experts(writer: gguf.GGUFWriter, config: Any, arch: str) -> None:
    fields = config.to_dict()
    if not fields.get("num_experts_per_tok"):
        return
    writer.add_expert_count(
        fields.get("num_experts") or fields.get("num_local_experts") or fields["n_routed_experts"]
    )
    writer.add_expert_used_count(config.num_experts_per_tok)
    if arch in ("qwen2moe", "qwen3moe", "qwen35moe", "qwen3next"):
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if arch in ("qwen2moe", "qwen35moe", "qwen3next"):
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    if arch == "olmoe" and config.clip_qkv is not None:
        writer.add_clamp_kqv(config.clip_qkv)
    if arch == "gpt-oss":
        rope = config.rope_parameters
        writer.add_sliding_window(config.sliding_window)
        writer.add_expert_feed_forward_length(config.intermediate_size)
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])


def _add_value(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def _add_tensor(writer: gguf.GGUFWriter, name: str, values: np.ndarray, quant: str) -> None:
    kind = GGMLQuantizationType[quant]
    if values.ndim == 1 or values.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:
        kind = GGMLQuantizationType.F32
    writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)


def quantize(values: np.ndarray, kind: GGMLQuantizationType) -> np.ndarray:
    """Stored bytes [..., row bytes]. The gguf package writes no K format: there the numbers are random, and of
    similar size."""
    if not kind.name.endswith("_K"):
        return gguf.quants.quantize(np.ascontiguousarray(values), kind)
    form, exponent = BLOCK_FORMATS[kind.name], 1 if kind.name == "Q6_K" else 2
    generator = torch.Generator().manual_seed(zlib.crc32(values.tobytes()))
    data = torch.randint(0, 256, (values.size // form.length, form.num_bytes), generator=generator).byte()
    exponents = torch.full(data[:, form.scales][:, 1::2].shape, exponent, dtype=torch.uint8)
    blocks = blocks_of(kind.name, data, exponents, values.size // values.shape[-1])
    return blocks.data.numpy().reshape(*values.shape[:-1], -1)
