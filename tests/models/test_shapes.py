"""Published configurations: their parameter counts, and the GEMMs of their decoders."""

import pytest
import torch

from holdfast.errors import ModelNotFound
from holdfast.models.checkpoint import expected_tensors
from holdfast.models.dummy import DummyCheckpoint, tiny_config
from holdfast.models.shapes import SHAPE_NAMES, gemm_shapes, published_config
from holdfast.models.weight_loader import load_decoder
from holdfast.numerics.backends.select_backend import open_backend

# As published, embeddings included and tied ones counted once.
PARAMETERS = {
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "qwen3-0.6b": 596_049_920,
    "qwen3-30b-a3b": 30_532_122_624,
    "mixtral-8x7b": 46_702_792_704,
    "gpt-oss-20b": 20_914_757_184,
    "olmoe-1b-7b": 6_919_161_856,
    "qwen2.5-1.5b": 1_543_714_304,
    "smollm2-135m": 134_515_008,
}


@pytest.mark.parametrize("name", SHAPE_NAMES)
def test_published_configs_have_the_published_parameter_count(name: str) -> None:
    shapes = expected_tensors(published_config(name)).values()
    assert sum(torch.Size(shape).numel() for shape in shapes) == PARAMETERS[name]


def test_unknown_config_name_is_refused() -> None:
    with pytest.raises(ModelNotFound, match="choose one of llama"):
        published_config("llama-9b")


@pytest.mark.parametrize("changes", [{}, {"attention_bias": True, "mlp_bias": True}])
def test_gemm_shapes_match_the_decoder(changes: dict[str, bool]) -> None:
    config = tiny_config(**changes)
    backend = open_backend(torch.float32, num_threads=1)
    decoder = load_decoder(DummyCheckpoint(config), backend, torch.float32, 32)
    found = {
        (
            one.name.split(".")[-1],
            one.linear.out_features,
            one.linear.in_features,
            one.linear.bias is not None,
        )
        for one in decoder.linears()
    }
    assert found == set(gemm_shapes(config))
