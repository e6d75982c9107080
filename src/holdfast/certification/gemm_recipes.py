"""The recipes of a model's products on a GPU, by the machine's own answers, before any weights are loaded."""

import torch

from holdfast.certification.source_digest import own_source_digest
from holdfast.certification.split_k import (
    TOTALS,
    GemmShape,
    Progress,
    SplitChoice,
    choose_slices,
    library_multiply,
)
from holdfast.models.config import DecoderConfig
from holdfast.models.shapes import gemm_shapes
from holdfast.numerics.settings import NumericSettings
from holdfast.version import __version__
from holdfast.worker.device import device_parts

REFERENCE_ROWS = 256
_INTERPRETED_TOTALS = (1, 2, 8, 256, 512)  # a CPU in place of a GPU is there for tests


def choose_recipes(
    model: DecoderConfig,
    dtype: torch.dtype,
    device: torch.device,
    settings: NumericSettings,
    progress: Progress | None = None,
    *,
    anew: bool = False,
) -> tuple[SplitChoice, ...]:
    """How K is cut in every product of a model of this shape; asked once and kept, or anew."""
    shapes = [
        GemmShape(name, rows, width, wide=has_bias or name == "head", is_head=name == "head")
        for name, rows, width, has_bias in gemm_shapes(model)
    ]
    about = {
        "holdfast": __version__,
        "source": own_source_digest(),
        "torch": str(torch.__version__),
        "device": device_parts(device),
        "settings": settings.deciding(),
    }
    found = choose_slices(
        shapes,
        library_multiply,
        dtype,
        device,
        about,
        reference_rows=REFERENCE_ROWS,
        totals=TOTALS if device.type == "cuda" else _INTERPRETED_TOTALS,
        progress=progress,
        anew=anew,
    )
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return found
