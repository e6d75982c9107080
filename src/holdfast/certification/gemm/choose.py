"""Choose the GEMM recipes of a model: load them from disk, or search on the device."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence

import torch

from holdfast.certification.certificate import run_check
from holdfast.certification.gemm.recipes import (
    GemmRecipe,
    GemmShape,
    Multiply,
    library_multiply,
    load_recipes,
    save_recipes,
)
from holdfast.certification.gemm.split import search_split_k
from holdfast.models.config import DecoderConfig
from holdfast.models.shapes import gemm_shapes
from holdfast.numerics.batch_sizes import MAX_HEAD_TOKENS, padded_batch_sizes
from holdfast.numerics.settings import NumericSettings
from holdfast.numerics.settings_guard import our_settings
from holdfast.numerics.versions import sources_digest
from holdfast.version import __version__
from holdfast.worker.device import device_parts

REFERENCE_TOKENS = 256
# Independent of the largest pass, so that the choice, and with it the fingerprint, is too.
BATCH_SIZES = padded_batch_sizes(8192)
_INTERPRETED_SIZES = (1, 2, 8, 256, 512)  # under Triton's interpreter, which only tests use
_FORMAT = 2

Progress = Callable[[int, int], None]  # (shapes done, in all)


def choose_recipes(
    model: DecoderConfig,
    dtype: torch.dtype,
    device: torch.device,
    settings: NumericSettings,
    progress: Progress | None = None,
    *,
    anew: bool = False,
) -> tuple[GemmRecipe, ...]:
    """Return the recipes of all GEMMs of a model of this shape. anew: search even if they are on disk, time
    them and count the results of the plain call, which decides nothing."""
    found = search_recipes(
        model_gemm_shapes(model),
        library_multiply,
        dtype=dtype,
        device=device,
        subject={
            "holdfast": __version__,
            "code": sources_digest(),
            "torch": str(torch.__version__),
            "device": device_parts(device),
            "settings": settings.deciding(),
        },
        sizes=BATCH_SIZES if device.type == "cuda" else _INTERPRETED_SIZES,
        progress=progress,
        anew=anew,
        counts_plain=anew,
    )
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return found


def model_gemm_shapes(model: DecoderConfig) -> list[GemmShape]:
    """Return the GEMMs that the library computes: those of experts and with one output have kernels of their
    own."""
    return [
        GemmShape(name, outputs, inputs, has_bias or name in ("head", "router"), is_head=name == "head")
        for name, outputs, inputs, has_bias in gemm_shapes(model)
        if not name.startswith("expert_") and outputs > 1
    ]


def search_recipes(
    shapes: Sequence[GemmShape],
    multiply: Multiply,
    *,
    dtype: torch.dtype,
    device: torch.device,
    subject: Mapping[str, object],
    sizes: Sequence[int],
    reference_tokens: int = REFERENCE_TOKENS,
    progress: Progress | None = None,
    anew: bool = False,
    counts_plain: bool = True,
) -> tuple[GemmRecipe, ...]:
    """Return a recipe for every shape, from disk or found now. `subject` is all else the result depends on:
    device, libraries, settings. counts_plain: also count the results of the plain call."""
    merged = _merge(shapes)
    subject = {
        "format": _FORMAT,
        "dtype": str(dtype),
        "shapes": [[one.name, *one.key, one.fp32_output, one.is_head] for one in merged],
        "rows": reference_tokens,
        "totals": list(sizes),
        **subject,
    }
    key = hashlib.sha256(json.dumps(subject, sort_keys=True).encode()).hexdigest()
    known = None if anew else load_recipes(key)
    if known is not None:
        return known
    found: list[GemmRecipe] = []
    with our_settings(device), torch.inference_mode():
        searches = [
            search_split_k(
                *(shape, multiply, dtype, device),
                [size for size in sizes if size <= MAX_HEAD_TOKENS or not shape.is_head],
                reference_tokens,
                is_timed=anew,
                counts_plain=counts_plain,
            )
            for shape in merged
        ]
        for search in searches:
            next(search)
        for search in searches:
            found.append(run_check(search))
            if progress is not None:
                progress(len(found), len(merged))
    save_recipes(key, found)
    return tuple(found)


def _merge(shapes: Sequence[GemmShape]) -> list[GemmShape]:
    """Return one entry for each (N, K): GEMMs of one shape share the recipe."""
    found: dict[tuple[int, int], GemmShape] = {}
    for one in shapes:
        before = found.get(one.key)
        if before is None:
            found[one.key] = one
        else:
            name = before.name if one.name in before.name.split("+") else f"{before.name}+{one.name}"
            fp32_output, is_head = before.fp32_output or one.fp32_output, before.is_head and one.is_head
            found[one.key] = GemmShape(name, *one.key, fp32_output, is_head)
    return list(found.values())
