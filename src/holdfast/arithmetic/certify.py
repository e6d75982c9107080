"""Asks this machine which row totals give the reference's bits, operation by operation, with the model's real weights.

The reference of a row is what the canonical form of an operation says of it in a pass of exactly `recipe.rows` rows. Every
other total is compared with that, never with itself: probe rows are planted at the first, a middle and the last place
among neighbours that are huge or tiny, and their bits are compared, without tolerance.

Rounding hides differences: two sums that differ in fp32 are mostly the same bf16. So products are compared as fp32 sums
where the arithmetic can give them, and operations without weights in fp32 as well as in the model's dtype (`wide`).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from holdfast.arithmetic.attention_check import check_attention
from holdfast.arithmetic.certificate import Certificate, OperationCheck, certificate_key
from holdfast.arithmetic.choice import ChoiceBatch
from holdfast.arithmetic.ops import Arithmetic, Linear
from holdfast.arithmetic.probe import NUM_PROBES, forget_neighbours, places, plant, same_bits

_SCALES = ((1e3, 1e-3), (1e3, 1e3), (1e-3, 1e-3))  # of the neighbours, by the probes' seats

RowOperation = Callable[[Tensor], Tensor]
Progress = Callable[[int, int], None]


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


def candidate_sizes(max_rows: int) -> tuple[int, ...]:
    """The row totals an engine pads its passes to: every small one, then steps of at most a quarter."""
    steps = [*range(1, 9), *range(12, 33, 4), *range(40, 65, 8), *range(80, 129, 16), *range(160, 257, 32)]
    steps += range(320, max(max_rows, 320) + 1, 64)
    return (*(size for size in steps if size < max_rows), max_rows)


def certify(
    arithmetic: Arithmetic,
    wide: Arithmetic,
    subjects: Sequence[Subject],
    geometry: Geometry,
    max_rows: int,
    about: Mapping[str, object],
    progress: Progress | None = None,
) -> Certificate:
    """Test every operation and say which totals agree everywhere.

    `wide` is the same arithmetic for fp32; `about` is what the certificate is filed under.
    """
    started = time.monotonic()
    sizes = candidate_sizes(max_rows)
    checks: list[OperationCheck] = []
    jobs = _jobs(arithmetic, wide, subjects, geometry, sizes)
    with torch.inference_mode():
        for number, job in enumerate(jobs):
            checks.append(job())
            if progress is not None:
                progress(number + 1, len(jobs))
    forget_neighbours()
    differing = {size for check in checks for size in check.sizes_differing}
    broken = [check.name for check in checks if 0 in check.sizes_differing]
    refusal = (
        f"on this machine the reference pass of {arithmetic.recipe.rows} rows does not repeat its own bits for "
        f"{', '.join(broken[:3])}, so no answer can be guaranteed"
        if broken
        else None
    )
    certified = () if broken else tuple(size for size in sizes if size not in differing)
    return Certificate(
        key=certificate_key(about),
        subject=about,
        sizes=certified,
        checks=tuple(checks),
        refusal=refusal,
        seconds=round(time.monotonic() - started, 3),
    )


def _jobs(
    arithmetic: Arithmetic,
    wide: Arithmetic,
    subjects: Sequence[Subject],
    geometry: Geometry,
    sizes: tuple[int, ...],
) -> list[Callable[[], OperationCheck]]:
    edges = tuple(
        size for size in sizes if size in (1, 2, arithmetic.recipe.rows, 2 * arithmetic.recipe.rows)
    )
    jobs: list[Callable[[], OperationCheck]] = [
        partial(_check_product, arithmetic, subject, sizes if subject.thorough else edges)
        for subject in subjects
    ]
    for one in dict.fromkeys((arithmetic, wide)):
        suffix = "" if one is arithmetic else " (fp32)"
        jobs += [
            partial(check_rows, name + suffix, f"[{width}]", operation, operation, width, one, sizes)
            for name, width, operation in _row_operations(one, geometry)
        ]
        jobs.append(partial(check_attention, one, geometry, sizes, name="attention" + suffix))
    few = tuple(size for size in sizes if size <= 64)
    jobs += [
        partial(_check_choice, name, operation, geometry.vocab, arithmetic, few)
        for name, operation in _choice_operations(arithmetic)
    ]
    return jobs


def _check_product(arithmetic: Arithmetic, subject: Subject, sizes: tuple[int, ...]) -> OperationCheck:
    linear = subject.linear
    return check_rows(
        subject.name,
        f"{linear.out_features} x {linear.in_features}",
        lambda x: arithmetic.logits(x, linear, canonical=True),
        lambda x: arithmetic.logits(x, linear, canonical=False),
        linear.in_features,
        arithmetic,
        sizes,
    )


def check_rows(
    name: str,
    shape: str,
    canonical: RowOperation,
    fast: RowOperation,
    width: int,
    arithmetic: Arithmetic,
    sizes: Sequence[int],
) -> OperationCheck:
    """Compare probes in every size of the fast form with the canonical form in the reference's size.

    Size 0 stands for the canonical form itself: its probes moved to other places, among other neighbours, and in the other
    totals a canonical pass can have, which are multiples of the reference's.
    """
    dtype = getattr(torch, arithmetic.recipe.dtype)
    rows = arithmetic.recipe.rows
    probes = _probes(width, dtype)
    reference = canonical(plant(probes, rows, places(rows)[0], (1.0, 1.0)))[places(rows)[0]]
    multiples = range(rows, max(sizes) + 1, rows)
    trials = [
        (0, size, canonical) for size in (multiples if canonical is fast else {rows, 2 * rows, multiples[-1]})
    ]
    trials += [(size, size, fast) for size in sizes]
    differing: set[int] = set()
    comparisons = 0
    for label, size, operation in trials:
        for number, at in enumerate(places(size)):
            out = operation(plant(probes[: len(at)], size, at, _SCALES[number]))
            comparisons += len(at)
            if not same_bits(out[at], reference[: len(at)]):
                differing.add(label)
    return OperationCheck(name, shape, tuple(sizes), tuple(sorted(differing)), comparisons)


def _probes(width: int, dtype: torch.dtype) -> Tensor:
    """Ordinary activations, and some whose products nearly cancel."""
    generator = torch.Generator().manual_seed(width)
    probes = torch.randn(NUM_PROBES, width, generator=generator)
    probes[-1, ::2] *= 300.0
    probes[-1, 1::2] = -probes[-1, ::2][: probes[-1, 1::2].shape[0]] * (1 + 1e-3)
    return probes.to(dtype)


def _row_operations(arithmetic: Arithmetic, geometry: Geometry) -> list[tuple[str, int, RowOperation]]:
    """Everything that works on a row alone."""
    dtype = getattr(torch, arithmetic.recipe.dtype)
    hidden, heads, dim = geometry.hidden, geometry.heads, geometry.head_dim
    generator = torch.Generator().manual_seed(1)
    weight = torch.rand(hidden, generator=generator).add(0.5).to(dtype)
    angles = torch.rand(1, dim // 2, generator=generator) * 6

    def add_norm(x: Tensor) -> Tensor:
        residual = x.flip(1).contiguous()
        normed = arithmetic.add_rms_norm(residual, x, weight, 1e-5)
        return torch.cat([residual, normed], 1)

    def rope(x: Tensor) -> Tensor:
        q = x.view(-1, heads, dim).clone()
        k = q.flip(2).contiguous()
        cos, sin = (table.expand(x.shape[0], -1).contiguous() for table in (angles.cos(), angles.sin()))
        arithmetic.rope(q, k, cos, sin)
        return torch.cat([q, k], 1).flatten(1)

    return [
        ("rms_norm", hidden, lambda x: arithmetic.rms_norm(x, weight, 1e-5)),
        ("add_rms_norm", hidden, add_norm),
        ("rope", heads * dim, rope),
        ("silu_mul", 2 * geometry.intermediate, arithmetic.silu_mul),
    ]


def _choice_operations(arithmetic: Arithmetic) -> list[tuple[str, RowOperation]]:
    """The sampler, with settings that make it do all it can."""

    def batch(n: int) -> ChoiceBatch:
        return ChoiceBatch(
            temperature=torch.full((n,), 0.8),
            top_k=torch.full((n,), 40, dtype=torch.int32),
            top_p=torch.full((n,), 0.95),
            min_p=torch.full((n,), 0.01),
            seeds=torch.full((n,), 7, dtype=torch.int64),
            positions=torch.full((n,), 11, dtype=torch.int64),
        )

    def greedy(x: Tensor) -> Tensor:
        n = x.shape[0]
        zeros, ones = torch.zeros(n), torch.ones(n)
        ints = torch.zeros(n, dtype=torch.int64)
        return arithmetic.choose(x, ChoiceBatch(zeros, ints.int(), ones, zeros, ints, ints))

    return [
        ("argmax", greedy),
        ("sample", lambda x: arithmetic.choose(x, batch(x.shape[0]))),
        ("logsumexp", arithmetic.logsumexp),
        ("top", lambda x: torch.cat([part.double() for part in arithmetic.top(x, 5)], 1)),
    ]


def _check_choice(
    name: str, operation: RowOperation, vocab: int, arithmetic: Arithmetic, sizes: tuple[int, ...]
) -> OperationCheck:
    """Sampler operations take whatever number of rows is sampled, so one that differs anywhere counts as size 0."""
    generator = torch.Generator().manual_seed(3)
    probes = torch.randn(NUM_PROBES, vocab, generator=generator) * 4
    rows = arithmetic.recipe.rows
    reference = operation(plant(probes, rows, places(rows)[0], (1.0, 1.0)))[places(rows)[0]]
    differing = []
    for size in sizes:
        at = places(size)[-1]
        out = operation(plant(probes[: len(at)], size, at, _SCALES[0]))
        if not same_bits(out[at], reference[: len(at)]):
            differing.append(size)
    return OperationCheck(
        name, f"[{vocab}]", sizes, (0, *differing) if differing else (), len(sizes) * NUM_PROBES
    )
