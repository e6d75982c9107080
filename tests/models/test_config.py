import dataclasses
from typing import Any

import pytest

from holdfast.errors import UnsupportedModel
from holdfast.models.config import DecoderConfig, parse_config
from models.tiny import SIZES, tiny_config

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


def old_style(fields: dict[str, Any]) -> dict[str, Any]:
    """The same configuration with the keys of transformers 4."""
    rope = dict(fields.pop("rope_parameters"))
    fields["rope_theta"] = rope.pop("rope_theta")
    kind = rope.pop("rope_type", "default")
    fields["rope_scaling"] = None if kind == "default" else rope | {"rope_type": kind}
    fields["torch_dtype"] = fields.pop("dtype", None)
    fields.pop("layer_types", None)
    return fields


@pytest.mark.parametrize("family", FAMILIES)
def test_old_and_new_rope_fields_are_equivalent(family: str) -> None:
    reference = tiny_config(family, dtype="bfloat16", tie_word_embeddings=True, rms_norm_eps=1e-5)
    new, old = parse_config(reference.to_dict()), parse_config(old_style(reference.to_dict()))
    assert new == old
    assert new.family == family
    assert new.torch_dtype == "bfloat16"
    assert new.rms_norm_eps == 1e-5
    assert (new.vocab_size, new.hidden_size, new.intermediate_size) == (96, 256, 512)
    assert (new.num_layers, new.num_heads, new.num_kv_heads) == (2, 4, 2)
    assert new.head_dim == (128 if family == "qwen3" else 64)
    assert new.tie_word_embeddings
    assert (new.qkv_bias, new.o_bias, new.mlp_bias, new.qk_norm) == (
        family == "qwen2",
        False,
        False,
        family == "qwen3",
    )
    assert new.layer_windows == ((4096, 4096) if family == "mistral" else (None, None))
    assert hash(new) == hash(old)


def test_biases_by_family() -> None:
    llama = parse_config(tiny_config("llama", attention_bias=True, mlp_bias=True).to_dict())
    assert (llama.qkv_bias, llama.o_bias, llama.mlp_bias) == (True, True, True)
    qwen3 = parse_config(tiny_config("qwen3", attention_bias=True).to_dict())
    assert (qwen3.qkv_bias, qwen3.o_bias, qwen3.mlp_bias) == (True, True, False)


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_windows_by_layer(family: str) -> None:
    four = {"num_hidden_layers": 4, "sliding_window": 32}
    used = tiny_config(family, **four, use_sliding_window=True, max_window_layers=2).to_dict()
    assert parse_config(used).layer_windows == (None, None, 32, 32)
    assert parse_config(old_style(dict(used))).layer_windows == (None, None, 32, 32)
    unused = tiny_config(family, **four).to_dict()
    assert parse_config(unused).layer_windows == (None,) * 4
    mixed = ["sliding_attention", "full_attention"] * 2
    typed = tiny_config(family, **four, use_sliding_window=True, layer_types=mixed).to_dict()
    assert parse_config(typed).layer_windows == (32, None, 32, None)
    with pytest.raises(UnsupportedModel, match="sliding_window"):
        parse_config(unused | {"layer_types": mixed})


def test_mistral_without_sliding_window() -> None:
    assert parse_config(tiny_config("mistral", sliding_window=None).to_dict()).layer_windows == (None, None)


def test_stop_ids_of_both_files_are_merged() -> None:
    fields = tiny_config("llama", eos_token_id=[5, 6]).to_dict()
    assert parse_config(fields).eos_token_ids == (5, 6)
    assert parse_config(fields, {"eos_token_id": [7, 5]}).eos_token_ids == (5, 6, 7)
    assert parse_config(fields | {"eos_token_id": None}, {"eos_token_id": 9}).eos_token_ids == (9,)
    assert parse_config(fields | {"bos_token_id": None}).bos_token_id is None


def test_auto_map_is_ignored() -> None:
    fields = tiny_config("llama").to_dict()
    assert parse_config(fields | {"auto_map": {"AutoModel": "evil.Model"}}) == parse_config(fields)


def test_config_is_immutable() -> None:
    config = parse_config(tiny_config("llama").to_dict())
    assert isinstance(config, DecoderConfig)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.vocab_size = 3  # type: ignore[misc]


def test_parameter_count_matches_transformers() -> None:
    config = parse_config(tiny_config("llama", tie_word_embeddings=True).to_dict())
    attention = 256 * 64 * (4 + 2 + 2 + 4)
    assert config.num_parameters == 2 * (attention + 3 * 256 * 512) + 96 * 256


SIZE_KEYS = [key for key in SIZES if key != "num_key_value_heads"]


@pytest.mark.parametrize("key", SIZE_KEYS)
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "12", float("nan"), 10**30, [3], {}])
def test_out_of_range_sizes_are_refused(key: str, value: object) -> None:
    with pytest.raises(UnsupportedModel, match=key):
        parse_config(tiny_config("llama").to_dict() | {key: value})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_key_value_heads": 3}, "divisor"),
        ({"num_key_value_heads": 0}, "num_key_value_heads"),
        ({"head_dim": 63}, "even"),
        ({"head_dim": 1 << 20}, "head_dim"),
        ({"head_dim": None, "num_attention_heads": 6}, "multiple"),
        (
            {"hidden_size": 1 << 17, "intermediate_size": 1 << 20, "num_hidden_layers": 1024},
            "parameters; at most",
        ),
        ({"rms_norm_eps": 0}, "rms_norm_eps"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"hidden_act": "gelu"}, "silu"),
        ({"hidden_act": ["silu"]}, "silu"),
        (
            {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]},
            "LlamaForCausalLM, MistralForCausalLM",
        ),
        ({"model_type": "mixtral"}, "mixture of experts"),
        ({"model_type": "qwen3_moe"}, "mixture of experts"),
        ({"model_type": None}, "not given"),
        ({"model_type": ["llama"]}, "model_type"),
        ({"model_type": 3}, "model_type"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
        ({"architectures": "LlamaForCausalLM"}, "architectures"),
        ({"num_experts": 8}, "mixture of experts"),
        ({"quantization_config": {"quant_method": "awq"}}, "awq"),
        ({"quantization_config": {"quant_method": "fp8"}}, "fp8"),
        ({"quantization_config": []}, "quantised"),
        ({"eos_token_id": 96}, "eos_token_id"),
        ({"eos_token_id": [1, -2]}, "eos_token_id"),
        ({"eos_token_id": "2"}, "eos_token_id"),
        ({"bos_token_id": True}, "bos_token_id"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings"),
        ({"attention_bias": "yes"}, "attention_bias"),
        ({"dtype": "float8_e4m3fn"}, "float8"),
        ({"dtype": 16}, "dtype"),
    ],
)
def test_contradictory_fields_are_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(UnsupportedModel, match=said):
        parse_config(tiny_config("llama").to_dict() | changes)


def test_empty_config_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="not given"):
        parse_config({})
