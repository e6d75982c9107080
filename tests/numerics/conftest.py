"""Fixtures for the backends: each backend in each dtype, and a KV cache with shuffled pages.

The Triton backend runs on the GPU if there is one, else in Triton's interpreter, which is slow and
has no bf16. The interpreter multiplies with numpy; here `tl.dot` sums in an order that depends on
its shape (see `support.shape_dependent_gemm`), so no test depends on the CPU's BLAS.
"""

import os
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor

from holdfast.numerics.backends.select_backend import open_backend
from holdfast.numerics.forward_batch import KVLayer
from holdfast.numerics.ops import Backend
from support.moved import moved_to
from support.paged_kv import PagedKV, shuffled_pages, stored
from support.quick_interpreter import make_quick
from support.shape_dependent_gemm import use_shape_dependent_dot, use_shape_dependent_gemm

HAS_CUDA = torch.cuda.is_available()
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# about one unit in the last place of the rounded result, and the fp32 sums before it
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 9e-3, torch.float16: 1.5e-3}
TRITON = pytest.param(
    "triton",
    marks=[
        pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed"),
        *((pytest.mark.gpu,) if HAS_CUDA else ()),
    ],
)
KERNELS = ["c", "torch", TRITON]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu: runs on a CUDA device")
    # numpy's warnings about infinities and scalars in the interpreter
    config.addinivalue_line("filterwarnings", "ignore::RuntimeWarning:triton.runtime.interpreter")
    config.addinivalue_line("filterwarnings", "ignore::DeprecationWarning:triton.runtime.interpreter")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Interpret Triton's kernels in fp32 in the long form only. fp16 shows in addition where they round."""
    for item in items:
        given = getattr(getattr(item, "callspec", None), "params", {})
        if not HAS_CUDA and given.get("dtype") is torch.float32 and "triton" in given.values():
            item.add_marker(pytest.mark.long)


@cache
def _patch_interpreter() -> None:
    """For the rest of the process: `tl.dot` without BLAS, and less than half of the time."""
    from triton.runtime import interpreter

    from holdfast.numerics.backends.triton.attention import paged

    make_quick(interpreter)
    use_shape_dependent_dot(interpreter)
    paged._TARGET_PROGRAMS = 8  # the interpreter runs programs one after the other


def _open(kernels: str, dtype: torch.dtype, split_k: dict[tuple[int, int], int] | None = None) -> Backend:
    """A backend that takes tensors in main memory, also if it computes on the GPU."""
    if kernels != "triton":
        return open_backend(dtype, kernels=kernels, num_threads=2)
    if HAS_CUDA:
        device = torch.device("cuda")
        return moved_to(open_backend(dtype, kernels=kernels, num_threads=1, device=device, split_k=split_k))
    if dtype is torch.bfloat16:
        pytest.skip("Triton's interpreter has no bf16")
    if os.environ.get("TRITON_INTERPRET") != "1":  # a driver without a usable device
        pytest.skip("without a GPU kernels need TRITON_INTERPRET=1")
    _patch_interpreter()
    return open_backend(dtype, kernels=kernels, num_threads=1, split_k=split_k)


@pytest.fixture
def shape_dependent_gemm(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's products on the CPU sum in an order that depends on their shape, whatever BLAS there
    is."""
    use_shape_dependent_gemm(monkeypatch)


@pytest.fixture
def interpreter() -> None:
    """For tests that call Triton kernels without a backend."""
    if not HAS_CUDA:
        pytest.importorskip("triton")
        _patch_interpreter()


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.fixture
def open_any() -> Callable[..., Backend]:
    return _open


@pytest.fixture(params=KERNELS)
def backend(request: pytest.FixtureRequest, dtype: torch.dtype) -> Backend:
    return _open(request.param, dtype)


@pytest.fixture(params=[*KERNELS[:2], *([TRITON] if HAS_CUDA else [])])
def quick_backend(request: pytest.FixtureRequest, dtype: torch.dtype) -> Backend:
    """All backends but an interpreted one, for tests of many calls."""
    return _open(request.param, dtype)


@pytest.fixture(params=[TRITON])
def triton_kernels(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def triton_backend(triton_kernels: str, dtype: torch.dtype) -> Backend:
    return _open(triton_kernels, dtype)


@pytest.fixture
def c_backend(dtype: torch.dtype) -> Backend:
    return open_backend(dtype, kernels="c", num_threads=2)


@pytest.fixture
def c_backend_one_thread(dtype: torch.dtype) -> Backend:
    return open_backend(dtype, kernels="c", num_threads=1)


@pytest.fixture
def assert_near() -> Callable[[Tensor, Tensor], None]:
    def check(got: Tensor, expected: Tensor) -> None:
        scale = expected.abs().max().clamp(min=1e-3)
        error = ((got.double() - expected.double()).abs().max() / scale).item()
        assert error < TOLERANCE[got.dtype], error

    return check


def _small_integers(*shape: int, generator: torch.Generator) -> Tensor:
    return torch.randint(-1, 2, shape, generator=generator).float()


@pytest.fixture
def make_sequences() -> Callable[..., PagedKV]:
    def make(
        backend: Backend, dtype: torch.dtype, lengths: list[int], kv_heads: int, width: int,
        page_size: int, *, page_seed: int = 0, integers: bool = False,
    ) -> PagedKV:  # fmt: skip
        generator = torch.Generator().manual_seed(1)
        draw = _small_integers if integers else torch.randn
        if backend.recipe.path == "triton":
            page_size = backend.page_size
        num_pages, table = shuffled_pages(lengths, page_size, page_seed)
        layer = KVLayer(
            torch.full((num_pages, kv_heads, width, page_size), float("nan"), dtype=dtype),
            torch.full((num_pages, kv_heads, page_size, width), float("nan"), dtype=dtype),
        )
        if backend.recipe.path == "triton":
            layer = KVLayer(torch.full_like(layer.values, float("nan")).transpose(2, 3), layer.values)
        keys = [draw(n, kv_heads, width, generator=generator).to(dtype) for n in lengths]
        values = [draw(n, kv_heads, width, generator=generator).to(dtype) for n in lengths]
        return stored(backend, layer, table, keys, values)

    return make
