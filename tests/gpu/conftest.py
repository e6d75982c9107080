"""Tests that need a GPU: PYTHONPATH=src python -m pytest -m gpu tests/gpu

Without a GPU they are skipped. To try the tests themselves, HOLDFAST_GPU_TESTS=cpu runs the engine's on a
CPU, and with TRITON_INTERPRET=1 the kernels' in Triton's interpreter, on small shapes.
"""

import os
from pathlib import Path

import pytest
import torch

from holdfast.numerics.backends.select_backend import open_backend
from holdfast.numerics.ops import Backend
from holdfast.numerics.settings import apply_numeric_settings

IS_TRIAL = os.environ.get("HOLDFAST_GPU_TESTS") == "cpu"
HAS_GPU = torch.cuda.is_available()
DTYPES = [torch.bfloat16, torch.float16, torch.float32]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            item.add_marker(pytest.mark.filterwarnings("default"))  # drivers and profilers emit warnings
            if not HAS_GPU and not IS_TRIAL:
                item.add_marker(pytest.mark.skip(reason="there is no CUDA device"))


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if HAS_GPU else torch.device("cpu")


@pytest.fixture(params=DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    found: torch.dtype = request.param
    if not HAS_GPU and found is torch.bfloat16:
        pytest.skip("Triton's interpreter has no bf16")
    return found


@pytest.fixture
def backend(dtype: torch.dtype, device: torch.device) -> Backend:
    if not HAS_GPU and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("without a GPU kernels need TRITON_INTERPRET=1")
    apply_numeric_settings(device=device)
    return open_backend(dtype, kernels="triton", num_threads=1, device=device)
