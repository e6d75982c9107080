"""Writes a transformers model as the GGUF file llama.cpp's converter would: `write_gguf(path,
model, quant)`.

Query and key rows of llama models and their like are interleaved, norms of Gemma models have 1 added,
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
}


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
    writer = gguf.GGUFWriter(path, arch)
    _add_sizes(writer, model, arch)
    for key, value in (metadata or {}).items():
        _add_value(writer, key, value)
    architecture = getattr(gguf.MODEL_ARCH, arch.upper().replace("-", "_"))
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor.detach().float().numpy()
        if ".mlp.experts." in name:
            for stored_name, part in _expert_tensors(name, values, arch, experts):
                _add_tensor(writer, stored_name, part, quant)
            continue
        if arch.startswith("gemma") and name.endswith("norm.weight"):
            values = values + 1
        if arch in ("llama", "granite", "smollm3") and ("q_proj" in name or "k_proj" in name):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            values = interleave(values, heads)
        name = name.replace(".mlp.gate.", ".block_sparse_moe.gate.") if arch == "llama" else name
        name = f"{name}.weight" if name.endswith(".sinks") else name
        values = values[:, 0] if name.endswith("conv.conv.weight") else values
        values = values[0] if name.endswith("shared_expert_gate.weight") else values
        stored_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored_name is not None, name
        is_router = ".ffn_gate_inp" in stored_name  # the converter keeps routers in F32
        _add_tensor(writer, stored_name, values, "F32" if is_router else quant)
    for name, values in (tensors or {}).items():
        writer.add_tensor(name, values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _expert_tensors(
    name: str, values: np.ndarray, arch: str, experts: Experts
) -> Iterator[tuple[str, np.ndarray]]:
    """The tensor of all experts of a layer, in transformers' layout, as GGUF's."""
    layer, kind = name.split(".")[2], name.rpartition(".")[2]
    is_bias = kind.endswith("_bias")
    if arch == "gpt-oss" and not is_bias:
        values = values.swapaxes(1, 2)
    parts = {"down": values}
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
    if arch == "lfm2":
        attends = [kind == "full_attention" for kind in config.layer_types]
        writer.add_head_count_kv([config.num_key_value_heads if each else 0 for each in attends])
        writer.add_feed_forward_length(model.model.layers[0].feed_forward.w1.out_features)
        writer.add_shortconv_l_cache(config.conv_L_cache)
        writer.add_layer_norm_rms_eps(config.norm_eps)
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
        writer.add_vocab_size(config.vocab_size)
        return
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
    if arch == "granite":
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


def _add_experts(writer: gguf.GGUFWriter, config: Any, arch: str) -> None:
    fields = config.to_dict()
    if not fields.get("num_experts_per_tok"):
        return
    writer.add_expert_count(fields.get("num_experts") or fields["num_local_experts"])
    writer.add_expert_used_count(config.num_experts_per_tok)
    if arch in ("qwen2moe", "qwen3moe"):
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if arch == "qwen2moe":
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
