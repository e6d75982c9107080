"""What the backend's tests share: all paths in every dtype, and a paged KV store with any layout of pages.

Triton's path runs on the GPU where there is one, and under Triton's interpreter elsewhere, which is slow and knows no bf16.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor

HAS_CUDA = torch.cuda.is_available()
if not HAS_CUDA:
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported, which no test file does for itself

from holdfast.numerics.forward_batch import ForwardBatch, KVLayer  # noqa: E402
from holdfast.numerics.ops import Backend  # noqa: E402
from holdfast.numerics.select_backend import open_backend  # noqa: E402
from support.moved import moved_to  # noqa: E402

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
PATHS = ["c", "torch", TRITON]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu: runs on a CUDA device")
    # numpy's opinions of what the interpreter does with infinities and scalars
    config.addinivalue_line("filterwarnings", "ignore::RuntimeWarning:triton.runtime.interpreter")
    config.addinivalue_line("filterwarnings", "ignore::DeprecationWarning:triton.runtime.interpreter")


def _open_path(path: str, dtype: torch.dtype, slices: dict[tuple[int, int], int] | None = None) -> Backend:
    """A path of the backend that takes tensors in main memory, wherever it computes."""
    if path != "triton":
        return open_backend(dtype, kernels=path, num_threads=2)
    if HAS_CUDA:
        device = torch.device("cuda")
        return moved_to(open_backend(dtype, kernels=path, num_threads=1, device=device, split_k=slices))
    if dtype is torch.bfloat16:
        pytest.skip("Triton's interpreter does not know bf16")
    _patch_once_a_launch()
    return open_backend(dtype, kernels=path, num_threads=1, split_k=slices)


@cache
def _patch_once_a_launch() -> None:
    """The interpreter patches the language for a launch, and again for every device function: half of its time.

    Ours see the language as the launch does; triton's own see another module of it, which stays patched.
    """
    from triton.runtime import interpreter

    from holdfast.numerics.backends.triton import attention

    patched = set()

    def call(self: interpreter.InterpretedFunction, *args: object, **kwargs: object) -> object:
        if not self.fn.__module__.startswith("holdfast") and self.fn.__module__ not in patched:
            patched.add(self.fn.__module__)
            interpreter._patch_lang(self.fn)
        return self.rewrite()(*args, **kwargs)

    interpreter.InterpretedFunction.__call__ = call
    attention._BUSY = 8  # programs enough to fill a GPU, one after the other


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.fixture
def open_path() -> Callable[..., Backend]:
    return _open_path


@pytest.fixture(params=PATHS)
def backend(request: pytest.FixtureRequest, dtype: torch.dtype) -> Backend:
    return _open_path(request.param, dtype)


@pytest.fixture(params=[*PATHS[:2], *([TRITON] if HAS_CUDA else [])])
def quick_backend(request: pytest.FixtureRequest, dtype: torch.dtype) -> Backend:
    """All paths but an interpreted one, for tests of many calls."""
    return _open_path(request.param, dtype)


@pytest.fixture(params=[TRITON])
def triton_path(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def triton_ops(triton_path: str, dtype: torch.dtype) -> Backend:
    return _open_path(triton_path, dtype)


@pytest.fixture
def compiled(dtype: torch.dtype) -> Backend:
    return open_backend(dtype, kernels="c", num_threads=2)


@pytest.fixture
def compiled_one_thread(dtype: torch.dtype) -> Backend:
    return open_backend(dtype, kernels="c", num_threads=1)


@pytest.fixture
def assert_near() -> Callable[[Tensor, Tensor], None]:
    def check(got: Tensor, expected: Tensor) -> None:
        scale = expected.abs().max().clamp(min=1e-3)
        error = ((got.double() - expected.double()).abs().max() / scale).item()
        assert error < TOLERANCE[got.dtype], error

    return check


@dataclass(frozen=True)
class Store:
    """Sequences of given lengths in shuffled pages; slots nobody wrote hold NaN."""

    layer: KVLayer
    page_table: Tensor  # int32 [sequences, max_pages]
    keys: list[Tensor]  # per sequence [length, KVH, D]
    values: list[Tensor]

    @property
    def page_size(self) -> int:
        return self.layer.keys.shape[3]

    def rows(self, spans: list[tuple[int, int, int]], padding: int = 0) -> ForwardBatch:
        """Spans (sequence, first position, number of rows)."""
        positions = [p for _, first, n in spans for p in range(first, first + n)]
        owners = [s for s, _, n in spans for _ in range(n)]
        pages = [int(self.page_table[s, p // self.page_size]) for s, p in zip(owners, positions, strict=True)]
        slots = [g * self.page_size + p % self.page_size for g, p in zip(pages, positions, strict=True)]
        starts = [0]
        for _, _, n in spans:
            starts.append(starts[-1] + n)
        return ForwardBatch(
            token_ids=torch.zeros(len(positions) + padding, dtype=torch.int64),
            positions=torch.tensor(positions + [0] * padding),
            slots=torch.tensor(slots + [-1] * padding),
            span_starts=torch.tensor(starts, dtype=torch.int32),
            page_table=self.page_table[[s for s, _, _ in spans]].contiguous(),
        )


@pytest.fixture
def make_store() -> Callable[..., Store]:
    def make(
        backend: Backend, dtype: torch.dtype, lengths: list[int], kv_heads: int, width: int,
        page_size: int, *, page_seed: int = 0, data_seed: int = 1,
    ) -> Store:  # fmt: skip
        data = torch.Generator().manual_seed(data_seed)
        if backend.recipe.path == "triton":
            page_size = backend.page_size
        max_pages = max(-(-n // page_size) for n in lengths)
        num_pages = max_pages * len(lengths) + 3
        order = torch.randperm(num_pages, generator=torch.Generator().manual_seed(page_seed))
        table = order[: max_pages * len(lengths)].view(len(lengths), max_pages).int()
        layer = KVLayer(
            torch.full((num_pages, kv_heads, width, page_size), float("nan"), dtype=dtype),
            torch.full((num_pages, kv_heads, page_size, width), float("nan"), dtype=dtype),
        )
        if backend.recipe.path == "triton":
            layer = KVLayer(torch.full_like(layer.values, float("nan")).transpose(2, 3), layer.values)
        keys = [torch.randn(n, kv_heads, width, generator=data).to(dtype) for n in lengths]
        values = [torch.randn(n, kv_heads, width, generator=data).to(dtype) for n in lengths]
        store = Store(layer, table, keys, values)
        rows = store.rows([(s, 0, n) for s, n in enumerate(lengths)])
        backend.store_kv(torch.cat(keys), torch.cat(values), layer, rows.slots)
        return replace(store)

    return make
