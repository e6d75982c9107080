"""GGUF's names for tensors and metadata, translated to Hugging Face's.

Metadata becomes the fields of a config.json and goes through `parse_config`, so the same rules hold
for a GGUF file.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from holdfast.errors import BadWeights, UnsupportedModel
from holdfast.models.config import DecoderConfig, parse_config
from holdfast.models.fields import Fields, read_float, refuse
from holdfast.models.gguf.reader import GgufFile
from holdfast.models.rope import FactorsRope

_ARCHITECTURES = ("llama", "qwen2", "qwen3")
_MODULES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
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
    "rope_theta": "rope.freq_base",
    "vocab_size": "vocab_size",
}


def gguf_name(name: str) -> str:
    """The GGUF name of the tensor with this Hugging Face name."""
    module, _, kind = name.rpartition(".")
    if module in _MODULES:
        return f"{_MODULES[module]}.{kind}"
    _, _, layer, module = module.split(".", 3)
    return f"blk.{layer}.{_MODULES[module]}.{kind}"


def architecture(file: GgufFile) -> str:
    """The file's architecture, if Holdfast runs it."""
    name = file.metadata.get("general.architecture")
    if name not in _ARCHITECTURES:
        raise UnsupportedModel(
            f"{file.path.name} has the architecture {name!r}; Holdfast runs {', '.join(_ARCHITECTURES)} GGUF files "
            "(Mistral files are llama files)"
        )
    return str(name)


def gguf_config(file: GgufFile) -> DecoderConfig:
    """The configuration of the decoder in a GGUF file."""
    arch = architecture(file)
    prefix = arch + "."
    own = {key.removeprefix(prefix): value for key, value in file.metadata.items() if key.startswith(prefix)}
    if own.get("expert_count") not in (None, 0):
        raise UnsupportedModel(f"{file.path.name} is a mixture of experts; Holdfast runs dense decoders only")
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
    config = parse_config(fields)
    _require_whole_heads(own, config)
    return _with_tensors(file, config)


def _family_fields(arch: str, own: Fields) -> dict[str, object]:
    window = own.get("attention.sliding_window")
    if arch == "llama" and window:
        return {"model_type": "mistral", "sliding_window": window}
    return {"model_type": arch}


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
    for key in ("rope.dimension_count", "attention.value_length"):
        if own.get(key) not in (None, config.head_dim):
            raise refuse(key, own[key], f"the head's size, {config.head_dim}")


def _with_tensors(file: GgufFile, config: DecoderConfig) -> DecoderConfig:
    """Apply what GGUF expresses by tensors: biases, and one divisor for each rotary frequency."""
    has = file.tensors.__contains__
    config = replace(
        config,
        qkv_bias=config.qkv_bias or has("blk.0.attn_q.bias"),
        o_bias=has("blk.0.attn_output.bias"),
        mlp_bias=has("blk.0.ffn_down.bias"),
    )
    if not has("rope_freqs.weight"):
        return config
    if config.rope_scaling is not None:
        raise UnsupportedModel(f"{file.path.name} scales its rotary positions twice")
    tensor = file.tensors["rope_freqs.weight"]
    if tensor.shape != (config.head_dim // 2,) or tensor.stored.name != "F32":
        raise BadWeights(
            f"rope_freqs.weight is {tensor.stored.name} {tensor.shape}; expected F32, one a frequency"
        )
    factors = np.frombuffer(file.raw(tensor.name), dtype="<f4").tolist()
    for each in factors:
        read_float({"rope_freqs.weight": each}, "rope_freqs.weight", 0.0, 1e6)
    return replace(config, rope_scaling=FactorsRope(tuple(factors)))
