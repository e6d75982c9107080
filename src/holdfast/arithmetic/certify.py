"""Asks this machine which row totals give the reference's bits, operation by operation, with the model's real weights.

The reference of a row is what the canonical form of an operation says of it in a pass of exactly `recipe.rows` rows. Every
other total is compared with that, never with itself: probe rows are planted at the first, a middle and the last place
among neighbours that are huge or tiny, and their bits are compared, without tolerance.

Rounding hides differences: two sums that differ in fp32 are mostly the same bf16. So products are compared as fp32 sums
where the arithmetic can give them, and operations without weights in fp32 as well as in the model's dtype (`wide`).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch

from holdfast.arithmetic.attention_check import check_attention
from holdfast.arithmetic.certificate import Certificate, OperationCheck, certificate_key
from holdfast.arithmetic.ops import Arithmetic
from holdfast.arithmetic.probe import MANY_ROWS, forget_neighbours
from holdfast.arithmetic.row_checks import (
    Geometry,
    Subject,
    WholeLayer,
    check_choice,
    check_head,
    check_layer,
    check_product,
    check_rows,
    choice_operations,
    row_operations,
)

Progress = Callable[[int, int], None]


def candidate_sizes(max_rows: int) -> tuple[int, ...]:
    """The row totals an engine pads its passes to: every small one, then steps of at most a quarter."""
    steps = [*range(1, 9), *range(12, 33, 4), *range(40, 65, 8), *range(80, 129, 16), *range(160, 257, 32)]
    steps += range(320, max(max_rows, 320) + 1, 64)
    return (*(size for size in steps if size < max_rows), max_rows)


def certify(
    arithmetic: Arithmetic,
    wide: Arithmetic,
    subjects: Sequence[Subject],
    layers: Sequence[WholeLayer],
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
    jobs = _jobs(arithmetic, wide, subjects, layers, geometry, sizes)
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
    layers: Sequence[WholeLayer],
    geometry: Geometry,
    sizes: tuple[int, ...],
) -> list[Callable[[], OperationCheck]]:
    rows = arithmetic.recipe.rows
    edges = tuple(size for size in sizes if size in (1, 2, rows, 2 * rows))
    few = tuple(size for size in sizes if size <= MANY_ROWS)
    jobs: list[Callable[[], OperationCheck]] = [
        partial(check_head, arithmetic, subject, (*few, 2 * MANY_ROWS, sizes[-1]))
        if subject.is_head
        else partial(check_product, arithmetic, subject, sizes if subject.thorough else edges)
        for subject in subjects
    ]
    jobs += [partial(check_layer, arithmetic, layer, geometry, (*edges, sizes[-1])) for layer in layers]
    for one in dict.fromkeys((arithmetic, wide)):
        suffix = "" if one is arithmetic else " (fp32)"
        jobs += [
            partial(check_rows, name + suffix, f"[{width}]", operation, operation, width, one, sizes)
            for name, width, operation in row_operations(one, geometry)
        ]
        jobs.append(partial(check_attention, one, geometry, sizes, name="attention" + suffix))
    jobs += [
        partial(check_choice, name, operation, geometry.vocab, arithmetic, (*range(1, 33), *few[-4:]))
        for name, operation in choice_operations(arithmetic)
    ]
    return jobs
