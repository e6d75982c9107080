"""Asks this machine which row totals give the reference's bits, operation by operation, with the model's real weights.

The reference of a row is what the canonical form of an operation says of it in a pass of exactly `recipe.rows` rows. Every
other total is compared with that, never with itself: probe rows are planted at the first, a middle and the last place
among neighbours that are huge or tiny, and their bits are compared, without tolerance.

Rounding hides differences: two sums that differ in fp32 are mostly the same bf16. So products are compared as fp32 sums
where the backend can give them, and operations without weights in fp32 as well as in the model's dtype (`wide`). On a GPU
fp32 is another instruction and says nothing of bf16; there the recipes are chosen with probes that cancel (`slices`), and
whole passes are compared as they run (`more`).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch

from holdfast.certification.attention_checks import check_attention, check_long_attention
from holdfast.certification.certificate import Certificate, OperationCheck, certificate_key
from holdfast.certification.op_checks import (
    Geometry,
    Subject,
    WholeLayer,
    check_choice,
    check_fast_head,
    check_head,
    check_layer,
    check_product,
    check_rows,
    choice_operations,
    row_operations,
)
from holdfast.certification.probes import MANY_ROWS, forget_neighbours
from holdfast.numerics.batch_sizes import MAX_HEAD_TOKENS, is_interpreted, sizes_to_certify
from holdfast.numerics.ops import Backend

Progress = Callable[[int, int], None]
Job = Callable[[], OperationCheck]

_SAMPLED = (*range(1, 33), 48, 64, 100, 128, 255, 256, 511, 512)
_LAYER_TOTALS = (1, 2, 7, 8, 32, 100, 128, 256, 511, 512)


def certify(
    backend: Backend,
    wide: Backend,
    subjects: Sequence[Subject],
    layers: Sequence[WholeLayer],
    geometry: Geometry,
    max_rows: int,
    about: Mapping[str, object],
    progress: Progress | None = None,
    more: Sequence[Job] = (),
    kernels: Callable[[], tuple[str, ...]] = tuple,
) -> Certificate:
    """Test every operation and say which totals agree everywhere.

    `wide` is the same backend for fp32; `about` is what the certificate is filed under; `more` are checks of whole
    passes, and `kernels` names those a pass runs, for who has passes and is not known here.
    """
    started = time.monotonic()
    sizes = sizes_to_certify(backend, max_rows)
    checks: list[OperationCheck] = []
    jobs = [*_jobs(backend, wide, subjects, layers, geometry, sizes), *more]
    with torch.inference_mode():
        for number, job in enumerate(jobs):
            checks.append(job())
            if progress is not None:
                progress(number + 1, len(jobs))
    forget_neighbours()
    differing = {size for check in checks for size in check.sizes_differing}
    broken = [check.name for check in checks if 0 in check.sizes_differing]
    refusal = (
        f"on this machine the reference pass of {backend.recipe.rows} rows does not repeat its own bits for "
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
        kernels=kernels(),
    )


def _jobs(
    backend: Backend,
    wide: Backend,
    subjects: Sequence[Subject],
    layers: Sequence[WholeLayer],
    geometry: Geometry,
    sizes: tuple[int, ...],
) -> list[Job]:
    rows = backend.recipe.rows
    edges = tuple(size for size in sizes if size in (1, 2, rows, 2 * rows))
    few = tuple(size for size in sizes if size <= MANY_ROWS)
    on_gpu = backend.recipe.path == "triton"
    jobs: list[Job] = []
    for subject in subjects:
        if not subject.is_head:
            jobs.append(partial(check_product, backend, subject, sizes if subject.thorough else edges))
        elif on_gpu:
            sampled = tuple(size for size in sizes if size <= MAX_HEAD_TOKENS)
            jobs.append(partial(check_head, backend, subject, sampled))
            jobs.append(partial(check_fast_head, backend, subject, sampled, sizes))
        else:
            jobs.append(partial(check_head, backend, subject, (*few, 2 * MANY_ROWS, sizes[-1])))
    whole = (*(size for size in sizes if size in _LAYER_TOTALS), sizes[-1]) if on_gpu else (*edges, sizes[-1])
    jobs += [partial(check_layer, backend, layer, geometry, whole) for layer in layers]
    for one in dict.fromkeys((backend, wide)):
        suffix = "" if one is backend else " (fp32)"
        jobs += [
            partial(check_rows, name + suffix, f"[{width}]", operation, operation, width, one, sizes)
            for name, width, operation in row_operations(one, geometry)
        ]
        jobs.append(partial(check_attention, one, geometry, sizes, name="attention" + suffix))
    if backend.device.type == "cuda":
        jobs.append(partial(check_long_attention, backend, geometry, name="attention, longest context"))
    sampled = _sampled(backend, few, sizes[-1])
    jobs += [
        partial(check_choice, name, operation, geometry.vocab, backend, sampled)
        for name, operation in choice_operations(backend)
    ]
    return jobs


def _sampled(backend: Backend, few: tuple[int, ...], most: int) -> tuple[int, ...]:
    """Numbers of rows the sampler is tried with."""
    if is_interpreted(backend):
        return few
    if backend.recipe.path == "triton":
        return tuple(size for size in _SAMPLED if size <= most)
    return (*range(1, 33), *few[-4:])
