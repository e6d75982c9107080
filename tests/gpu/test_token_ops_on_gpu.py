"""Kernels that work on each token alone: near fp64 and batch-invariant."""

import pytest
import torch
from gpu_numbers import HAS_GPU, assert_batch_invariant, assert_near, random, same_bits
from torch import Tensor

from holdfast.numerics.ops import Backend

WIDTHS = [576, 1024, 4096, 8192] if HAS_GPU else [72, 160]
INNER = [1536, 14336] if HAS_GPU else [88]
NUM_ROWS = 300 if HAS_GPU else 7
HEADS = [(9, 3, 64), (32, 8, 128), (16, 8, 128)] if HAS_GPU else [(3, 1, 16), (4, 2, 24)]
EPS = 1e-5


def exact_norm(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.double()
    return wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS) * weight.double()


@pytest.mark.parametrize("width", WIDTHS)
def test_rms_norm(backend: Backend, dtype: torch.dtype, device: torch.device, width: int) -> None:
    x = random(NUM_ROWS, width, dtype=dtype, device=device)
    weight = random(width, dtype=dtype, device=device, seed=1) + 1
    assert_near(backend.rms_norm(x, weight, EPS), exact_norm(x, weight), dtype)
    assert_batch_invariant(lambda rows: [backend.rms_norm(x[rows], weight, EPS)], NUM_ROWS)


@pytest.mark.parametrize("width", WIDTHS)
def test_add_rms_norm(backend: Backend, dtype: torch.dtype, device: torch.device, width: int) -> None:
    x = random(NUM_ROWS, width, dtype=dtype, device=device)
    delta = random(NUM_ROWS, width, dtype=dtype, device=device, seed=2)
    weight = random(width, dtype=dtype, device=device, seed=1) + 1

    def run(rows: list[int]) -> list[Tensor]:
        residual = x[rows].clone()
        normed = backend.add_rms_norm(residual, delta[rows], weight, EPS)
        return [residual, normed]

    residual, normed = run(list(range(NUM_ROWS)))
    assert_near(residual, x.double() + delta.double(), dtype)
    assert_near(normed, exact_norm(residual, weight), dtype)
    assert_batch_invariant(run, NUM_ROWS)


@pytest.mark.parametrize(("heads", "kv_heads", "width"), HEADS)
def test_norm_of_heads(
    backend: Backend, dtype: torch.dtype, device: torch.device, heads: int, kv_heads: int, width: int
) -> None:
    """As for q and k: views into the fused product."""
    fused = random(NUM_ROWS, heads + 2 * kv_heads, width, dtype=dtype, device=device)
    weight = random(width, dtype=dtype, device=device, seed=1) + 1
    k = fused[:, heads : heads + kv_heads]
    assert_near(backend.rms_norm(k, weight, EPS), exact_norm(k, weight), dtype)
    assert_batch_invariant(lambda rows: [backend.rms_norm(fused[rows][:, :heads], weight, EPS)], NUM_ROWS)


@pytest.mark.parametrize(("heads", "kv_heads", "width"), HEADS)
def test_rope(
    backend: Backend, dtype: torch.dtype, device: torch.device, heads: int, kv_heads: int, width: int
) -> None:
    fused = random(NUM_ROWS, heads + 2 * kv_heads, width, dtype=dtype, device=device)
    angles = random(NUM_ROWS, width // 2, dtype=torch.float32, device=device, seed=3, scale=9.0)

    def run(rows: list[int]) -> list[Tensor]:
        some = fused[rows].clone()
        q, k = some[:, :heads], some[:, heads : heads + kv_heads]
        backend.rope(q, k, angles[rows].cos().contiguous(), angles[rows].sin().contiguous())
        return [q, k]

    first, second = fused[:, :heads].double().chunk(2, -1)
    cos, sin = angles.cos().double()[:, None], angles.sin().double()[:, None]
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
    assert_near(run(list(range(NUM_ROWS)))[0], turned, dtype)
    assert_batch_invariant(run, NUM_ROWS)


@pytest.mark.parametrize("inner", INNER)
def test_silu_mul(backend: Backend, dtype: torch.dtype, device: torch.device, inner: int) -> None:
    x = random(NUM_ROWS, 2 * inner, dtype=dtype, device=device, scale=2.0)
    gate, up = x.double().chunk(2, -1)
    assert_near(backend.silu_mul(x), gate / (1 + torch.exp(-gate)) * up, dtype)
    assert_batch_invariant(lambda rows: [backend.silu_mul(x[rows])], NUM_ROWS)


def test_embed(backend: Backend, dtype: torch.dtype, device: torch.device) -> None:
    table = random(999, WIDTHS[0], dtype=dtype, device=device)
    ids = torch.randint(0, 999, (NUM_ROWS,), generator=torch.Generator().manual_seed(1)).to(device)
    assert same_bits(backend.embed(table, ids), table[ids])
    ids[0] = -1
    assert same_bits(backend.embed(table, ids)[0], table[0])


def test_store_writes_its_slots_and_nothing_else(
    backend: Backend, dtype: torch.dtype, device: torch.device
) -> None:
    kv_heads, width, pages = 2, 64, 5
    layer = backend.new_kv_layer(pages, kv_heads, width)
    assert not layer.keys.any() and not layer.values.any()
    k = random(7, kv_heads, width, dtype=dtype, device=device)
    v = random(7, kv_heads, width, dtype=dtype, device=device, seed=5)
    size = backend.page_size
    slots = torch.tensor([3, size, 2 * size + 1, -1, pages * size - 1, size - 1, 7], device=device)
    backend.store_kv(k, v, layer, slots)
    keys = layer.keys.permute(0, 3, 1, 2).reshape(-1, kv_heads, width)  # [slots, kv_heads, width]
    values = layer.values.transpose(1, 2).reshape(-1, kv_heads, width)
    real = slots >= 0
    assert same_bits(keys[slots[real]], k[real])
    assert same_bits(values[slots[real]], v[real])
    left = torch.ones(pages * size, dtype=torch.bool, device=device)
    left[slots[real]] = False
    assert not keys[left].any() and not values[left].any()
