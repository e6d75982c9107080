import numpy as np
import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from holdfast.errors import UnsupportedModel
from holdfast.models.config import parse_config
from holdfast.models.rope import rope_frequencies
from support.tiny import random_config

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SCALINGS = [
    {},
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "linear", "factor": 3},
    {"rope_type": "llama3", **LLAMA3, "original_max_position_embeddings": 8192},
    {"rope_type": "llama3", **LLAMA3, "factor": 32, "original_max_position_embeddings": 64},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
    {
        "rope_type": "yarn",
        "factor": 40,
        "original_max_position_embeddings": 4096,
        "beta_fast": 16,
        "beta_slow": 2,
    },
    {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 512, "attention_factor": 1.3},
    {
        "rope_type": "yarn",
        "factor": 8.0,
        "mscale": 0.7,
        "mscale_all_dim": 1.1,
        "original_max_position_embeddings": 64,
    },
    {"rope_type": "yarn", "factor": 8.0, "mscale": 0.7, "original_max_position_embeddings": 64},
    {"rope_type": "yarn", "factor": 5.0, "truncate": False, "original_max_position_embeddings": 2048},
    {"rope_type": "yarn", "factor": 4.0},
    {"rope_type": "yarn", "factor": 0.5, "original_max_position_embeddings": 8192},
]


@pytest.mark.parametrize("theta", [10000.0, 500000.0, 1000000])
@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda each: "-".join(map(str, each.values())) or "default")
def test_frequencies_are_those_of_transformers(scaling: dict, theta: float) -> None:
    reference = random_config("llama", head_dim=64, rope_parameters={"rope_theta": theta, **scaling})
    embedding = LlamaRotaryEmbedding(reference)
    new = parse_config(reference.to_dict())
    old = parse_config(
        {key: value for key, value in reference.to_dict().items() if key != "rope_parameters"}
        | {
            "rope_theta": theta,
            "rope_scaling": {("type" if k == "rope_type" else k): v for k, v in scaling.items()},
        }
    )
    assert new == old
    inv_freq, attention = rope_frequencies(new)
    assert inv_freq.dtype == np.float32
    torch.testing.assert_close(torch.from_numpy(inv_freq), embedding.inv_freq, rtol=4 * 2.0**-24, atol=0)
    assert attention == pytest.approx(embedding.attention_scaling, rel=1e-14)


@pytest.mark.parametrize(
    ("rope", "said"),
    [
        ({"rope_type": "dynamic", "factor": 2.0}, "length seen so far"),
        ({"rope_type": "longrope", "factor": 2.0}, "short_factor"),
        ({"type": "mrope"}, "default, linear, llama3, yarn or longrope"),
        ({"rope_type": "linear"}, "factor"),
        ({"rope_type": "linear", "factor": 0}, "factor"),
        ({"rope_type": "linear", "factor": float("nan")}, "factor"),
        ({"rope_type": "linear", "factor": float("inf")}, "factor"),
        ({"rope_type": "linear", "factor": True}, "factor"),
        ({"rope_type": "linear", "type": "yarn", "factor": 2.0}, "has two types"),
        ({"rope_type": ["linear"]}, "default, linear"),
        ({"rope_type": "llama3", "factor": 8.0}, "low_freq_factor"),
        ({"rope_type": "llama3", **LLAMA3, "high_freq_factor": 1.0}, "more than low_freq_factor"),
        ({"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": -1}, "original_max"),
        ({"rope_type": "yarn", "factor": 2.0, "beta_fast": -1}, "beta_fast"),
        ({"rope_type": "yarn", "factor": 2.0, "mscale": -1}, "mscale"),
        ({"rope_type": "yarn", "factor": 2.0, "truncate": "no"}, "truncate"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"full_attention": {"rope_type": "default"}}, "differ by layer"),
        ([1, 2], "an object"),
        ({"rope_theta": 1e30}, "rope_theta"),
        ({"rope_theta": 1}, "rope_theta"),
    ],
)
def test_length_dependent_scaling_is_refused(rope: object, said: str) -> None:
    fields = random_config("llama").to_dict() | {"rope_parameters": rope}
    with pytest.raises(UnsupportedModel, match=said):
        parse_config(fields)


def test_contradictory_theta_is_refused() -> None:
    fields = random_config("llama").to_dict() | {"rope_theta": 5.0, "rope_parameters": {"rope_theta": 6.0}}
    with pytest.raises(UnsupportedModel, match="rope_theta"):
        parse_config(fields)
