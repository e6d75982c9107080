"""Which products of which models are one bit class over all row totals, how K is cut for it, and what that costs.

Shapes only: random weights of each product's size, no model. The choice is the one an engine makes when it starts.
"""

import time

import torch

from holdfast.bench.gpu.engines import shape_config, the_device
from holdfast.bench.gpu.report import Certificates, CertifiedProduct, Desk
from holdfast.bench.gpu.settings import GpuSettings
from holdfast.certification.split_k import GemmShape, SplitChoice, choose_slices, library_multiply
from holdfast.models.shapes import gemm_shapes

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
        cut = ", ".join(f"{one.name} {one.slices}" for one in choices)
        desk.tell(f"{model}: slices {cut} ({found.seconds[model]:.1f} s)")
        desk.save()
    return found


def _ask(model: str, settings: GpuSettings, moment: float) -> tuple[SplitChoice, ...]:
    shapes = [
        GemmShape(name, outputs, inputs, wide=has_bias or name == "head", is_head=name == "head")
        for name, outputs, inputs, has_bias in gemm_shapes(shape_config(model))
    ]
    reference = min(REFERENCE_ROWS, max(settings.sizes))
    return choose_slices(
        shapes,
        library_multiply,
        _DTYPES[settings.dtype],
        the_device(),
        {"for": "bench", "moment": moment},  # asked anew each time: it is the asking that is measured
        reference_rows=reference,
        totals=settings.sizes,
    )


def _product(model: str, choice: SplitChoice) -> CertifiedProduct:
    return CertifiedProduct(
        model=model,
        name=choice.name,
        outputs=choice.out_features,
        inputs=choice.in_features,
        slices=choice.slices,
        is_certified=choice.agrees,
        num_agreeing=len(choice.totals),
        num_tried=choice.num_tried,
        plain_classes=choice.plain_classes,
        cost={str(rows): ratio for rows, ratio in choice.costs},
    )
