"""Checks of single operations: GEMMs, fused layers, token-wise operations, the sampler.

Each check plants probe tokens in batches of every size and compares their bits with the reference:
the canonical form in a batch of the reference's size. `synthetic` makes the operations to check.
A check pauses after each size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from holdfast.certification.certificate import CheckSteps, OperationCheck
from holdfast.certification.checks.order_probes import GemmProbes
from holdfast.certification.checks.probes import (
    MAX_BATCHES,
    Differences,
    ProbeBatch,
    canonical_sizes,
    mixed_batches,
    plant,
    rows_at,
    run_full,
)
from holdfast.numerics.arrays import Tensor, arrays_on
from holdfast.numerics.elementary import cos_sin_fp32
from holdfast.numerics.forward_batch import ForwardBatch, RecurrentBatch
from holdfast.numerics.layer import LayerShape, LayerWeights, RopeCosSin, run_layer
from holdfast.numerics.ops import Backend, Linear

_LOG_LEN, _MAX_STATES = 16, 64  # of recurrent layers
BatchOp = Callable[[Tensor], Tensor]  # [tokens, width] -> [tokens, ...]


@dataclass(frozen=True)
class GemmCase:
    """A GEMM with weights of the model or synthetic ones."""

    name: str
    linear: Linear
    is_head: bool = False
    is_thorough: bool = False  # also among neighbours of other magnitudes, and in large canonical passes

    @property
    def shape(self) -> str:
        return f"{self.linear.out_features} x {self.linear.in_features}"


@dataclass(frozen=True)
class ProbedOp:
    """An operation without learned weights, on each token or on logits alone."""

    name: str
    inputs: Tensor  # [probes, width]
    run: BatchOp


def check_gemm(backend: Backend, case: GemmCase, sizes: tuple[int, ...]) -> CheckSteps:
    """Check the GEMM as it runs."""
    linear = case.linear
    runs_rounded = backend.can.rounds_in_gemm and not case.is_head
    gemm = backend.linear if runs_rounded else backend.logits
    reference_tokens = backend.recipe.rows
    canonical = {reference_tokens, 2 * reference_tokens}
    if case.is_thorough:
        canonical.add(max(sizes) // reference_tokens * reference_tokens or reference_tokens)
    return _check(
        backend,
        case.name,
        sizes,
        shape=case.shape,
        probes=_gemm_inputs(backend, linear.in_features),
        canonical=lambda x: gemm(x, linear, canonical=True),
        fast=lambda x: gemm(x, linear, canonical=False),
        canonical_sizes=sorted(canonical),
        mixed=mixed_batches if case.is_thorough else None,
    )


def merge_checks(checks: Sequence[OperationCheck]) -> OperationCheck:
    """Checks of one operation with other weights, as one."""
    first = checks[0]
    return replace(
        first,
        sizes_differing=tuple(sorted({size for one in checks for size in one.sizes_differing})),
        num_comparisons=sum(one.num_comparisons for one in checks),
    )


def check_head(backend: Backend, case: GemmCase, sizes: tuple[int, ...]) -> CheckSteps:
    """Check a GEMM that runs in its canonical form for any number of tokens: the head, a router, an
    expert. A difference at any size is a fault of the reference: it is reported as size 0."""
    linear = case.linear

    def canonical(x: Tensor) -> Tensor:
        return backend.logits(x, linear, canonical=True)

    found = yield from _check(
        backend,
        case.name,
        sizes,
        shape=case.shape,
        probes=_gemm_inputs(backend, linear.in_features),
        canonical=canonical,
        fast=canonical,
    )
    return found if found.agrees else replace(found, sizes_differing=(0, *found.sizes_differing))


def check_fast_head(
    backend: Backend, case: GemmCase, head_sizes: tuple[int, ...], pass_sizes: tuple[int, ...]
) -> CheckSteps:
    """Check the head in its fast form, as a certified pass may compute it. A pass of any size may
    sample any number of tokens, so one head size that differs leaves no pass size certified."""
    found = yield from check_gemm(backend, replace(case, name=f"{case.name}, as it comes"), head_sizes)
    if not set(found.sizes_differing) - {0}:
        return found
    return replace(found, sizes_differing=tuple(sorted({*found.sizes_differing, *pass_sizes})))


def check_layer(
    backend: Backend, name: str, weights: LayerWeights, shape: LayerShape, sizes: tuple[int, ...]
) -> CheckSteps:
    """Check a whole layer, as the backend runs it, against its operations one by one.

    Every token is a request of one token, so the layer works on each alone. Attention over more has its
    own check.
    """
    first = weights.qkv if weights.mixer is None else weights.mixer.in_proj
    assert first is not None
    hidden = first.in_features

    def run(x: Tensor, *, canonical: bool, fused: bool) -> Tensor:
        count, xp = x.shape[0], arrays_on(x.device)
        kv, each = backend.new_kv_layer(count, shape.kv_heads, shape.head_dim), xp.arange(count)
        recurrent = None
        if weights.mixer is not None:
            slots = min(count, _MAX_STATES)  # shared by requests: no state is stored, and no log is read
            kv = replace(kv, states=backend.new_state_layer(slots, _LOG_LEN, weights.mixer.recurrence))
            zeros = xp.zeros_like(each)
            spans = xp.stack((each % slots, zeros, zeros, zeros, each, each + 1), 1)
            recurrent = RecurrentBatch(spans.to(xp.int32), 0)
        batch = ForwardBatch(
            token_ids=xp.zeros(count, dtype=xp.int64),
            positions=xp.zeros(count, dtype=xp.int64),
            slots=each * backend.page_size,
            span_starts=xp.arange(count + 1, dtype=xp.int32),
            page_table=xp.arange(count, dtype=xp.int32)[:, None].contiguous(),
            recurrent=recurrent,
        )
        batch = backend.prepare(batch, shape.heads, shape.kv_heads)
        angles = np.tile(np.linspace(0.1, 3.0, shape.head_dim // 2, dtype=np.float32), (count, 1))
        rotations = RopeCosSin(*map(xp.from_numpy, cos_sin_fp32(angles)))
        residual, normed = x.clone(), x.clone()
        parts = (residual, normed, weights, shape, kv, batch, rotations)
        if fused:
            backend.layer(*parts, canonical=canonical)
        else:
            run_layer(backend, *parts, canonical=True)
        return xp.cat([residual, normed], 1)

    return _check(
        backend,
        name,
        sizes,
        shape=f"[{hidden}]",
        probes=_gemm_inputs(backend, hidden),
        canonical=partial(run, canonical=True, fused=True),
        fast=partial(run, canonical=False, fused=True),
        reference=partial(run, canonical=True, fused=False),
        canonical_sizes=(backend.recipe.rows, 2 * backend.recipe.rows),
    )


def check_token_op(backend: Backend, op: ProbedOp, sizes: tuple[int, ...], *, suffix: str = "") -> CheckSteps:
    """Such an operation has one form, which is the canonical one. Canonical passes have multiples of
    the reference's size: if one differs, the reference does."""
    reference_tokens = backend.recipe.rows
    return _check(
        backend,
        op.name + suffix,
        tuple(size for size in sizes if size % reference_tokens),
        shape=f"[{op.inputs.shape[1]}]",
        probes=op.inputs,
        canonical=op.run,
        fast=op.run,
        canonical_sizes=canonical_sizes(backend, max(sizes)),
        mixed=_last_mixed_batch,
    )


def check_sampler_op(backend: Backend, op: ProbedOp, sizes: tuple[int, ...]) -> CheckSteps:
    """The sampler gets any number of tokens, whatever the pass, so a difference at any size is
    reported as size 0."""
    probes = op.inputs
    expected = _in_order(*(yield from run_full(op.run, probes, backend.recipe.rows)), len(probes))
    differences = Differences()
    for size in sizes:
        found, order = yield from run_full(op.run, probes, size, MAX_BATCHES)
        differences.compare(size, found, expected.index_select(0, order))
        yield
    differing = tuple(sorted(differences.labels()))
    shape = f"[{probes.shape[1]}]"
    return OperationCheck(
        op.name, shape, sizes, (0, *differing) if differing else (), differences.num_comparisons
    )


def _check(
    backend: Backend,
    name: str,
    sizes: Sequence[int],
    *,
    shape: str,
    probes: Tensor,
    canonical: BatchOp,
    fast: BatchOp,
    mixed: Callable[[int, int], Sequence[ProbeBatch]] | None = None,
    canonical_sizes: Sequence[int] = (),
    reference: BatchOp | None = None,
) -> CheckSteps:
    """Compare probes in the fast form of every size with the canonical form of the reference size.

    Every probe is tried at every size, in at most `MAX_BATCHES` batches of probes; with `mixed`, some among neighbours of
    other magnitudes. Size 0 stands for the canonical form itself: its probes at
    other places, among other neighbours, and in the sizes that canonical passes may have.
    """
    found, order = yield from run_full(reference or canonical, probes, backend.recipe.rows)
    expected = _in_order(found, order, len(probes))
    trials = [(0, size, canonical) for size in canonical_sizes]
    trials += [(size, size, fast) for size in sizes]
    differences = Differences()
    for label, size, operation in trials:
        found, order = yield from run_full(operation, probes, size, MAX_BATCHES)
        differences.compare(label, found, expected.index_select(0, order))
        for batch in mixed(size, len(probes)) if mixed is not None else ():
            found = rows_at(operation(plant(probes, batch)), batch.seats)
            differences.compare(label, found, rows_at(expected, batch.probes))
        yield
    differing = tuple(sorted(differences.labels()))
    return OperationCheck(name, shape, tuple(sizes), differing, differences.num_comparisons)


def _last_mixed_batch(size: int, num_probes: int) -> list[ProbeBatch]:
    """For operations whose tokens are computed one by one."""
    return mixed_batches(size, num_probes)[-1:]


def _in_order(found: Tensor, order: Tensor, num_probes: int) -> Tensor:
    """Return the result of every probe, in the order of the probes."""
    return found.new_empty((num_probes, *found.shape[1:])).index_copy_(0, order, found)


def _gemm_inputs(backend: Backend, width: int) -> Tensor:
    return GemmProbes(width, arrays_on(backend.device).dtype(backend.recipe.dtype), backend.device).inputs
