"""The batch sizes that passes are padded to, and those that are certified."""

import hashlib

import pytest
import torch

from holdfast.numerics.backends.select_backend import open_backend
from holdfast.numerics.batch_sizes import cpu_batch_sizes, padded_batch_sizes, padded_head_size


def test_cpu_batch_sizes_waste_an_eighth_at_most() -> None:
    for largest in (32, 100, 512, 2048):
        sizes = cpu_batch_sizes(largest)
        assert sizes[-1] == largest and list(sizes) == sorted(set(sizes))
        for num_tokens in range(64, largest + 1):
            assert next(size for size in sizes if size >= num_tokens) < num_tokens * 9 / 8


def test_a_head_is_padded_to_a_size_of_passes() -> None:
    for num_tokens in range(1, 513):
        padded = padded_head_size(num_tokens)
        assert num_tokens <= padded < num_tokens + 16 and padded in padded_batch_sizes(512)


def test_largest_batch_size_is_the_largest_pass() -> None:
    assert padded_batch_sizes(5000)[-1] == 5000 and padded_batch_sizes(100)[-1] == 96
    for max_tokens, largest in ((512, 512), (4096, 4096), (600, 600), (300, 288)):
        assert padded_batch_sizes(max_tokens)[-1] == largest


@pytest.mark.parametrize("kernels", ["c", "torch"])
def test_certified_sizes_of_a_cpu_are_as_before(kernels: str) -> None:
    """Passes are padded to them: others would change the bits of ordinary answers."""
    can = open_backend(torch.float32, kernels=kernels, num_threads=1).can  # type: ignore[arg-type]
    assert can.sizes(32) == (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 20, 24, 28, 32)
    assert can.layer_sizes == (1, 2, 16, 32)
    every = [can.sizes(most) for most in range(1, 2049)]
    assert hashlib.sha256(repr(every).encode()).hexdigest()[:16] == "ab3c2c2b70720750"


def test_certified_sizes_of_a_gpu_are_as_before() -> None:
    from holdfast.numerics.backends.triton.backend import TritonBackend

    on_gpu, interpreted = (
        TritonBackend(torch.bfloat16, torch.device(one), {}, False).can for one in ("cuda", "cpu")
    )
    every = [on_gpu.sizes(most) for most in range(1, 16385)]
    assert hashlib.sha256(repr(every).encode()).hexdigest()[:16] == "e2152979b87eab4b"
    assert interpreted.is_interpreted and interpreted.sizes(64) == (1, 2, 8, 64, 256, 512)
