"""The certificate of an engine: kept from an earlier start, or made now, with the model's weights, pages and graphs."""

from collections.abc import Callable, Mapping
from functools import partial

import torch

from holdfast.certification.certificate import (
    Certificate,
    certificate_key,
    load_certificate,
    save_certificate,
)
from holdfast.certification.certify import Progress, certify
from holdfast.certification.op_checks import Geometry, Subject, WholeLayer
from holdfast.certification.pass_checks import Stage, check_passes, kernels_of_a_pass
from holdfast.certification.source_digest import own_source_digest
from holdfast.models.decoder import Decoder
from holdfast.numerics.ops import Backend
from holdfast.numerics.recipe import KernelBackend
from holdfast.numerics.select_backend import open_backend
from holdfast.numerics.settings import NumericSettings
from holdfast.scheduler.policy import DeterminismMode
from holdfast.version import __version__
from holdfast.worker.device import device_name, device_parts
from holdfast.worker.kv_store import KVStore
from holdfast.worker.model_runner import ModelRunner


def certificate_subject(
    decoder: Decoder, settings: NumericSettings, max_rows: int, max_len: int
) -> Mapping[str, object]:
    """Everything the outcome of a certification can depend on."""
    model, device = decoder.config, decoder.backend.device
    parts = device_parts(device)
    return {
        "holdfast": __version__,
        "torch": str(torch.__version__),
        "device": device_name(device),
        **({"device_parts": parts} if device.type == "cuda" else {"instructions": parts["instructions"]}),
        "source": own_source_digest(),  # what is asked, of which totals, and how
        "settings": settings.as_dict(),
        "recipe": decoder.backend.recipe.as_dict(),
        "cuts": _cuts(decoder),
        "shapes": {
            "family": model.family,
            "hidden": model.hidden_size,
            "intermediate": model.intermediate_size,
            "layers": model.num_layers,
            "heads": [model.num_heads, model.num_kv_heads, model.head_dim],
            "vocab": model.vocab_size,
            "windows": sorted({window for window in model.layer_windows if window is not None}),
        },
        "rows": max_rows,
        "context": max_len,
    }


def _cuts(decoder: Decoder) -> dict[str, list[list[int]]]:
    """Where columns are cut, by shape. No bit should depend on it: that is for the certificate to see."""
    linears = (product.linear for product in decoder.linears())
    return {
        f"{one.out_features}x{one.in_features}": [list(pair) for pair in sorted(one.split_n.items())]
        for one in linears
        if one.split_n
    }


def obtain_certificate(
    determinism: DeterminismMode,
    decoder: Decoder,
    runner: ModelRunner,
    store: KVStore,
    settings: NumericSettings,
    max_rows: int,
    max_len: int,
    progress: Progress | None,
) -> Certificate | None:
    """From the cache, or made now. An engine without determinism needs none."""
    if determinism == "off":
        return None
    about = certificate_subject(decoder, settings, max_rows, max_len)
    known = load_certificate(certificate_key(about))
    if known is not None:
        return known
    backend = decoder.backend
    geometry = _geometry(decoder, max_len)
    thorough = sorted({0, decoder.config.num_layers // 2, decoder.config.num_layers - 1})
    layers = [WholeLayer(f"layers.{index}", decoder.layers[index], decoder.layer_shape) for index in thorough]
    subjects = [
        Subject(product.name, product.linear, product.layer in thorough, product.is_head)
        for product in decoder.linears()
    ]
    on_gpu = backend.device.type == "cuda"
    rows, model = backend.recipe.rows, decoder.config
    stage = Stage(runner, store.layers, backend.page_size, model.vocab_size, rows)
    canonical = (rows, 2 * rows) if determinism == "verify" else ()
    more = [partial(check_passes, stage, max_rows, max_len, canonical)] if on_gpu else []
    kernels: Callable[[], tuple[str, ...]] = partial(kernels_of_a_pass, stage, max_len) if on_gpu else tuple
    made = certify(
        backend, _wide(backend, settings), subjects, layers, geometry, max_rows, about, progress, more, kernels
    )  # fmt: skip
    save_certificate(made)
    return made


def _geometry(decoder: Decoder, max_len: int) -> Geometry:
    model = decoder.config
    return Geometry(
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


def _wide(backend: Backend, settings: NumericSettings) -> Backend:
    """The same backend in fp32, where that says something of this one."""
    recipe = backend.recipe
    if recipe.path == "triton" or recipe.dtype == "float32":
        return backend
    kernels: KernelBackend = "compiled" if recipe.path == "compiled" else "library"
    return open_backend(torch.float32, kernels=kernels, num_threads=settings.threads)
