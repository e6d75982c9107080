from typing import Any

import pytest

from holdfast.errors import UnsupportedModel
from holdfast.models.config import parse_config
from support.tiny import SIZES, VOCAB_SIZE, random_config

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
    window = {"sliding_window": 4096} if family == "mistral" else {}
    reference = random_config(family, dtype="bfloat16", tie_word_embeddings=True, rms_norm_eps=1e-5, **window)
    new, old = parse_config(reference.to_dict()), parse_config(old_style(reference.to_dict()))
    assert new == old
    assert new.family == family
    assert new.torch_dtype == "bfloat16"
    assert new.rms_norm_eps == 1e-5
    assert (new.vocab_size, new.hidden_size, new.intermediate_size) == (VOCAB_SIZE, 64, 160)
    assert (new.num_layers, new.num_heads, new.num_kv_heads) == (2, 4, 2)
    assert new.head_dim == (32 if family == "qwen3" else 16)
    assert new.tie_word_embeddings
    assert (new.qkv_bias, new.qk_norm) == (family == "qwen2", family == "qwen3")
    assert not new.o_bias and not new.mlp_bias
    assert new.layer_windows == ((4096, 4096) if family == "mistral" else (None, None))
    assert hash(new) == hash(old)


def test_biases_by_family() -> None:
    llama = parse_config(random_config("llama", attention_bias=True, mlp_bias=True).to_dict())
    assert (llama.qkv_bias, llama.o_bias, llama.mlp_bias) == (True, True, True)
    qwen3 = parse_config(random_config("qwen3", attention_bias=True).to_dict())
    assert (qwen3.qkv_bias, qwen3.o_bias, qwen3.mlp_bias) == (True, True, False)


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_windows_by_layer(family: str) -> None:
    four = {"num_hidden_layers": 4, "sliding_window": 32}
    used = random_config(family, **four, use_sliding_window=True, max_window_layers=2).to_dict()
    assert parse_config(used).layer_windows == (None, None, 32, 32)
    assert parse_config(old_style(dict(used))).layer_windows == (None, None, 32, 32)
    unused = random_config(family, **four).to_dict()
    assert parse_config(unused).layer_windows == (None,) * 4
    mixed = ["sliding_attention", "full_attention"] * 2
    typed = random_config(family, **four, use_sliding_window=True, layer_types=mixed).to_dict()
    assert parse_config(typed).layer_windows == (32, None, 32, None)
    mistral = random_config("mistral", sliding_window=None).to_dict()
    assert parse_config(mistral).layer_windows == (None, None)
    with pytest.raises(UnsupportedModel, match="sliding_window"):
        parse_config(unused | {"layer_types": mixed})


def test_stop_ids_of_both_files_are_merged() -> None:
    fields = random_config("llama", eos_token_id=[5, 6]).to_dict()
    assert parse_config(fields).eos_token_ids == (5, 6)
    assert parse_config(fields, {"eos_token_id": [7, 5]}).eos_token_ids == (5, 6, 7)
    assert parse_config(fields | {"eos_token_id": None}, {"eos_token_id": 9}).eos_token_ids == (9,)
    assert parse_config(fields | {"bos_token_id": None}).bos_token_id is None


def test_auto_map_is_ignored() -> None:
    fields = random_config("llama").to_dict()
    assert parse_config(fields | {"auto_map": {"AutoModel": "evil.Model"}}) == parse_config(fields)


def test_parameter_count_matches_transformers() -> None:
    config = parse_config(random_config("llama", tie_word_embeddings=True).to_dict())
    attention = 64 * 16 * (4 + 2 + 2 + 4)
    assert config.num_parameters == 2 * (attention + 3 * 64 * 160) + VOCAB_SIZE * 64


@pytest.mark.parametrize(
    "key",
    ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
     "max_position_embeddings"],
)  # fmt: skip
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "12", float("nan"), 10**30, [3], {}])
def test_out_of_range_sizes_are_refused(key: str, value: object) -> None:
    with pytest.raises(UnsupportedModel, match=key):
        parse_config(random_config("llama").to_dict() | {key: value})


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
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"hidden_act": "gelu"}, "silu"),
        ({"hidden_act": ["silu"]}, "silu"),
        (
            {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]},
            "LlamaForCausalLM, MistralForCausalLM",
        ),
        ({"model_type": "granitemoe"}, "mixture of experts"),
        ({"model_type": None}, "not given"),
        ({"model_type": ["llama"]}, "model_type"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
        ({"architectures": "LlamaForCausalLM"}, "architectures"),
        ({"num_experts": 8}, "mixture of experts"),
        ({"quantization_config": {"quant_method": "awq"}}, "awq"),
        ({"quantization_config": []}, "quantised"),
        ({"eos_token_id": VOCAB_SIZE}, "eos_token_id"),
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
        parse_config(random_config("llama").to_dict() | changes)


FAMILY_FIELDS: dict[str, dict[str, Any]] = {
    "gemma2": SIZES | {"model_type": "gemma2", "head_dim": 32},
    "gemma3_text": SIZES | {"model_type": "gemma3_text", "head_dim": 32},
    "phi3": SIZES | {"model_type": "phi3", "partial_rotary_factor": 0.5},
    "smollm3": SIZES | {"model_type": "smollm3"},
    "granite": SIZES | {"model_type": "granite"},
    "cohere2": SIZES | {"model_type": "cohere2"},
    "nemotron_h": SIZES
    | {"model_type": "nemotron_h", "hybrid_override_pattern": "M-MM*E", "n_routed_experts": 4},
}
LONG = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}


@pytest.mark.parametrize(
    ("family", "changes", "said"),
    [
        ("gemma2", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar"),
        ("gemma2", {"attn_logit_softcapping": -1.0}, "attn_logit_softcapping"),
        ("gemma2", {"final_logit_softcapping": "30"}, "final_logit_softcapping"),
        ("gemma2", {"sliding_window": None}, "sliding_window"),
        ("gemma2", {"hidden_activation": "relu"}, "gelu_pytorch_tanh"),
        ("gemma2", {"use_bidirectional_attention": True}, "sees no later tokens"),
        ("gemma2", {"layer_types": ["full_attention"]}, "a list of 2 names"),
        ("gemma2", {"layer_types": ["full_attention", "chunked_attention"]}, "sliding_attention"),
        ("gemma3_text", {"rope_local_base_freq": 0}, "rope_local_base_freq"),
        ("gemma3_text", {"rope_parameters": {"sliding_attention": 3}}, "an object for sliding_attention"),
        (
            "gemma3_text",
            {"rope_parameters": {"sliding_attention": {"rope_type": "yarn"}}},
            "default in layers",
        ),
        ("gemma3_text", {"model_type": "gemma3"}, "text_config"),
        ("phi3", {"partial_rotary_factor": 0.01}, "even number"),
        ("phi3", {"rope_scaling": LONG | {"long_factor": [1.0]}}, "a list of 4 numbers"),
        ("phi3", {"rope_scaling": LONG | {"short_factor": [0.0] * 4}}, "short_factor"),
        ("smollm3", {"no_rope_layers": [1]}, "zeros and ones"),
        ("granite", {"residual_multiplier": float("nan")}, "residual_multiplier"),
        ("cohere2", {"use_qk_norm": True}, "use_qk_norm"),
        ("cohere2", {"layer_norm_eps": 0}, "rms_norm_eps"),
        ("nemotron_h", {"hybrid_override_pattern": "-M"}, "a MLP or nothing after each"),
        ("nemotron_h", {"hybrid_override_pattern": "M-E"}, "a MLP or nothing after each"),
        ("nemotron_h", {"hybrid_override_pattern": "Mx"}, "a MLP or nothing after each"),
        ("nemotron_h", {"hybrid_override_pattern": None}, "hybrid_override_pattern"),
        ("nemotron_h", {"moe_latent_size": 8}, "moe_latent_size"),
        ("nemotron_h", {"mlp_hidden_act": "silu"}, "relu2"),
        ("nemotron_h", {"n_group": 2}, "topk_group"),
        ("nemotron_h", {"n_shared_experts": 2}, "n_shared_experts"),
    ],
)
def test_bad_fields_of_other_families_are_refused(family: str, changes: dict[str, object], said: str) -> None:
    parse_config(FAMILY_FIELDS[family])
    with pytest.raises(UnsupportedModel, match=said):
        parse_config(FAMILY_FIELDS[family] | changes)


def test_longrope_is_chosen_by_the_maximum_length() -> None:
    fields = FAMILY_FIELDS["phi3"] | {"rope_scaling": LONG, "original_max_position_embeddings": 128}
    config = parse_config(fields)
    assert [config.for_length(n).rope_scaling.chosen for n in (64, 128, 129)] == ["short", "short", "long"]  # type: ignore[union-attr]
    plain = parse_config(FAMILY_FIELDS["phi3"])
    assert plain.for_length(4096) is plain


def test_layers_differ_as_the_family_says() -> None:
    gemma = parse_config(FAMILY_FIELDS["gemma3_text"] | {"num_hidden_layers": 7, "sliding_window": 9})
    assert gemma.layer_windows == (9, 9, 9, 9, 9, None, 9)
    assert gemma.rope_kinds == ("local", "global")
    smollm = parse_config(FAMILY_FIELDS["smollm3"] | {"num_hidden_layers": 5})
    assert smollm.layer_ropes == ("global", "global", "global", "none", "global")
    nemotron = parse_config(FAMILY_FIELDS["nemotron_h"])
    assert nemotron.layer_kinds == ("recurrent", "recurrent", "recurrent", "attention")
    assert nemotron.bare_layers == (1, 2) and nemotron.dense_layers == (0, 1, 2)
    assert [nemotron.stored_layer(layer, is_mlp=False) for layer in range(4)] == [0, 2, 3, 4]
    assert not gemma.is_llama_like and parse_config(random_config("qwen3").to_dict()).is_llama_like
