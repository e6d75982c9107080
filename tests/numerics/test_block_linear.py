"""Products with weights in GGUF's quantised blocks: every form has the bits of the definition in
plain C, for every batch, and is near the product with the dequantised weights."""

import ctypes
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from holdfast.models.gguf.dequantize import dequantize
from holdfast.models.gguf.reader import STORED
from holdfast.numerics.arrays import host, rounded
from holdfast.numerics.backends.c import build as building
from holdfast.numerics.backends.c.backend import CBackend
from holdfast.numerics.backends.c.kernels import load_kernels
from holdfast.numerics.backends.c.prebuilt import supported_targets
from holdfast.numerics.blocks import BLOCK_FORMATS, Blocks, random_blocks
from holdfast.numerics.ops import Linear

FORMATS = list(BLOCK_FORMATS)
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
NUM_ROWS = (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 130)
# zero, subnormal, the largest, infinite, not a number, negative
HOSTILE_SCALES = (0x0000, 0x8000, 0x0001, 0x83FF, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0x3C00, 0xBC00)


def open_backend(dtype: torch.dtype, num_threads: int = 2) -> CBackend:
    return CBackend(dtype, load_kernels(), num_threads, block_formats=frozenset(FORMATS))


def inputs(num_rows: int, width: int, dtype: torch.dtype, *, hostile: bool = False) -> Tensor:
    generator = torch.Generator().manual_seed(num_rows)
    x = torch.randn(num_rows, width, generator=generator)
    x *= (
        torch.exp2(torch.randint(-8, 8, (num_rows, width // 32, 1), generator=generator))
        .repeat(1, 1, 32)
        .view_as(x)
    )
    if hostile:
        odd = torch.tensor(
            [0.0, -0.0, 1e-40, -1e-38, 3e38, float("inf"), float("-inf"), float("nan"), 65504.0]
        )
        at = torch.randint(0, 60, x.shape, generator=generator)
        x = torch.where(at < len(odd), odd[at.clamp(max=len(odd) - 1)], x)
        x[:, :32] = 0.0
    return x.to(dtype)


def hostile_blocks(name: str, out_features: int, in_features: int) -> Blocks:
    """All bits of the numbers set, none, or only the sign; every kind of scale."""
    form, blocks = BLOCK_FORMATS[name], random_blocks(name, out_features, in_features, seed=5)
    data = torch.from_numpy(blocks.data.numpy().copy()).view(-1, form.num_bytes)
    for index, byte in enumerate((0x80, 0xFF, 0x00, 0x7F)):
        data[index::5] = byte
    scales = torch.tensor(HOSTILE_SCALES, dtype=torch.int32).to(torch.int16)
    count = (form.scales.stop - form.scales.start) // 2
    order = torch.arange(len(data) * count).view(-1, count) * 7 % len(scales)
    data[:, form.scales] = scales[order].view(torch.uint8)
    return Blocks(name, host(data.numpy().reshape(out_features, -1)), in_features)


def reference(blocks: Blocks, x: Tensor, bias: Tensor | None, out_dtype: torch.dtype) -> Tensor:
    y = torch.empty(x.shape[0], blocks.out_features, dtype=out_dtype)
    codes = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
    load_kernels().run.block_reference(
        *(y.data_ptr(), x.data_ptr(), x.stride(0), blocks.data.data_ptr()),
        *(0 if bias is None else bias.data_ptr(), *x.shape[:1], blocks.out_features, x.shape[1]),
        *(BLOCK_FORMATS[blocks.format].type_number, codes[x.dtype], codes[out_dtype]),
    )
    return y


def same_bits(one: Tensor, other: Tensor) -> bool:
    kind = torch.int32 if one.dtype is torch.float32 else torch.int16
    return torch.equal(one.view(kind), other.view(kind))


def dequantized(blocks: Blocks) -> Tensor:
    stored = next(one for one in STORED.values() if one.name == blocks.format)
    return rounded(dequantize(blocks.data.numpy().reshape(-1), stored), torch.float32).view(
        blocks.out_features, -1
    )


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_batch_has_the_bits_of_the_definition(name: str, dtype: torch.dtype) -> None:
    backend = open_backend(dtype)
    for hostile in (False, True):
        blocks = hostile_blocks(name, 37, 512) if hostile else random_blocks(name, 37, 512, seed=3)
        bias = torch.linspace(-2, 2, 37)
        packed = backend.pack_blocks([blocks], bias)
        x = inputs(max(NUM_ROWS), 512, dtype, hostile=hostile)
        expected = reference(blocks, x, bias, torch.float32)
        for rows in NUM_ROWS:
            assert same_bits(backend.logits(x[:rows], packed, canonical=True), expected[:rows]), rows
        assert same_bits(backend.linear(x, packed, canonical=False), reference(blocks, x, bias, dtype))


@pytest.mark.parametrize("name", FORMATS)
def test_product_is_near_that_of_dequantised_weights(name: str) -> None:
    """Near: up to the rounding of activations to 8 bits."""
    backend = open_backend(torch.float32)
    blocks, x = random_blocks(name, 48, 512, seed=1), inputs(9, 512, torch.float32)
    weight = dequantized(blocks).double()
    exact = x.double() @ weight.T
    steps = x.view(9, -1, 32).abs().amax(-1).repeat_interleave(32, 1).double() / 127
    bound = 0.5001 * steps @ weight.abs().T
    assert ((backend.logits(x, backend.pack_blocks([blocks]), canonical=True) - exact).abs() <= bound).all()


def test_integer_products_do_not_saturate() -> None:
    """Weights of -128 and activations of 127: sums of pairs are beyond 16 bits if one is unsigned."""
    backend = open_backend(torch.float32)
    data = torch.full((16, 34), 0x80, dtype=torch.uint8)
    data[:, :2] = torch.tensor([0x3C00], dtype=torch.int16).view(torch.uint8)  # a scale of 1
    for sign in (1.0, -1.0):
        packed = backend.pack_blocks([Blocks("Q8_0", data, 32)])
        y = backend.logits(torch.full((9, 32), 127.0 * sign), packed, canonical=True)
        assert torch.equal(y, torch.full((9, 16), -128.0 * 127 * 32 * sign))


def test_parts_of_several_formats_are_one_product() -> None:
    backend = open_backend(torch.bfloat16)
    parts = [random_blocks("Q4_K", 64, 256, seed=1), random_blocks("Q6_K", 21, 256, seed=2)]
    parts.append(random_blocks("Q8_0", 30, 256, seed=3))
    x = inputs(5, 256, torch.bfloat16)
    found = backend.linear(x, backend.pack_blocks(parts), canonical=True)
    alone = [backend.linear(x, backend.pack_blocks([part]), canonical=True) for part in parts]
    assert same_bits(found, torch.cat(alone, 1))


@pytest.mark.parametrize("name", FORMATS)
def test_threads_do_not_change_bits(name: str) -> None:
    blocks, x = random_blocks(name, 200, 1024, seed=4), inputs(33, 1024, torch.bfloat16)
    found = [
        one.logits(x, one.pack_blocks([blocks]), canonical=True)
        for one in (open_backend(torch.bfloat16, 1), open_backend(torch.bfloat16, 3))
    ]
    assert same_bits(*found)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_embedding_rows_are_dequantised_exactly(name: str, dtype: torch.dtype) -> None:
    blocks = random_blocks(name, 50, 256, seed=6)
    ids = torch.tensor([3, 0, 49, -1, 3])
    backend = open_backend(dtype)
    expected = dequantized(blocks).to(dtype)[ids.clamp(min=0)]
    assert same_bits(backend.embed_blocks(blocks, ids), expected)
    assert same_bits(backend.embed_packed(backend.pack_blocks([blocks]), ids), expected)


@pytest.mark.parametrize("name", FORMATS)
def test_packed_weights_take_the_memory_of_the_file(name: str) -> None:
    blocks = random_blocks(name, 512, 512, seed=7)
    packed: Linear = open_backend(torch.float32).pack_blocks([blocks])
    assert packed.data.numel() <= 1.05 * blocks.data.numel() + 256


Form = Callable[[Blocks, Tensor], Tensor]


def build_form(folder: Path, flags: tuple[str, ...]) -> Form:
    """The kernels of blocks alone, built with these flags."""
    compiler, _ = building.find_compiler()
    sources = Path(building.__file__).parent
    library = folder / "form.so"
    options = [flag for flag in building.FLAGS if flag != "-fvisibility=hidden"]
    units = [str(sources / name) for name in ("block_linear.c", "blocks.c")]
    subprocess.run([compiler, *options, *flags, "-shared", *units, "-o", str(library), "-lm"], check=True)
    loaded = ctypes.CDLL(str(library))
    loaded.holdfast_block_bytes.restype = ctypes.c_int64

    def run(blocks: Blocks, x: Tensor) -> Tensor:
        def words(*values: int) -> list[ctypes.c_int64]:
            return [ctypes.c_int64(value) for value in values]

        number, shape = BLOCK_FORMATS[blocks.format].type_number, (blocks.out_features, blocks.in_features)
        packed = torch.zeros(128 + loaded.holdfast_block_bytes(*words(number, *shape)), dtype=torch.uint8)
        packed[:32].view(torch.int64)[:] = torch.tensor([1, number, shape[0], 128])
        loaded.run_block_pack(*words(packed.data_ptr() + 128, blocks.data.data_ptr(), *shape, number, 1))
        y = torch.empty(len(x), shape[0])
        addresses = words(y.data_ptr(), x.data_ptr(), shape[1], packed.data_ptr(), 0)
        loaded.run_block_linear(*addresses, *words(len(x), *shape, 0, 0, 1))
        return y

    return run


FORMS = {target.name: target.flags for target in supported_targets()} if sys.platform == "linux" else {}


@pytest.mark.long
@pytest.mark.parametrize("form", FORMS)
def test_every_instruction_set_has_the_bits_of_the_definition(form: str, tmp_path: Path) -> None:
    run = build_form(tmp_path, FORMS[form])
    for name in FORMATS:
        for blocks in (random_blocks(name, 37, 512, seed=3), hostile_blocks(name, 37, 512)):
            x = inputs(max(NUM_ROWS), 512, torch.float32, hostile=True)
            expected = reference(blocks, x, None, torch.float32)
            for rows in NUM_ROWS:
                assert same_bits(run(blocks, x[:rows]), expected[:rows]), (name, rows)
