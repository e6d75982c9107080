"""GGUF's names for tensors and metadata, translated to Hugging Face's.

Metadata becomes the fields of a config.json and goes through `parse_config`, so the same rules hold
for a GGUF file.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from holdfast.errors import BadWeights, UnsupportedModel
from holdfast.models.config import Block, DecoderConfig, parse_config
from holdfast.models.families import FamilyName
from holdfast.models.fields import Fields, read_float, read_int, refuse
from holdfast.models.gguf.reader import GgufFile
from holdfast.models.rope import FactorsRope

_FAMILIES: dict[str, FamilyName] = {  # by GGUF's name of the architecture
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "granite": "granite",
    "smollm3": "smollm3",
    "phi3": "phi3",
    "olmo2": "olmo2",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
    "cohere2": "cohere2",
}
# The rows of q and k are stored in pairs: the converter turned the halves of a head into pairs.
PERMUTED = frozenset({"llama", "granite", "smollm3"})
_MODULES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_NORM_MODULES = {  # of layers with norms after attention and MLP
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_KEYS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "layer_norm_eps": "attention.layer_norm_epsilon",
    "rope_theta": "rope.freq_base",
    "rope_local_base_freq": "rope.freq_base_swa",
    "vocab_size": "vocab_size",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "attention_multiplier": "attention.scale",
    "logits_scaling": "logit_scale",
    "logit_scale": "logit_scale",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
_LARGEST_GEMMA = {"gemma2": 46, "gemma3": 62}  # layers of the models whose scale is not the head's


def gguf_name(name: str, block: Block = "pre") -> str:
    """The GGUF name of the tensor with this Hugging Face name, in layers of this form."""
    modules = _MODULES if block in ("pre", "parallel") else _MODULES | _NORM_MODULES
    module, _, kind = name.rpartition(".")
    if module in modules:
        return f"{modules[module]}.{kind}"
    _, _, layer, module = module.split(".", 3)
    return f"blk.{layer}.{modules[module]}.{kind}"


def architecture(file: GgufFile) -> str:
    """The file's architecture, if Holdfast runs it."""
    name = file.metadata.get("general.architecture")
    if name not in _FAMILIES:
        raise UnsupportedModel(
            f"{file.path.name} has the architecture {name!r}; Holdfast runs {', '.join(_FAMILIES)} GGUF files "
            "(Mistral files are llama files)"
        )
    return str(name)


def gguf_config(file: GgufFile) -> DecoderConfig:
    """The configuration of the decoder in a GGUF file."""
    arch = architecture(file)
    prefix = arch + "."
    own = {key.removeprefix(prefix): value for key, value in file.metadata.items() if key.startswith(prefix)}
    if own.get("expert_count") not in (None, 0):
        raise UnsupportedModel(
            f"{file.path.name} is a mixture of experts, which Holdfast reads from safetensors only"
        )
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise BadWeights(f"{file.path.name} has no token_embd.weight; it is not a complete language model")
    fields: dict[str, object] = {key: own[theirs] for key, theirs in _KEYS.items() if theirs in own}
    fields.setdefault("vocab_size", embedding.shape[0])
    fields.setdefault("num_key_value_heads", None)
    fields.setdefault("head_dim", None)
    fields |= _family_fields(arch, own) | _token_fields(file.metadata)
    fields["tie_word_embeddings"] = "output.weight" not in file.tensors
    fields["rope_scaling"] = _rope_fields(own)
    if arch == "phi3":
        fields |= _phi3_fields(file, own, fields)
    config = parse_config(fields)
    _require_whole_heads(own, config)
    return replace(_with_tensors(file, config), norm_offset=0.0)  # the converter has added it


def _family_fields(arch: str, own: Fields) -> dict[str, object]:
    window = own.get("attention.sliding_window")
    if arch == "llama" and window:
        return {"model_type": "mistral", "sliding_window": window}
    fields: dict[str, object] = {"model_type": _FAMILIES[arch]}
    if arch in ("gemma2", "gemma3", "cohere2", "phi3") and window:
        fields["sliding_window"] = window
    if arch in _LARGEST_GEMMA:
        fields["query_pre_attn_scalar"] = _gemma_scalar(arch, own)
    return fields


def _gemma_scalar(arch: str, own: Fields) -> int:
    """What the scores are divided by, squared. The file does not say it: it is the head's size, in
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
    """One divisor for each rotary frequency."""
    tensor = file.tensors.get(name)
    if tensor is None or tensor.shape != (count,) or tensor.stored.name != "F32":
        found = "missing" if tensor is None else f"{tensor.stored.name} {tensor.shape}"
        raise BadWeights(f"{name} is {found}; expected F32, one a frequency")
    factors: list[float] = np.frombuffer(file.raw(name), dtype="<f4").tolist()
    for each in factors:
        read_float({name: each}, name, 0.0, 1e6)
    return factors


def _token_fields(metadata: Mapping[str, object]) -> dict[str, object]:
    """An answer ends at the end of the text, of the turn, or of the message."""
    ids = [metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot", "eom")]
    return {
        "eos_token_id": [each for each in ids if each is not None],
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
    }


def _rope_fields(own: Fields) -> dict[str, object] | None:
    kind = own.get("rope.scaling.type")
    if kind is None and own.get("rope.scale_linear") not in (None, 1.0):
        return {"rope_type": "linear", "factor": own["rope.scale_linear"]}
    if kind in (None, "none"):
        return None
    rope: dict[str, object] = {"rope_type": kind, "factor": own.get("rope.scaling.factor")}
    if kind == "yarn":
        rope["original_max_position_embeddings"] = own.get("rope.scaling.original_context_length")
        for side in ("beta_fast", "beta_slow"):
            rope[side] = own.get(f"rope.scaling.yarn_{side}")
        for key, plain in (("yarn_ext_factor", 1.0), ("attn_factor", 1.0), ("yarn_attn_factor", 1.0)):
            if own.get(f"rope.scaling.{key}") not in (None, plain):
                raise refuse(f"rope.scaling.{key}", own[f"rope.scaling.{key}"], f"{plain:g} or nothing")
        if own.get("rope.scaling.yarn_log_multiplier") not in (None, 0.0):
            raise refuse("rope.scaling.yarn_log_multiplier", "a number", "nothing")
    return rope


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
    config = replace(
        config,
        qkv_bias=config.qkv_bias or has("blk.0.attn_q.bias") or has("blk.0.attn_qkv.bias"),
        o_bias=has("blk.0.attn_output.bias"),
        mlp_bias=has("blk.0.ffn_down.bias"),
    )
    if not has("rope_freqs.weight"):
        return config
    if config.rope_scaling is not None:
        raise UnsupportedModel(f"{file.path.name} scales its rotary positions twice")
    factors = _read_factors(file, "rope_freqs.weight", config.head_dim // 2)
    return replace(config, rope_scaling=FactorsRope(tuple(factors)))
