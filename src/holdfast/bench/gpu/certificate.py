"""Which GEMMs of which models are one bit class over all batch sizes, their split-K, and its cost.

No model is loaded: every GEMM has random weights of its shape. The choice is the one an engine
makes at start-up.
"""

import time

import torch

from holdfast.bench.gpu.engines import default_device, shape_config
from holdfast.bench.gpu.report import CertificateSection, CertifiedProduct, SectionContext
from holdfast.bench.gpu.settings import GpuSettings
from holdfast.certification.gemm.choose import model_gemm_shapes, search_recipes
from holdfast.certification.gemm.multiply import library_multiply
from holdfast.certification.gemm.recipes import GemmRecipe

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
REFERENCE_TOKENS = 256


def run_certificate(settings: GpuSettings, context: SectionContext) -> CertificateSection:
    """All models, until the time of the section is over."""
    found = CertificateSection(len(settings.sizes), settings.dtype)
    context.report.sections["certificate"] = found
    for model in settings.certified_models:
        if context.is_over_time:
            found.cut_off = True
            break
        started = time.perf_counter()
        choices = _choose(model, settings, started)
        found.seconds[model] = time.perf_counter() - started
        found.products += [_product(model, choice) for choice in choices]
        splits = ", ".join(f"{one.name} {one.split_k}" for one in choices)
        context.log(f"{model}: split-K {splits} ({found.seconds[model]:.1f} s)")
        context.save()
    return found


def _choose(model: str, settings: GpuSettings, moment: float) -> tuple[GemmRecipe, ...]:
    reference = min(REFERENCE_TOKENS, max(settings.sizes))
    return search_recipes(
        model_gemm_shapes(shape_config(model)),
        library_multiply,
        dtype=_DTYPES[settings.dtype],
        device=default_device(),
        subject={
            "for": "bench",
            "moment": moment,
        },  # a new key each time: a cached choice would measure nothing
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
