"""Helpers of the kernels' tests: random tensors, comparison with fp64, rows in other batches."""

import torch
from torch import Tensor

HAS_GPU = torch.cuda.is_available()  # without a GPU: Triton's interpreter, on small shapes

# About one unit in the last place of a rounded result, and the fp32 sums before it.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 9e-3, torch.float16: 1.5e-3}


def random(
    *shape: int, dtype: torch.dtype, device: torch.device, seed: int = 0, scale: float = 1.0
) -> Tensor:
    generator = torch.Generator(device).manual_seed(seed)
    return (torch.randn(*shape, generator=generator, device=device) * scale).to(dtype)


def assert_near(got: Tensor, exact: Tensor, dtype: torch.dtype) -> None:
    """The error relative to the largest number. `dtype`: what the result or its inputs were rounded to."""
    scale = exact.abs().max().clamp(min=1e-3)
    error = ((got.double() - exact.double()).abs().max() / scale).item()
    assert error < TOLERANCE[dtype], error


def bits(x: Tensor) -> Tensor:
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    return x.contiguous().view(integers[x.element_size()])


def same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(bits(a), bits(b))


def selections(num_rows: int) -> list[list[int]]:
    """Ways to select rows: alone, shuffled, a few of them, one twice."""
    shuffled = torch.randperm(num_rows, generator=torch.Generator().manual_seed(num_rows)).tolist()
    some = sorted({0, 1, num_rows // 2, num_rows - 1})
    return [*([row] for row in some), shuffled, shuffled[: num_rows // 3 + 1], [num_rows - 1, 0, 0]]
