"""Which products of which models are one bit class over all row totals, how K is cut for it, and what that costs.

Shapes only: random weights of each product's size, no model. The choice is the one an engine makes when it starts.
"""

import time

import torch

from holdfast.bench.gpu.engines import shape_config, the_device
from holdfast.bench.gpu.report import Certificates, CertifiedProduct, Desk
from holdfast.bench.gpu.settings import GpuSettings
from holdfast.certification.gemm.choose import model_gemm_shapes, search_recipes
from holdfast.certification.gemm.multiply import library_multiply
from holdfast.certification.gemm.recipes import GemmRecipe

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
REFERENCE_ROWS = 256


def run_certificate(settings: GpuSettings, desk: Desk) -> Certificates:
    """Model after model, until the time is over."""
    found = Certificates(len(settings.sizes), settings.dtype)
    desk.report.sections["certificate"] = found
    for model in settings.certified_models:
        if desk.is_late:
            found.cut_off = True
            break
        started = time.perf_counter()
        choices = _ask(model, settings, started)
        found.seconds[model] = time.perf_counter() - started
        found.products += [_product(model, choice) for choice in choices]
        cut = ", ".join(f"{one.name} {one.split_k}" for one in choices)
        desk.tell(f"{model}: slices {cut} ({found.seconds[model]:.1f} s)")
        desk.save()
    return found


def _ask(model: str, settings: GpuSettings, moment: float) -> tuple[GemmRecipe, ...]:
    reference = min(REFERENCE_ROWS, max(settings.sizes))
    return search_recipes(
        model_gemm_shapes(shape_config(model)),
        library_multiply,
        dtype=_DTYPES[settings.dtype],
        device=the_device(),
        subject={"for": "bench", "moment": moment},  # never on disk: the search itself is measured
        reference_tokens=reference,
        sizes=settings.sizes,
    )


def _product(model: str, choice: GemmRecipe) -> CertifiedProduct:
    return CertifiedProduct(
        model=model,
        name=choice.name,
        outputs=choice.out_features,
        inputs=choice.in_features,
        slices=choice.split_k,
        is_certified=choice.agrees,
        num_agreeing=len(choice.matching_sizes),
        num_tried=choice.num_sizes_tested,
        plain_classes=choice.num_plain_results,
        cost={str(rows): ratio for rows, ratio in choice.relative_times},
    )
