"""The free memory that the engines of a server share is what torch sees."""

import pytest
import torch

from holdfast.worker.device import unused_gpu_bytes

NEAR = 1 << 30  # another process may take or free some


def test_driver_says_what_torch_says_and_leaves_its_context(device: torch.device) -> None:
    if device.type != "cuda":
        pytest.skip("there is no CUDA device")
    before = torch.ones(1 << 20, device=device)
    free, _ = torch.cuda.mem_get_info(device)
    assert abs(unused_gpu_bytes(str(device)) - free) < NEAR
    assert float(before.sum()) == 1 << 20
