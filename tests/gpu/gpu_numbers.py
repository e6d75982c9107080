"""What the kernels' tests share: random numbers on the device, nearness to fp64, and rows that must stand alone."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

HAS_GPU = torch.cuda.is_available()  # without one: the interpreter, on small shapes

# About one unit in the last place of a rounded result, and the fp32 sums before it.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 9e-3, torch.float16: 1.5e-3}


def random(
    *shape: int, dtype: torch.dtype, device: torch.device, seed: int = 0, scale: float = 1.0
) -> Tensor:
    generator = torch.Generator(device).manual_seed(seed)
    return (torch.randn(*shape, generator=generator, device=device) * scale).to(dtype)


def assert_near(got: Tensor, exact: Tensor, dtype: torch.dtype) -> None:
    """Of the largest number: `dtype` is what the result, or what went into it, was rounded to."""
    scale = exact.abs().max().clamp(min=1e-3)
    error = ((got.double() - exact.double()).abs().max() / scale).item()
    assert error < TOLERANCE[dtype], error


def bits(x: Tensor) -> Tensor:
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    return x.contiguous().view(whole[x.element_size()])


def same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(bits(a), bits(b))


def selections(num_rows: int) -> list[list[int]]:
    """Ways a row may stand among others: alone, turned round, shuffled, among few, twice."""
    shuffled = torch.randperm(num_rows, generator=torch.Generator().manual_seed(num_rows)).tolist()
    some = sorted({0, 1, num_rows // 2, num_rows - 1})
    return [*([row] for row in some), shuffled, shuffled[: num_rows // 3 + 1], [num_rows - 1, 0, 0]]


def assert_rows_stand_alone(run: Callable[[list[int]], Sequence[Tensor]], num_rows: int) -> None:
    """`run` computes the rows it is given; each must have the bits it has among all of them."""
    whole = run(list(range(num_rows)))
    for rows in selections(num_rows):
        for found, all_of_them in zip(run(rows), whole, strict=True):
            assert same_bits(found, all_of_them[rows]), rows
