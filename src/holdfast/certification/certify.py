"""Certification: find out which batch sizes give the reference bits on this machine.

`obtain_certificate` is the entry: it loads the certificate of an earlier start, or makes one. The
reference of a token is the result of the canonical form of an operation in a batch of exactly
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

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import torch

from holdfast.certification.certificate import (
    Certificate,
    OperationCheck,
    certificate_key,
    load_certificate,
    save_certificate,
)
from holdfast.certification.checks.attention import check_attention, check_long_attention
from holdfast.certification.checks.operations import (
    GemmCase,
    LayerCase,
    ModelShape,
    check_fast_head,
    check_gemm,
    check_head,
    check_layer,
    check_sampler_op,
    check_token_op,
    merge_checks,
)
from holdfast.certification.checks.order_probes import MIN_COLUMNS
from holdfast.certification.checks.passes import PassBench, check_passes, kernels_of_a_pass
from holdfast.certification.checks.probes import DENSE_SEATING, clear_neighbours
from holdfast.certification.checks.synthetic import (
    sampler_ops,
    synthetic_layer,
    synthetic_linears,
    token_ops,
)
from holdfast.models.decoder import Decoder, NamedLinear
from holdfast.numerics.batch_sizes import MAX_HEAD_TOKENS, is_interpreted, sizes_to_certify
from holdfast.numerics.code_versions.versions import code_versions
from holdfast.numerics.ops import Backend
from holdfast.numerics.recipe import KernelBackend
from holdfast.numerics.select_backend import open_backend
from holdfast.numerics.settings import NumericSettings
from holdfast.scheduler.policy import DeterminismMode
from holdfast.version import __version__
from holdfast.worker.device import device_name, device_parts
from holdfast.worker.kv_store import KVStore
from holdfast.worker.logits_slices import max_logits_tokens
from holdfast.worker.model_runner import ModelRunner

Progress = Callable[[int, int], None]  # (checks done, in all)
Check = Callable[[], OperationCheck]

_SAMPLED_SIZES = (*range(1, 33), 48, 64, 100, 128, 255, 256, 511, 512)
_MAX_CPU_HEAD_TOKENS = max_logits_tokens(torch.device("cpu"))
_ODD_SIZES = (17, 31, 33, 63)
_MANY_PROBES, _FEW_SAMPLED_SIZES = 64, (1, 3, 8, 32, 64, 512)
_LAYER_SIZES = (1, 2, 7, 8, 32, 100, 128, 256, 511, 512)


def obtain_certificate(
    decoder: Decoder,
    runner: ModelRunner,
    store: KVStore,
    *,
    determinism: DeterminismMode,
    settings: NumericSettings,
    canary: str,
    max_pass_tokens: int,
    max_len: int,
    progress: Progress | None = None,
) -> Certificate | None:
    """The certificate of this engine, from disk or made now. With determinism off there is none.

    canary: the digest of the operations in fast form (`canary.py`).
    """
    if determinism == "off":
        return None
    subject = {**certificate_subject(decoder, settings, max_pass_tokens, max_len), "canary": canary}
    known = load_certificate(certificate_key(subject))
    if known is not None:
        return known
    backend, shape = decoder.backend, _model_shape(decoder, max_len)
    checks = [
        *_gemm_checks(decoder, max_pass_tokens),
        *_layer_checks(decoder, shape, max_pass_tokens),
        *_weightless_checks(backend, _fp32_backend(backend, settings), shape, max_pass_tokens),
    ]
    kernels: Callable[[], tuple[str, ...]] = tuple
    if backend.device.type == "cuda":
        reference_tokens = backend.recipe.rows
        bench = PassBench(runner, store.layers, backend.page_size, shape.vocab, reference_tokens)
        canonical = (reference_tokens, 2 * reference_tokens) if determinism == "verify" else ()
        checks.append(partial(check_passes, bench, max_pass_tokens, max_len, canonical))
        kernels = partial(kernels_of_a_pass, bench, max_len)
    sizes = sizes_to_certify(backend, max_pass_tokens)
    made = certify(subject, checks, sizes, kernels=kernels, progress=progress)
    save_certificate(made)
    return made


def certify(
    subject: Mapping[str, object],
    checks: list[Check],
    sizes: tuple[int, ...],
    *,
    kernels: Callable[[], tuple[str, ...]] = tuple,
    progress: Progress | None = None,
) -> Certificate:
    """Run every check. A size is certified if no check differs at it; size 0 means the reference
    itself differs."""
    started = time.monotonic()
    done: list[OperationCheck] = []
    with torch.inference_mode():
        for check in checks:
            done.append(check())
            if progress is not None:
                progress(len(done), len(checks))
    clear_neighbours()
    differing = {size for check in done for size in check.sizes_differing}
    broken = [check.name for check in done if 0 in check.sizes_differing]
    refusal = (
        "on this machine the reference pass does not repeat its own bits for "
        f"{', '.join(broken[:3])}, so no answer can be guaranteed"
        if broken
        else None
    )
    return Certificate(
        key=certificate_key(subject),
        subject=subject,
        sizes=() if broken else tuple(size for size in sizes if size not in differing),
        checks=tuple(done),
        refusal=refusal,
        seconds=round(time.monotonic() - started, 3),
        kernels=kernels(),
    )


def certificate_subject(
    decoder: Decoder, settings: NumericSettings, max_pass_tokens: int, max_len: int
) -> Mapping[str, object]:
    """Everything the result of a certification depends on. The certificate's key is its hash."""
    model, device = decoder.config, decoder.backend.device
    parts = device_parts(device)
    return {
        "holdfast": __version__,
        "torch": str(torch.__version__),
        "device": device_name(device),
        **({"device_parts": parts} if device.type == "cuda" else {"instructions": parts["instructions"]}),
        "code": code_versions(("model", "sampling", "certification")),  # that of the kernels: in the recipe
        "settings": settings.as_dict(),
        "recipe": decoder.backend.recipe.as_dict(),
        "cuts": _split_n(decoder),
        "shapes": {
            "family": model.family,
            "hidden": model.hidden_size,
            "intermediate": model.intermediate_size,
            "layers": model.num_layers,
            "heads": [model.num_heads, model.num_kv_heads, model.head_dim],
            "vocab": model.vocab_size,
            "biases": [model.qkv_bias, model.o_bias, model.mlp_bias],
            "qk_norm": model.qk_norm,
            "windows": sorted({window for window in model.layer_windows if window is not None}),
        },
        "rows": max_pass_tokens,
        "context": max_len,
    }


def _split_n(decoder: Decoder) -> dict[str, list[list[int]]]:
    """Where GEMMs are split along N, by shape. The certificate checks that no bit depends on it."""
    linears = (product.linear for product in decoder.linears())
    return {
        f"{linear.out_features}x{linear.in_features}": [list(pair) for pair in sorted(linear.split_n.items())]
        for linear in linears
        if linear.split_n
    }


def _gemm_checks(decoder: Decoder, max_pass_tokens: int) -> Iterator[Check]:
    """Every shape with synthetic weights at every size. Then the model's own weights at a few sizes:
    those of the first, a middle and the last layer, and the head."""
    backend = decoder.backend
    sizes = sizes_to_certify(backend, max_pass_tokens)
    few, sampled = _few_sizes(backend, sizes), _sampled_layers(decoder)
    for product in _distinct_shapes(decoder):
        yield partial(_check_synthetic, backend, product, sizes)
    for product in decoder.linears():
        case = GemmCase(product.name, product.linear, is_head=product.is_head)
        if product.is_head:
            yield partial(check_head, backend, case, (1, 2))
        elif product.layer in sampled:
            yield partial(check_gemm, backend, case, few)


def _distinct_shapes(decoder: Decoder) -> list[NamedLinear]:
    """One linear layer of each shape, the head apart: it runs in another form."""
    found = {
        (one.is_head, one.linear.out_features, one.linear.in_features, one.linear.bias is not None): one
        for one in decoder.linears()
    }
    return list(found.values())


def _check_synthetic(backend: Backend, product: NamedLinear, sizes: tuple[int, ...]) -> OperationCheck:
    """A GEMM of this shape with weights that show the order of summation. The second weight of a wide
    GEMM has the kinds of columns swapped; it is for an odd column at the end, and small sizes do."""
    name = f"synthetic {product.name.rpartition('.')[2]}"
    check = _check_synthetic_head if product.is_head else check_gemm
    cases = (
        GemmCase(name, linear, is_head=product.is_head, is_thorough=number == 0)
        for number, linear in enumerate(synthetic_linears(backend, product.linear))
    )
    is_wide = product.linear.out_features >= MIN_COLUMNS
    small = tuple(size for size in sizes if size <= DENSE_SEATING)
    return merge_checks(
        [check(backend, case, sizes if case.is_thorough or not is_wide else small) for case in cases]
    )


def _check_synthetic_head(backend: Backend, case: GemmCase, sizes: tuple[int, ...]) -> OperationCheck:
    """On a GPU the head of a certified pass runs in fast form."""
    if backend.recipe.path != "triton":
        return check_head(backend, case, tuple(size for size in sizes if size <= _MAX_CPU_HEAD_TOKENS))
    head_sizes = tuple(size for size in sizes if size <= MAX_HEAD_TOKENS)
    checks = check_head(backend, case, head_sizes), check_fast_head(backend, case, head_sizes, sizes)
    return merge_checks(checks)


def _layer_checks(decoder: Decoder, shape: ModelShape, max_pass_tokens: int) -> Iterator[Check]:
    """The fused layer against its operations one by one: with synthetic weights, then the first, a
    middle and the last layer."""
    backend = decoder.backend
    sizes = sizes_to_certify(backend, max_pass_tokens)
    few = (*_few_sizes(backend, sizes), sizes[-1])
    if backend.recipe.path == "triton":
        few = (*(size for size in sizes if size in _LAYER_SIZES), sizes[-1])
    small = tuple(size for size in sizes if size <= DENSE_SEATING)
    yield partial(
        _check_synthetic_layer, decoder, shape, (*small, *few) if not is_interpreted(backend) else few
    )
    for index in _sampled_layers(decoder):
        case = LayerCase(f"layers.{index}", decoder.layers[index], decoder.layer_shape)
        yield partial(check_layer, backend, case, shape, few)


def _check_synthetic_layer(decoder: Decoder, shape: ModelShape, sizes: tuple[int, ...]) -> OperationCheck:
    weights = synthetic_layer(decoder.backend, decoder.layers[0])
    case = LayerCase("synthetic layer", weights, decoder.layer_shape)
    return check_layer(decoder.backend, case, shape, tuple(sorted(set(sizes))))


def _weightless_checks(
    backend: Backend, fp32: Backend, shape: ModelShape, max_pass_tokens: int
) -> Iterator[Check]:
    """Norms, rope, activation, attention and the sampler."""
    sizes = sizes_to_certify(backend, max_pass_tokens)
    for one in dict.fromkeys((backend, fp32)):
        suffix = "" if one is backend else " (fp32)"
        for op in token_ops(one, shape):
            yield partial(check_token_op, one, op, sizes, suffix=suffix)
        yield partial(check_attention, one, shape, sizes, name="attention" + suffix)
    if backend.device.type == "cuda":
        yield partial(check_long_attention, backend, shape, name="attention, longest context")
    sampled = _sampled_sizes(backend, sizes)
    for sampler_op in sampler_ops(backend, shape.vocab):
        is_long = len(sampler_op.inputs) > _MANY_PROBES
        tested = tuple(size for size in sampled if not is_long or size in _FEW_SAMPLED_SIZES)
        yield partial(check_sampler_op, backend, sampler_op, tested)


def _sampled_layers(decoder: Decoder) -> list[int]:
    last = decoder.config.num_layers - 1
    return sorted({0, decoder.config.num_layers // 2, last})


def _few_sizes(backend: Backend, sizes: tuple[int, ...]) -> tuple[int, ...]:
    reference_tokens = backend.recipe.rows
    return tuple(size for size in sizes if size in (1, 2, reference_tokens, 2 * reference_tokens))


def _sampled_sizes(backend: Backend, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Numbers of sampled tokens the sampler's operations are checked with."""
    small = tuple(size for size in sizes if size <= DENSE_SEATING)
    if is_interpreted(backend):
        return small
    if backend.recipe.path == "triton":
        return tuple(size for size in _SAMPLED_SIZES if size <= sizes[-1])
    return tuple(sorted({*small, *_ODD_SIZES}))


def _model_shape(decoder: Decoder, max_len: int) -> ModelShape:
    model = decoder.config
    return ModelShape(
        hidden=model.hidden_size,
        heads=model.num_heads,
        kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        intermediate=model.intermediate_size,
        vocab=model.vocab_size,
        page_size=decoder.backend.page_size,
        max_context=max_len,
        window=next((window for window in model.layer_windows if window is not None), None),
    )


def _fp32_backend(backend: Backend, settings: NumericSettings) -> Backend:
    """The same backend in fp32. The backend itself where fp32 says nothing new: on Triton, and
    if it is fp32 already."""
    recipe = backend.recipe
    if recipe.path == "triton" or recipe.dtype == "float32":
        return backend
    kernels: KernelBackend = "c" if recipe.path == "c" else "torch"
    return open_backend(torch.float32, kernels=kernels, num_threads=settings.threads)
