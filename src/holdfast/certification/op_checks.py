"""One operation of a decoder against its reference, row by row, and which operations there are.

Probe rows are planted at the first, a middle and the last place among neighbours that are huge or tiny; their bits must be
those the canonical form gives them in the reference's own number of rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from holdfast.certification.certificate import OperationCheck
from holdfast.certification.probes import NUM_PROBES, Differences, places, plant, rows_at
from holdfast.numerics.forward_batch import ForwardBatch
from holdfast.numerics.layer import LayerShape, LayerWeights, RopeCosSin, run_layer
from holdfast.numerics.ops import Backend, Linear
from holdfast.numerics.sampling import SamplingBatch

RowOperation = Callable[[Tensor], Tensor]

_SCALES = ((1e3, 1e-3), (1e3, 1e3), (1e-3, 1e-3))  # of the neighbours, by the probes' seats


@dataclass(frozen=True)
class Geometry:
    """The sizes of a model that its operations depend on, weights aside."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    page_size: int
    max_context: int
    window: int | None


@dataclass(frozen=True)
class Subject:
    """A matrix product to certify. A thorough one is tried at every size, the others at the edges."""

    name: str
    linear: Linear
    thorough: bool
    is_head: bool = False


@dataclass(frozen=True)
class WholeLayer:
    """A layer to certify as it runs: in one go, against its operations one by one."""

    name: str
    weights: LayerWeights
    shape: LayerShape


def check_product(backend: Backend, subject: Subject, sizes: tuple[int, ...]) -> OperationCheck:
    """As it runs: on a GPU a product the library finishes is another than the one that gives fp32 sums."""
    linear = subject.linear
    product = backend.linear if backend.recipe.path == "triton" and not subject.is_head else backend.logits
    return check_rows(
        subject.name,
        f"{linear.out_features} x {linear.in_features}",
        lambda x: product(x, linear, canonical=True),
        lambda x: product(x, linear, canonical=False),
        linear.in_features,
        backend,
        sizes,
    )


def check_head(backend: Backend, subject: Subject, sizes: tuple[int, ...]) -> OperationCheck:
    """The head runs in its canonical form for whatever number of rows is sampled, so one that differs anywhere counts as
    size 0."""
    linear = subject.linear

    def canonical(x: Tensor) -> Tensor:
        return backend.logits(x, linear, canonical=True)

    def again(x: Tensor) -> Tensor:
        return canonical(x)

    shape = f"{linear.out_features} x {linear.in_features}"
    found = check_rows(subject.name, shape, canonical, again, linear.in_features, backend, sizes)
    return found if found.agrees else replace(found, sizes_differing=(0, *found.sizes_differing))


def check_fast_head(
    backend: Backend, subject: Subject, sizes: tuple[int, ...], totals: tuple[int, ...]
) -> OperationCheck:
    """The head at its own number of rows, as a certified pass may compute it: any number of them may be sampled, so one that
    differs leaves no certified total."""
    found = check_product(backend, replace(subject, name=f"{subject.name}, as it comes"), sizes)
    if not set(found.sizes_differing) - {0}:
        return found
    return replace(found, sizes_differing=tuple(sorted({*found.sizes_differing, *totals})))


def check_layer(
    backend: Backend, layer: WholeLayer, geometry: Geometry, sizes: tuple[int, ...]
) -> OperationCheck:
    """Every row is a sequence of one token, so a layer works on rows alone; attention over more has its own check."""

    def operation(x: Tensor, *, canonical: bool, whole: bool) -> Tensor:
        count, device = x.shape[0], x.device
        kv = backend.new_kv_layer(count, geometry.kv_heads, geometry.head_dim)
        rows = ForwardBatch(
            token_ids=torch.zeros(count, dtype=torch.int64, device=device),
            positions=torch.zeros(count, dtype=torch.int64, device=device),
            slots=torch.arange(count, device=device) * geometry.page_size,
            span_starts=torch.arange(count + 1, dtype=torch.int32, device=device),
            page_table=torch.arange(count, dtype=torch.int32, device=device)[:, None].contiguous(),
        )
        angles = torch.linspace(0.1, 3.0, geometry.head_dim // 2, device=device).repeat(count, 1)
        at = RopeCosSin(angles.cos(), angles.sin())
        residual, normed = x.flip(1).contiguous(), x.clone()
        if whole:
            backend.layer(residual, normed, layer.weights, layer.shape, kv, rows, at, canonical=canonical)
        else:
            run_layer(backend, residual, normed, layer.weights, layer.shape, kv, rows, at, canonical=True)
        return torch.cat([residual, normed], 1)

    return check_rows(
        layer.name,
        f"[{geometry.hidden}]",
        partial(operation, canonical=True, whole=True),
        partial(operation, canonical=False, whole=True),
        geometry.hidden,
        backend,
        sizes,
        reference=partial(operation, canonical=True, whole=False),
    )


def check_rows(
    name: str,
    shape: str,
    canonical: RowOperation,
    fast: RowOperation,
    width: int,
    backend: Backend,
    sizes: Sequence[int],
    *,
    reference: RowOperation | None = None,
) -> OperationCheck:
    """Compare probes in every size of the fast form with the canonical form in the reference's size.

    Size 0 stands for the canonical form itself: its probes moved to other places, among other neighbours, and in the other
    totals a canonical pass can have, which are multiples of the reference's.
    """
    dtype = getattr(torch, backend.recipe.dtype)
    rows = backend.recipe.rows
    probes = _probes(width, dtype).to(backend.device)
    seats = places(rows)[0]
    expected = rows_at((reference or canonical)(plant(probes, rows, seats, (1.0, 1.0))), seats)
    multiples = range(rows, max(sizes) + 1, rows)
    trials = [
        (0, size, canonical) for size in (multiples if canonical is fast else {rows, 2 * rows, multiples[-1]})
    ]
    trials += [(size, size, fast) for size in sizes]
    differences = Differences()
    for label, size, operation in trials:
        for number, at in enumerate(places(size)):
            out = operation(plant(probes[: len(at)], size, at, _SCALES[number]))
            differences.compare(label, rows_at(out, at), expected[: len(at)])
    differing = tuple(sorted(differences.labels()))
    return OperationCheck(name, shape, tuple(sizes), differing, differences.num_comparisons)


def _probes(width: int, dtype: torch.dtype) -> Tensor:
    """Ordinary activations, and some whose products nearly cancel."""
    generator = torch.Generator().manual_seed(width)
    probes = torch.randn(NUM_PROBES, width, generator=generator)
    probes[-1, ::2] *= 300.0
    probes[-1, 1::2] = -probes[-1, ::2][: probes[-1, 1::2].shape[0]] * (1 + 1e-3)
    return probes.to(dtype)


def row_operations(backend: Backend, geometry: Geometry) -> list[tuple[str, int, RowOperation]]:
    """Everything that works on a row alone."""
    dtype = getattr(torch, backend.recipe.dtype)
    hidden, heads, dim = geometry.hidden, geometry.heads, geometry.head_dim
    generator = torch.Generator().manual_seed(1)
    weight = torch.rand(hidden, generator=generator).add(0.5).to(dtype).to(backend.device)
    angles = (torch.rand(1, dim // 2, generator=generator) * 6).to(backend.device)

    def add_norm(x: Tensor) -> Tensor:
        residual = x.flip(1).contiguous()
        normed = backend.add_rms_norm(residual, x, weight, 1e-5)
        return torch.cat([residual, normed], 1)

    def rope(x: Tensor) -> Tensor:
        q = x.view(-1, heads, dim).clone()
        k = q.flip(2).contiguous()
        cos, sin = (table.expand(x.shape[0], -1).contiguous() for table in (angles.cos(), angles.sin()))
        backend.rope(q, k, cos, sin)
        return torch.cat([q, k], 1).flatten(1)

    return [
        ("rms_norm", hidden, lambda x: backend.rms_norm(x, weight, 1e-5)),
        ("add_rms_norm", hidden, add_norm),
        ("rope", heads * dim, rope),
        ("silu_mul", 2 * geometry.intermediate, backend.silu_mul),
    ]


def choice_operations(backend: Backend) -> list[tuple[str, RowOperation]]:
    """The sampler, with settings that make it do all it can."""

    def full(n: int, value: float, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.full((n,), value, dtype=dtype, device=backend.device)

    def batch(n: int) -> SamplingBatch:
        return SamplingBatch(
            temperature=full(n, 0.8),
            top_k=full(n, 40, torch.int32),
            top_p=full(n, 0.95),
            min_p=full(n, 0.01),
            seeds=full(n, 7, torch.int64),
            positions=full(n, 11, torch.int64),
        )

    def argmax(x: Tensor) -> Tensor:
        n = x.shape[0]
        zeros, ones, ints = full(n, 0), full(n, 1), full(n, 0, torch.int64)
        return backend.sample(x, SamplingBatch(zeros, ints.int(), ones, zeros, ints, ints))

    return [
        ("argmax", argmax),
        ("greedy", lambda x: torch.stack([part.double() for part in backend.sample_greedy(x)], 1)),
        ("sample", lambda x: backend.sample(x, batch(x.shape[0]))),
        ("logsumexp", backend.logsumexp),
        ("top", lambda x: torch.cat([part.double() for part in backend.topk(x, 5)], 1)),
    ]


def check_choice(
    name: str, operation: RowOperation, vocab: int, backend: Backend, sizes: tuple[int, ...]
) -> OperationCheck:
    """Sampler operations take whatever number of rows is sampled, so one that differs anywhere counts as size 0."""
    generator = torch.Generator().manual_seed(3)
    probes = (torch.randn(NUM_PROBES, vocab, generator=generator) * 4).to(backend.device)
    rows = backend.recipe.rows
    seats = places(rows)[0]
    reference = rows_at(operation(plant(probes, rows, seats, (1.0, 1.0))), seats)
    differences = Differences()
    for size in sizes:
        at = places(size)[-1]
        out = operation(plant(probes[: len(at)], size, at, _SCALES[0]))
        differences.compare(size, rows_at(out, at), reference[: len(at)])
    differing = tuple(sorted(differences.labels()))
    return OperationCheck(
        name, f"[{vocab}]", sizes, (0, *differing) if differing else (), differences.num_comparisons
    )
