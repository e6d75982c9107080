"""Checks of single operations: GEMMs, fused layers, token-wise operations, the sampler.

Each check plants probe tokens in batches of every size and compares their bits with the reference:
the canonical form in a batch of the reference's size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from holdfast.certification.certificate import OperationCheck
from holdfast.certification.checks.probes import NUM_PROBES, Differences, plant, rows_at, seatings
from holdfast.numerics.forward_batch import ForwardBatch
from holdfast.numerics.layer import LayerShape, LayerWeights, RopeCosSin, run_layer
from holdfast.numerics.ops import Backend, Linear
from holdfast.numerics.sampling import SamplingBatch

BatchOp = Callable[[Tensor], Tensor]  # [tokens, width] -> [tokens, ...]

_SCALES = ((1e3, 1e-3), (1e3, 1e3), (1e-3, 1e-3))  # of the neighbours, by seating


@dataclass(frozen=True)
class ModelShape:
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
class GemmCase:
    """A GEMM with its real weights."""

    name: str
    linear: Linear
    is_head: bool = False

    @property
    def shape(self) -> str:
        return f"{self.linear.out_features} x {self.linear.in_features}"


@dataclass(frozen=True)
class LayerCase:
    """A whole layer as the backend runs it, compared with its operations one by one."""

    name: str
    weights: LayerWeights
    shape: LayerShape


@dataclass(frozen=True)
class TokenOp:
    """An operation without learned weights that works on each token alone."""

    name: str
    width: int
    run: BatchOp


def check_gemm(backend: Backend, case: GemmCase, sizes: tuple[int, ...]) -> OperationCheck:
    """The GEMM as it runs. On a GPU a GEMM whose output the library rounds is another kernel
    than one with fp32 output."""
    linear = case.linear
    runs_rounded = backend.recipe.path == "triton" and not case.is_head
    gemm = backend.linear if runs_rounded else backend.logits
    return _check(
        backend,
        case.name,
        sizes,
        shape=case.shape,
        width=linear.in_features,
        canonical=lambda x: gemm(x, linear, canonical=True),
        fast=lambda x: gemm(x, linear, canonical=False),
    )


def check_head(backend: Backend, case: GemmCase, sizes: tuple[int, ...]) -> OperationCheck:
    """The head in its canonical form, which runs for any number of sampled tokens. A difference
    at any size is a fault of the reference: it is reported as size 0."""
    linear = case.linear

    def canonical(x: Tensor) -> Tensor:
        return backend.logits(x, linear, canonical=True)

    def again(
        x: Tensor,
    ) -> Tensor:  # another function than `canonical`, so that `_check` takes it for a fast form
        return canonical(x)

    found = _check(
        backend,
        case.name,
        sizes,
        shape=case.shape,
        width=linear.in_features,
        canonical=canonical,
        fast=again,
    )
    return found if found.agrees else replace(found, sizes_differing=(0, *found.sizes_differing))


def check_fast_head(
    backend: Backend, case: GemmCase, head_sizes: tuple[int, ...], pass_sizes: tuple[int, ...]
) -> OperationCheck:
    """The head in its fast form, as a certified pass may compute it. A pass of any size may
    sample any number of tokens, so one head size that differs leaves no pass size certified."""
    found = check_gemm(backend, replace(case, name=f"{case.name}, as it comes"), head_sizes)
    if not set(found.sizes_differing) - {0}:
        return found
    return replace(found, sizes_differing=tuple(sorted({*found.sizes_differing, *pass_sizes})))


def check_layer(
    backend: Backend, case: LayerCase, model: ModelShape, sizes: tuple[int, ...]
) -> OperationCheck:
    """Every token is a request of one token, so the layer works on each alone. Attention over
    more has its own check."""

    def run(x: Tensor, *, canonical: bool, fused: bool) -> Tensor:
        count, device = x.shape[0], x.device
        kv = backend.new_kv_layer(count, model.kv_heads, model.head_dim)
        batch = ForwardBatch(
            token_ids=torch.zeros(count, dtype=torch.int64, device=device),
            positions=torch.zeros(count, dtype=torch.int64, device=device),
            slots=torch.arange(count, device=device) * model.page_size,
            span_starts=torch.arange(count + 1, dtype=torch.int32, device=device),
            page_table=torch.arange(count, dtype=torch.int32, device=device)[:, None].contiguous(),
        )
        angles = torch.linspace(0.1, 3.0, model.head_dim // 2, device=device).repeat(count, 1)
        rotations = RopeCosSin(angles.cos(), angles.sin())
        residual, normed = x.flip(1).contiguous(), x.clone()
        parts = (residual, normed, case.weights, case.shape, kv, batch, rotations)
        if fused:
            backend.layer(*parts, canonical=canonical)
        else:
            run_layer(backend, *parts, canonical=True)
        return torch.cat([residual, normed], 1)

    return _check(
        backend,
        case.name,
        sizes,
        shape=f"[{model.hidden}]",
        width=model.hidden,
        canonical=partial(run, canonical=True, fused=True),
        fast=partial(run, canonical=False, fused=True),
        reference=partial(run, canonical=True, fused=False),
    )


def check_token_op(
    backend: Backend, op: TokenOp, sizes: tuple[int, ...], *, suffix: str = ""
) -> OperationCheck:
    """Such an operation has one form, which is the canonical one."""
    return _check(
        backend,
        op.name + suffix,
        sizes,
        shape=f"[{op.width}]",
        width=op.width,
        canonical=op.run,
        fast=op.run,
    )


def check_sampler_op(
    backend: Backend, name: str, operation: BatchOp, vocab: int, sizes: tuple[int, ...]
) -> OperationCheck:
    """The sampler gets any number of tokens, whatever the pass, so a difference at any size is
    reported as size 0."""
    generator = torch.Generator().manual_seed(3)
    probes = (torch.randn(NUM_PROBES, vocab, generator=generator) * 4).to(backend.device)
    reference_tokens = backend.recipe.rows
    seats = seatings(reference_tokens)[0]
    reference = rows_at(operation(plant(probes, reference_tokens, seats, (1.0, 1.0))), seats)
    differences = Differences()
    for size in sizes:
        seats = seatings(size)[-1]
        out = operation(plant(probes[: len(seats)], size, seats, _SCALES[0]))
        differences.compare(size, rows_at(out, seats), reference[: len(seats)])
    differing = tuple(sorted(differences.labels()))
    return OperationCheck(
        name, f"[{vocab}]", sizes, (0, *differing) if differing else (), differences.num_comparisons
    )


def _check(
    backend: Backend,
    name: str,
    sizes: Sequence[int],
    *,
    shape: str,
    width: int,
    canonical: BatchOp,
    fast: BatchOp,
    reference: BatchOp | None = None,
) -> OperationCheck:
    """Compare probes in the fast form of every size with the canonical form of the reference size.

    Size 0 stands for the canonical form itself: its probes at other places, among other neighbours,
    and in the other sizes of canonical passes, which are multiples of the reference's.
    """
    dtype = getattr(torch, backend.recipe.dtype)
    reference_tokens = backend.recipe.rows
    probes = _probes(width, dtype).to(backend.device)
    seats = seatings(reference_tokens)[0]
    planted = plant(probes, reference_tokens, seats, (1.0, 1.0))
    expected = rows_at((reference or canonical)(planted), seats)
    multiples = range(reference_tokens, max(sizes) + 1, reference_tokens)
    canonical_sizes = (
        multiples if canonical is fast else {reference_tokens, 2 * reference_tokens, multiples[-1]}
    )
    trials = [(0, size, canonical) for size in canonical_sizes]
    trials += [(size, size, fast) for size in sizes]
    differences = Differences()
    for label, size, operation in trials:
        for number, seats in enumerate(seatings(size)):
            out = operation(plant(probes[: len(seats)], size, seats, _SCALES[number]))
            differences.compare(label, rows_at(out, seats), expected[: len(seats)])
    differing = tuple(sorted(differences.labels()))
    return OperationCheck(name, shape, tuple(sizes), differing, differences.num_comparisons)


def _probes(width: int, dtype: torch.dtype) -> Tensor:
    """Ordinary activations, and one whose products nearly cancel."""
    generator = torch.Generator().manual_seed(width)
    probes = torch.randn(NUM_PROBES, width, generator=generator)
    probes[-1, ::2] *= 300.0
    probes[-1, 1::2] = -probes[-1, ::2][: probes[-1, 1::2].shape[0]] * (1 + 1e-3)
    return probes.to(dtype)


def token_ops(backend: Backend, model: ModelShape) -> list[TokenOp]:
    """Norms, rope and the activation."""
    dtype = getattr(torch, backend.recipe.dtype)
    hidden, heads, dim = model.hidden, model.heads, model.head_dim
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
        TokenOp("rms_norm", hidden, lambda x: backend.rms_norm(x, weight, 1e-5)),
        TokenOp("add_rms_norm", hidden, add_norm),
        TokenOp("rope", heads * dim, rope),
        TokenOp("silu_mul", 2 * model.intermediate, backend.silu_mul),
    ]


def sampler_ops(backend: Backend) -> list[tuple[str, BatchOp]]:
    """The sampler's operations, with settings that use all of its features."""

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
