"""Certification: find out which batch sizes give the reference bits on this machine.

`plan_certification` lists the checks of a certificate, which are made at once or in slices
(`certification.py`). The reference of a token is the result of the canonical form of an operation in a batch of exactly
`recipe.rows` tokens. Every other batch size is compared with that, bit by bit, never with itself.

A certificate is about operations: shape, dtype, device, library and settings. So each operation is
tried at every batch size with synthetic weights and inputs that show the order of summation
(`checks/order_probes.py`), and a model of the same shape may use the certificate. The weights of the
model at hand are tried in addition, at a few sizes.

Rounding hides differences: two sums that differ in fp32 mostly round to the same bf16. So GEMMs are
compared as fp32 sums where the backend can give them, and operations without weights in fp32 as
well as in the model's dtype. On a GPU fp32 uses other instructions and says nothing about bf16;
there whole passes are compared as they run, too (`checks/passes.py`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

from holdfast.certification.certificate import CheckSteps
from holdfast.certification.certification import AllPages, Certification, Check
from holdfast.certification.checks.attention import check_attention, check_long_attention
from holdfast.certification.checks.operations import (
    GemmCase,
    check_fast_head,
    check_gemm,
    check_head,
    check_layer,
    check_sampler_op,
    check_token_op,
    merge_checks,
)
from holdfast.certification.checks.order_probes import MIN_COLUMNS
from holdfast.certification.checks.passes import PassBench, check_passes
from holdfast.certification.checks.probes import DENSE_SEATING, tested_sizes
from holdfast.certification.checks.recurrence import check_recurrence
from holdfast.certification.checks.synthetic import sampler_ops, synthetic_layer, synthetic_linears, token_ops
from holdfast.models.config import DecoderConfig
from holdfast.models.decoder import Decoder, NamedLinear
from holdfast.numerics.arrays import HOST
from holdfast.numerics.batch_sizes import MAX_HEAD_TOKENS
from holdfast.numerics.ops import Backend
from holdfast.worker.kv_store import KVStore
from holdfast.worker.logits import max_logits_tokens
from holdfast.worker.model_runner import ModelRunner

_SAMPLED_SIZES = (1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 100, 128, 255, 256, 511, 512)
_ROWWISE_SAMPLED_SIZES = (1, 3, 16, 64)
_MAX_CPU_HEAD_TOKENS = max_logits_tokens(HOST)
_EXPERT_ROWS = (
    *range(1, 34),
    *(47, 48, 49, 63, 65, 66, 79, 80, 81, 95, 97, 111, 113, 127, 129, 130, 159, 160, 161),
)
_SLOW_SAMPLER_OPS, _FEW_SAMPLED_SIZES = ("sample, ties", "logsumexp, few tokens"), (1, 64, 512)
_QUICK_SIZES = (1, 3, 8)  # of sampled tokens, in the reference's own test
_QUICK_CONTEXT = 4000  # of the reference's own test of whole passes


def plan_certification(
    subject: Mapping[str, object],
    decoder: Decoder,
    runner: ModelRunner,
    store: KVStore,
    *,
    max_pass_tokens: int,
    max_len: int,
    lender: AllPages,
) -> Certification:
    """Return all checks of this engine. Whole passes are checked in pages of the lender."""
    backend, model = decoder.backend, decoder.config
    last: list[Check] = []
    reference: list[Check] = []
    kernels = None
    if backend.device.type == "cuda":
        rows = backend.recipe.rows
        slots = store.scratch_states
        bench = PassBench(runner, store.layers, backend.page_size, model.vocab_size, rows, lender, slots)
        canonical = (rows, 2 * rows)
        last.append(partial(check_passes, bench, max_pass_tokens, max_len, canonical))
        quick, quick_len = replace(bench, lender=AllPages(store.num_pages)), min(max_len, _QUICK_CONTEXT)
        reference.append(partial(check_passes, quick, max_pass_tokens, quick_len, canonical, ()))
        kernels = runner.list_kernels

    def make_checks() -> list[Check]:
        return [
            *_gemm_checks(decoder, max_pass_tokens),
            *_layer_checks(decoder, max_pass_tokens),
            *_weightless_checks(backend, model, max_pass_tokens, max_len),
            *_recurrence_checks(decoder, _sizes(backend, max_pass_tokens)),
            *last,
        ]

    return Certification(
        subject,
        make_checks,
        backend.can.sizes(max_pass_tokens),
        make_reference_checks=lambda: [*_reference_checks(decoder, max_len), *reference],
        block_rows=backend.can.block_rows,
        kernels=kernels,
        device=backend.device,
    )


def _sizes(backend: Backend, max_pass_tokens: int) -> tuple[int, ...]:
    return tested_sizes(backend, backend.can.sizes(max_pass_tokens))


def _gemm_checks(decoder: Decoder, max_pass_tokens: int) -> Iterator[Check]:
    """Check every shape with synthetic weights at every size. Then the model's own weights at a few sizes:
    those of the first, a middle and the last layer, and the head."""
    backend = decoder.backend
    sizes = _sizes(backend, max_pass_tokens)
    few, sampled = _few_sizes(backend, sizes), _sampled_layers(decoder)
    last_expert = decoder.config.num_experts - 1
    sampled_experts = {None, 0, last_expert // 2, last_expert}
    for product in _distinct_shapes(decoder):
        yield partial(_check_synthetic, backend, product, sizes)
    for product in decoder.linears():
        case = GemmCase(product.name, product.linear, is_head=product.is_head)
        if product.is_head:
            yield partial(check_head, backend, case, (1, 2))
        elif product.layer not in sampled or product.expert not in sampled_experts:
            continue
        elif product.is_routed:
            yield partial(_check_routed, backend, replace(case, is_head=True), few)
        else:
            yield partial(check_gemm, backend, case, few)


def _distinct_shapes(decoder: Decoder) -> list[NamedLinear]:
    """Return one linear layer of each shape, the head apart: it runs in another form."""
    found = {
        (
            one.is_head,
            one.is_routed,
            one.linear.out_features,
            one.linear.in_features,
            one.linear.bias is not None,
        ): one
        for one in decoder.linears()
    }
    return list(found.values())


def _check_synthetic(backend: Backend, product: NamedLinear, sizes: tuple[int, ...]) -> CheckSteps:
    """Check a GEMM of this shape with weights that show the order of summation. The second weight of a wide
    GEMM has the kinds of columns swapped; it is for an odd column at the end, and small sizes do."""
    name = f"synthetic {product.name.rpartition('.')[2]}"
    check = _check_synthetic_head if product.is_head else _check_routed if product.is_routed else check_gemm
    is_fp32 = product.is_head or product.is_routed
    cases = (
        GemmCase(name, linear, is_head=is_fp32, is_thorough=number == 0)
        for number, linear in enumerate(synthetic_linears(backend, product.linear))
    )
    is_wide = product.linear.out_features >= MIN_COLUMNS
    small = tuple(size for size in sizes if size <= DENSE_SEATING)
    found = []
    for case in cases:
        found.append((yield from check(backend, case, sizes if case.is_thorough or not is_wide else small)))
    return merge_checks(found)


def _check_routed(backend: Backend, case: GemmCase, sizes: tuple[int, ...]) -> CheckSteps:
    """Check a router or an expert. A pass of any size may give an expert any number of tokens, in any form."""
    if not backend.can.certifies_experts:
        return (yield from check_head(backend, case, sizes))
    forms = backend.expert_forms(case.linear)
    if not forms:
        return (yield from check_gemm(backend, case, sizes))
    # An expert may get any number of rows. Tiles have at most 128: beyond, other numbers only repeat them.
    some = _EXPERT_ROWS if case.is_thorough and not backend.can.is_interpreted else ()
    counts = tuple(sorted({*(size for size in some if size <= sizes[-1]), *sizes}))
    found = [(yield from check_head(backend, case, counts))]
    for linear in forms:
        found.append((yield from check_fast_head(backend, replace(case, linear=linear), counts, sizes)))
    return merge_checks(found)


def _check_synthetic_head(backend: Backend, case: GemmCase, sizes: tuple[int, ...]) -> CheckSteps:
    has_fast_form = backend.can.certifies_head
    max_tokens = MAX_HEAD_TOKENS if has_fast_form else _MAX_CPU_HEAD_TOKENS
    head_sizes = tuple(size for size in sizes if size <= max_tokens)
    found = yield from check_head(backend, case, head_sizes)
    if has_fast_form:
        found = merge_checks([found, (yield from check_fast_head(backend, case, head_sizes, sizes))])
    return found


def _layer_checks(decoder: Decoder, max_pass_tokens: int) -> Iterator[Check]:
    """Check the fused layer against its operations one by one: with synthetic weights, then the first, a
    middle and the last layer. The largest size shows no more of these if it repeats the code of a block."""
    backend = decoder.backend
    sizes = _sizes(backend, max_pass_tokens)
    few = (*(size for size in sizes if size in backend.can.layer_sizes), sizes[-1])
    small = tuple(size for size in sizes if size <= DENSE_SEATING)
    yield partial(_check_synthetic_layer, decoder, few if backend.can.is_interpreted else (*small, *few))
    own = few if backend.can.block_rows is None else few[:-1]
    for index in _sampled_layers(decoder):
        layer = decoder.layers[index]
        yield partial(check_layer, backend, f"layers.{index}", layer, decoder.layer_shape, own)


def _check_synthetic_layer(decoder: Decoder, sizes: tuple[int, ...]) -> CheckSteps:
    attending = next(layer for layer in decoder.layers if layer.qkv is not None)
    weights = synthetic_layer(decoder.backend, attending)
    tested = tuple(sorted(set(sizes)))
    return check_layer(decoder.backend, "synthetic layer", weights, decoder.layer_shape, tested)


def _weightless_checks(
    backend: Backend, model: DecoderConfig, max_pass_tokens: int, max_len: int
) -> Iterator[Check]:
    """Check norms, rope, activation, attention and the sampler."""
    sizes = _sizes(backend, max_pass_tokens)
    for one in dict.fromkeys((backend, backend.in_fp32())):
        suffix = "" if one is backend else " (fp32)"
        for op in token_ops(one, model):
            yield partial(check_token_op, one, op, sizes, suffix=suffix)
        yield partial(check_attention, one, model, max_len, sizes, name="attention" + suffix)
    if backend.device.type == "cuda":
        yield partial(check_long_attention, backend, model, max_len, name="attention, longest context")
    sampled = _sampled_sizes(backend, sizes)
    for sampler_op in sampler_ops(backend, model.vocab_size):
        is_slow = sampler_op.name in _SLOW_SAMPLER_OPS
        tested = tuple(size for size in sampled if not is_slow or size in _FEW_SAMPLED_SIZES)
        yield partial(check_sampler_op, backend, sampler_op, tested)


def _recurrence_checks(
    decoder: Decoder, sizes: tuple[int, ...], *, is_quick: bool = False
) -> Iterator[Check]:
    """Check the recurrence of the first layer of each kind."""
    kinds = {
        type(one.mixer.recurrence): one.mixer for one in reversed(decoder.layers) if one.mixer is not None
    }
    for kind, mixer in kinds.items():
        name = f"recurrence {kind.__name__}"
        recurrence = mixer.recurrence
        yield partial(check_recurrence, decoder.backend, recurrence, sizes, name=name, is_quick=is_quick)


def _reference_checks(decoder: Decoder, max_len: int) -> Iterator[Check]:
    """Yield the reference's own test, in a fraction of a second: every operation in canonical form, at other
    places, among other neighbours, in passes of one and two reference sizes.

    It comes before the first answer. The certification repeats it with all sizes and inputs.
    """
    backend, model = decoder.backend, decoder.config
    rows = backend.recipe.rows
    for product in _distinct_shapes(decoder):
        if product.is_head or product.is_routed:
            case = GemmCase(product.name, product.linear, is_head=True)
            yield partial(check_head, backend, case, (*_QUICK_SIZES, rows))
        else:
            yield partial(_check_canonical_gemm, backend, product)
    for index in _first_layers(decoder):
        yield partial(check_layer, backend, f"layers.{index}", decoder.layers[index], decoder.layer_shape, ())
    for op in token_ops(backend, model, is_quick=True):
        yield partial(check_token_op, backend, op, (2 * rows,))
    yield partial(check_attention, backend, model, max_len, (2 * rows,), name="attention", is_quick=True)
    yield from _recurrence_checks(decoder, (rows, 2 * rows), is_quick=True)
    for sampler_op in sampler_ops(backend, model.vocab_size, is_quick=True):
        yield partial(check_sampler_op, backend, sampler_op, _QUICK_SIZES)


def _check_canonical_gemm(backend: Backend, product: NamedLinear) -> CheckSteps:
    """One synthetic weight of this shape, in canonical passes."""
    name = f"synthetic {product.name.rpartition('.')[2]}"
    return check_gemm(backend, GemmCase(name, next(synthetic_linears(backend, product.linear))), ())


def _sampled_layers(decoder: Decoder) -> list[int]:
    last = decoder.config.num_layers - 1
    return sorted({*_first_layers(decoder), decoder.config.num_layers // 2, last})


def _first_layers(decoder: Decoder) -> list[int]:
    """Return the first layer of each kind."""
    kinds = [(layer.qkv is not None, layer.mixer is not None, layer.has_mlp) for layer in decoder.layers]
    return sorted(kinds.index(kind) for kind in set(kinds))


def _few_sizes(backend: Backend, sizes: tuple[int, ...]) -> tuple[int, ...]:
    reference_tokens = backend.recipe.rows
    return tuple(size for size in sizes if size in (1, 2, reference_tokens, 2 * reference_tokens))


def _sampled_sizes(backend: Backend, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return numbers of sampled tokens the sampler's operations are checked with."""
    if backend.can.is_interpreted:
        return tuple(size for size in sizes if size <= DENSE_SEATING)
    if backend.can.samples_by_row:
        return _ROWWISE_SAMPLED_SIZES
    return tuple(size for size in _SAMPLED_SIZES if size <= sizes[-1])
