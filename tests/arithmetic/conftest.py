"""What the arithmetic's tests share: both paths in every dtype, and a paged KV store with any layout of
pages."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from holdfast.arithmetic.open import open_arithmetic
from holdfast.arithmetic.ops import Arithmetic
from holdfast.arithmetic.rows import KVLayer, Rows

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# about one unit in the last place of the rounded result, and the fp32 sums before it
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 9e-3, torch.float16: 1.5e-3}


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.fixture(params=["compiled", "library"])
def arithmetic(request: pytest.FixtureRequest, dtype: torch.dtype) -> Arithmetic:
    return open_arithmetic(dtype, path=request.param, num_threads=2)


@pytest.fixture
def compiled(dtype: torch.dtype) -> Arithmetic:
    return open_arithmetic(dtype, path="compiled", num_threads=2)


@pytest.fixture
def compiled_one_thread(dtype: torch.dtype) -> Arithmetic:
    return open_arithmetic(dtype, path="compiled", num_threads=1)


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

    def rows(self, spans: list[tuple[int, int, int]], padding: int = 0) -> Rows:
        """Spans (sequence, first position, number of rows)."""
        positions = [p for _, first, n in spans for p in range(first, first + n)]
        owners = [s for s, _, n in spans for _ in range(n)]
        pages = [int(self.page_table[s, p // self.page_size]) for s, p in zip(owners, positions, strict=True)]
        slots = [g * self.page_size + p % self.page_size for g, p in zip(pages, positions, strict=True)]
        starts = [0]
        for _, _, n in spans:
            starts.append(starts[-1] + n)
        return Rows(
            token_ids=torch.zeros(len(positions) + padding, dtype=torch.int64),
            positions=torch.tensor(positions + [0] * padding),
            slots=torch.tensor(slots + [-1] * padding),
            span_starts=torch.tensor(starts, dtype=torch.int32),
            page_table=self.page_table[[s for s, _, _ in spans]].contiguous(),
        )


@pytest.fixture
def make_store() -> Callable[..., Store]:
    def make(
        arithmetic: Arithmetic, dtype: torch.dtype, lengths: list[int], kv_heads: int, width: int,
        page_size: int, *, page_seed: int = 0, data_seed: int = 1,
    ) -> Store:  # fmt: skip
        data = torch.Generator().manual_seed(data_seed)
        max_pages = max(-(-n // page_size) for n in lengths)
        num_pages = max_pages * len(lengths) + 3
        order = torch.randperm(num_pages, generator=torch.Generator().manual_seed(page_seed))
        table = order[: max_pages * len(lengths)].view(len(lengths), max_pages).int()
        layer = KVLayer(
            torch.full((num_pages, kv_heads, width, page_size), float("nan"), dtype=dtype),
            torch.full((num_pages, kv_heads, page_size, width), float("nan"), dtype=dtype),
        )
        keys = [torch.randn(n, kv_heads, width, generator=data).to(dtype) for n in lengths]
        values = [torch.randn(n, kv_heads, width, generator=data).to(dtype) for n in lengths]
        store = Store(layer, table, keys, values)
        rows = store.rows([(s, 0, n) for s, n in enumerate(lengths)])
        arithmetic.store(torch.cat(keys), torch.cat(values), layer, rows.slots)
        return replace(store)

    return make
