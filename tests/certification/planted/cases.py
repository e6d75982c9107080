"""What is planted, by backend: each case is an operation of one shape and dtype with one change."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from certification.planted.mutants import Mutation
from certification.planted.orders import HALVES, ORDERS, Order, ReorderedGemm
from certification.planted.search import (
    RealWeights,
    Search,
    search_attention,
    search_gemm,
    search_logsumexp,
    search_sample,
    search_token_op,
)
from certification.planted.switched import Scope, SwitchedBackend
from holdfast.certification.certificate import OperationCheck, run_check
from holdfast.certification.checks.attention import check_attention
from holdfast.certification.checks.operations import (
    GemmCase,
    check_gemm,
    check_head,
    check_sampler_op,
    check_token_op,
    merge_checks,
)
from holdfast.certification.checks.synthetic import sampler_ops, synthetic_linears, token_ops
from holdfast.models.config import DecoderConfig
from holdfast.models.dummy import tiny_config
from holdfast.numerics.ops import Backend

Check = Callable[[Any, tuple[int, ...]], OperationCheck]  # (backend, sizes)


@dataclass(frozen=True)
class PlantedTarget:
    """An operation of a backend: how the certification checks it, and how inputs are searched."""

    operation: str
    shape: str
    base: Backend
    check: Check
    search: Search
    canonical: bool = False  # the certification checks the canonical form at every size
    num_sizes: int | None = None  # so many of the sizes, evenly spread


@dataclass(frozen=True)
class Case:
    """A planted change. Without a mutant it is the control: nothing is changed.

    twin: the same change in fp32. On a CPU all arithmetic is fp32, and the certification checks
    operations without weights in fp32 too.
    """

    target: PlantedTarget
    planted: str
    mutant: Any
    scope: Scope
    twin: "Case | None" = None

    def backend(self) -> SwitchedBackend:
        return SwitchedBackend(self.target.base, self.mutant, self.target.operation, self.scope)

    def reported_sizes(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """The sizes that the certification's check reports. 0 is the reference."""
        reported = set(self.target.check(self.backend(), sizes).sizes_differing)
        if self.twin is not None:
            reported |= set(self.twin.reported_sizes(sizes))
        return tuple(sorted(reported))


@dataclass(frozen=True)
class GemmTarget:
    outputs: int
    width: int
    has_bias: bool = False
    is_head: bool = False
    split_k: int = 0  # on Triton
    num_sizes: int | None = None  # so many of the sizes: few columns need many synthetic weights


NEVER = Scope(lambda size: False)


def everywhere(target: PlantedTarget) -> Scope:
    """All sizes but those of canonical passes."""
    rows = target.base.recipe.rows
    return Scope(lambda size: size % rows != 0, canonical=target.canonical)


def gemm_target(base: Backend, gemm: GemmTarget, real: RealWeights | None) -> PlantedTarget:
    """A GEMM of this shape, checked with synthetic weights."""

    def check(backend: Any, sizes: tuple[int, ...]) -> OperationCheck:
        zeros = torch.zeros(gemm.outputs, gemm.width, device=base.device)
        like = base.pack(zeros, torch.zeros(gemm.outputs, device=base.device) if gemm.has_bias else None)
        run = check_head if gemm.is_head else check_gemm
        cases = (
            GemmCase("planted", linear, is_head=gemm.is_head, is_thorough=number == 0)
            for number, linear in enumerate(synthetic_linears(backend, like))
        )
        return merge_checks([run_check(run(backend, case, sizes)) for case in cases])

    operation = "linear" if base.can.rounds_in_gemm and not gemm.is_head else "logits"
    search = search_gemm(gemm.outputs, gemm.width, gemm.has_bias, real, operation)
    suffix = " + bias" if gemm.has_bias else " (head)" if gemm.is_head else ""
    shape = f"{gemm.outputs} x {gemm.width}{suffix}"
    return PlantedTarget("linear", shape, base, check, search, gemm.is_head, gemm.num_sizes)


def gemm_cases(target: PlantedTarget, orders: Sequence[Order]) -> Iterator[Case]:
    yield Case(target, "nothing", None, NEVER)
    for order in orders:
        yield Case(target, order.name, ReorderedGemm(target.base, order), everywhere(target))


def scoped_cases(target: PlantedTarget, outputs: int) -> Iterator[Case]:
    """One order in parts of the result: some columns, some rows, some sizes."""
    rows = target.base.recipe.rows

    def case(name: str, scope: Scope) -> Case:
        return Case(target, f"{HALVES.name}, {name}", ReorderedGemm(target.base, HALVES), scope)

    def odd(size: int) -> bool:
        return size % rows != 0

    yield case("one size only (7)", Scope(lambda size: size == 7))
    yield case("odd sizes only", Scope(lambda size: size % 2 == 1))
    yield case("sizes above the reference only", Scope(lambda size: size > rows and odd(size)))
    yield case("first row only", Scope(odd, rows=(0, 1)))
    yield case("last row only", Scope(odd, rows=(-1, None)))
    yield case("row 12 only", Scope(odd, rows=(12, 13)))
    yield case("row 30 only", Scope(odd, rows=(30, 31)))
    if outputs > 1:
        yield case("last column only", Scope(odd, columns=(-1, None)))
        yield case("first column only", Scope(odd, columns=(0, 1)))
        yield case("one column in the middle", Scope(odd, columns=(outputs // 2, outputs // 2 + 1)))
    if outputs > 16:
        last = outputs % 16 or 16
        yield case("last tile of N", Scope(odd, columns=(-last, None)))
        yield case("one block of 16 columns", Scope(odd, columns=(16, 32)))


def token_target(base: Backend, operation: str, model: DecoderConfig) -> PlantedTarget:
    def check(backend: Any, sizes: tuple[int, ...]) -> OperationCheck:
        (op,) = [one for one in token_ops(backend, model) if one.name == operation]
        return run_check(check_token_op(backend, op, sizes))

    widths = {"rope": model.num_heads * model.head_dim, "silu_mul": 2 * model.intermediate_size}
    width = widths.get(operation, model.hidden_size)
    return PlantedTarget(
        operation, f"[{width}]", base, check, search_token_op(operation, width, model.head_dim)
    )


def attention_target(base: Backend, model: DecoderConfig) -> PlantedTarget:
    def check(backend: Any, sizes: tuple[int, ...]) -> OperationCheck:
        return run_check(
            check_attention(backend, model, model.max_position_embeddings, sizes, name="attention")
        )

    text = f"{model.num_heads} heads, {model.num_kv_heads} kv, {model.head_dim}"
    return PlantedTarget("attention", text, base, check, search_attention(model))


def sampler_target(base: Backend, operation: str, vocab: int) -> PlantedTarget:
    def check(backend: Any, sizes: tuple[int, ...]) -> OperationCheck:
        ops = [op for op in sampler_ops(backend, vocab) if op.name.split(",")[0] == operation]
        return merge_checks([run_check(check_sampler_op(backend, op, sizes)) for op in ops])

    searches = {"logsumexp": search_logsumexp, "sample": search_sample}
    return PlantedTarget(operation, f"[{vocab}]", base, check, searches[operation](vocab))


TOKEN_OPS = ("rms_norm", "add_rms_norm", "rope", "silu_mul")
SAMPLER_OPS = ("logsumexp", "sample")
OPERATIONS = (*TOKEN_OPS, "attention", *SAMPLER_OPS)


def target_of(base: Backend, operation: str, model: DecoderConfig) -> PlantedTarget:
    if operation in TOKEN_OPS:
        return token_target(base, operation, model)
    if operation in SAMPLER_OPS:
        return sampler_target(base, operation, model.vocab_size)
    return attention_target(base, model)


def mutation_cases(
    bases: Sequence[Backend],
    mutations: Sequence[Mutation],
    open_mutant: Callable[[Mutation, Backend], Any],
    model: DecoderConfig,
    operations: Sequence[str] = OPERATIONS,
) -> Iterator[Case]:
    """Every mutation for every operation it changes, and the control of each operation.

    bases: the backend and, if it has another dtype, the same one in fp32.
    """
    for operation in operations:
        found = [one for one in mutations if operation in one.operations]
        for mutation in (None, *found):
            case: Case | None = None
            for base in reversed(bases if operation not in SAMPLER_OPS else bases[:1]):
                target = target_of(base, operation, model)
                mutant = None if mutation is None else open_mutant(mutation, base)
                name, scope = ("nothing", NEVER) if mutation is None else (mutation.name, everywhere(target))
                case = Case(target, name, mutant, scope, case)
            assert case is not None
            yield case


def gemm_mutation_cases(
    targets: Sequence[PlantedTarget],
    mutations: Sequence[Mutation],
    open_mutant: Callable[[Mutation, Backend], Any],
) -> Iterator[Case]:
    for target in targets:
        for mutation in mutations:
            if "linear" in mutation.operations:
                mutant = open_mutant(mutation, target.base)
                yield Case(target, f"source: {mutation.name}", mutant, everywhere(target))


FEW_ORDERS = tuple(
    order
    for order in ORDERS
    if order.name
    in (
        "K in two halves",
        "8 lanes",
        "two middle leaves swapped",
        "tail apart",
        "fp64 accumulation",
        "reversed",
    )
)


def planted_model(
    *,
    hidden: int,
    heads: tuple[int, int, int],
    intermediate: int,
    vocab: int,
    max_len: int,
    window: int | None,
) -> DecoderConfig:
    """heads: their number, that of KV heads, and their width."""
    num_heads, num_kv_heads, head_dim = heads
    return replace(
        tiny_config(),
        hidden_size=hidden,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate_size=intermediate,
        vocab_size=vocab,
        max_position_embeddings=max_len,
        layer_windows=(window,),
    )


GPU_MODEL = planted_model(
    hidden=2880, heads=(16, 4, 128), intermediate=4864, vocab=49152, max_len=2001, window=1024
)
INTERPRETER_MODEL = planted_model(
    hidden=96, heads=(4, 2, 16), intermediate=64, vocab=4200, max_len=300, window=None
)
# Sizes that are no multiples of a vector or a block, where the operation allows it.
CPU_MODEL = planted_model(hidden=587, heads=(4, 2, 24), intermediate=200, vocab=5003, max_len=149, window=64)
