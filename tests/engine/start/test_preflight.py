"""A configuration's context is bounded before tables are made for it."""

from dataclasses import replace

import pytest

from holdfast.engine.config import EngineConfig
from holdfast.engine.start.preflight import context_len
from holdfast.models.shapes import published_config


@pytest.mark.parametrize(
    ("positions", "head_dim", "configured", "length"),
    [
        (512, 128, None, 512),
        (1 << 20, 128, None, 1 << 20),
        (16_000_000, 128, None, 1 << 20),
        (16_000_000, 1024, None, 1 << 18),
        (16_000_000, 128, 2_000_000, 2_000_000),
    ],
    ids=["small", "million", "16m", "16m-wide", "16m-configured"],
)
def test_default_context_is_bounded(
    positions: int, head_dim: int, configured: int | None, length: int
) -> None:
    model = replace(published_config("llama-3.1-8b"), max_position_embeddings=positions, head_dim=head_dim)
    assert context_len(EngineConfig(max_model_len=configured), model) == length
