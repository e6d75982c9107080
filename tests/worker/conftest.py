"""A tiny model under a model runner, on both CPU backends and in two dtypes."""

from pathlib import Path

import pytest
import torch

from holdfast.models.checkpoint import open_checkpoint
from holdfast.models.decoder import Decoder
from holdfast.models.weight_loader import load_decoder
from holdfast.numerics.backends.select_backend import open_backend
from holdfast.numerics.ops import Backend
from holdfast.numerics.settings import apply_numeric_settings
from holdfast.worker.kv_store import KVStore
from holdfast.worker.model_runner import ModelRunner

NUM_PAGES = 24


@pytest.fixture(
    scope="module",
    params=[("c", torch.float32), ("torch", torch.float32), ("c", torch.bfloat16)],
    ids=["c", "torch", "c-bf16"],
)
def decoder(request: pytest.FixtureRequest, tiny_llama: Path) -> Decoder:
    path, dtype = request.param
    backend = open_backend(dtype, kernels=path, num_threads=apply_numeric_settings().threads)
    return load_decoder(open_checkpoint(tiny_llama), backend, dtype, max_len=256)


@pytest.fixture
def store(decoder: Decoder) -> KVStore:
    return KVStore(NUM_PAGES, decoder.config, decoder.backend)


@pytest.fixture
def runner(decoder: Decoder, store: KVStore) -> ModelRunner:
    return ModelRunner(decoder, store)


@pytest.fixture(params=["c", "torch"])
def backend(request: pytest.FixtureRequest) -> Backend:
    return open_backend(torch.float32, kernels=request.param, num_threads=apply_numeric_settings().threads)
