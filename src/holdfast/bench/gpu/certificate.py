"""Which GEMMs of which models are one bit class over all batch sizes, their split-K, and its cost.

No model is loaded: every GEMM has random weights of its shape. The choice is the one an engine
makes at start-up.
"""

import time

import torch

from holdfast.bench.gpu.measure import Bench
from holdfast.bench.gpu.settings import GpuSettings
from holdfast.bench.machine import default_device
from holdfast.bench.tiny import shape_config
from holdfast.certification.gemm.choose import model_gemm_shapes, search_recipes
from holdfast.certification.gemm.multiply import library_multiply
from holdfast.certification.gemm.recipes import GemmRecipe
from holdfast.engine.config import dtype_name

REFERENCE_TOKENS = 256


def run_certificate(bench: Bench, settings: GpuSettings) -> None:
    """A row for each GEMM. `at N` is its time with N rows relative to the plain call's."""
    for model in settings.certified_models:
        if bench.is_over("certificate"):
            return
        started = time.perf_counter()
        for choice in _choose(model, settings, started):
            bench.row(
                part="certificate",
                model=model,
                gemm=choice.name,
                size=f"{choice.out_features} x {choice.in_features}",
                split_k=choice.split_k,
                certified_sizes=f"{len(choice.matching_sizes)} of {choice.num_sizes_tested}",
                plain_classes=choice.num_plain_results,
                **{f"at {rows}": ratio for rows, ratio in choice.relative_times},
            )
        bench.log(f"{model}: {time.perf_counter() - started:.1f} s")


def _choose(model: str, settings: GpuSettings, moment: float) -> tuple[GemmRecipe, ...]:
    config = shape_config(model)
    return search_recipes(
        model_gemm_shapes(config),
        library_multiply,
        dtype=getattr(torch, dtype_name(settings.dtype or "auto", config.torch_dtype)),
        device=default_device(),
        subject={
            "for": "bench",
            "moment": moment,
        },  # a new key each time: a cached choice would measure nothing
        reference_tokens=min(REFERENCE_TOKENS, max(settings.sizes)),
        sizes=settings.sizes,
    )
