"""A layer in one call has the bits of its operations one by one, for every family's extras."""

import pytest
import torch
from torch import Tensor

from holdfast.arithmetic.layer import LayerShape, LayerWeights, Positions, run_layer
from holdfast.arithmetic.open import open_arithmetic
from holdfast.arithmetic.ops import Arithmetic, Linear
from holdfast.arithmetic.rows import KVLayer, Rows

HIDDEN, INNER, SHAPE = 48, 112, LayerShape(heads=4, kv_heads=2, head_dim=16, eps=1e-5, scale=0.25)


def _weights(ops: Arithmetic, dtype: torch.dtype, extras: bool) -> LayerWeights:
    generator = torch.Generator().manual_seed(1)

    def random(*shape: int) -> Tensor:
        return (torch.randn(*shape, generator=generator) * 0.2).to(dtype)

    def product(outputs: int, inputs: int) -> Linear:
        return ops.pack(random(outputs, inputs), random(outputs) if extras else None)

    return LayerWeights(
        qkv=product(8 * 16, HIDDEN),
        q_norm=random(16) if extras else None,
        k_norm=random(16) if extras else None,
        o=product(HIDDEN, 4 * 16),
        post_norm=random(HIDDEN),
        gate_up=product(2 * INNER, HIDDEN),
        down=product(HIDDEN, INNER),
        next_norm=random(HIDDEN),
        window=9 if extras else None,
    )


def _rows() -> Rows:
    """Two spans: five rows from position 14 on, and one row at position 3; one row of padding."""
    positions = [14, 15, 16, 17, 18, 3, 0]
    slots = [2 * 16 + 14, 2 * 16 + 15, 0, 1, 2, 3 * 16 + 3, -1]
    return Rows(
        token_ids=torch.zeros(7, dtype=torch.int64),
        positions=torch.tensor(positions),
        slots=torch.tensor(slots),
        span_starts=torch.tensor([0, 5, 6], dtype=torch.int32),
        page_table=torch.tensor([[2, 0], [3, 0]], dtype=torch.int32),
    )


@pytest.mark.parametrize("extras", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_one_call_has_the_bits_of_many(dtype: torch.dtype, extras: bool) -> None:
    ops = open_arithmetic(dtype, path="compiled", num_threads=2)
    weights, rows = _weights(ops, dtype, extras), _rows()
    generator = torch.Generator().manual_seed(2)
    angles = torch.rand(7, 8, generator=generator) * 6
    at = Positions(angles.cos(), angles.sin())
    start = torch.randn(2, 7, HIDDEN, generator=generator).to(dtype)
    old = torch.randn(2, 4, 2, 16, 16, generator=generator).to(dtype)

    def run(whole: bool) -> list[Tensor]:
        residual, x = start[0].clone(), start[1].clone()
        kv = KVLayer(old[0].clone(), old[1].clone())
        if whole:
            ops.layer(residual, x, weights, SHAPE, kv, rows, at, canonical=True)
        else:
            run_layer(ops, residual, x, weights, SHAPE, kv, rows, at, canonical=True)
        return [residual[:6], x[:6], kv.keys, kv.values]

    for one, many in zip(run(True), run(False), strict=True):
        assert torch.equal(one, many)
    assert not torch.equal(run(True)[0], start[0][:6])
