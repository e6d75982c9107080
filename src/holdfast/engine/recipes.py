"""The recipes of a model's products on a GPU, by the machine's own answers, before any weights are loaded."""

import torch

from holdfast.arithmetic.settings import NumericSettings
from holdfast.arithmetic.slices import (
    TOTALS,
    Choice,
    ProductShape,
    Progress,
    choose_slices,
    library_multiply,
)
from holdfast.engine.device import device_parts
from holdfast.engine.own_source import own_source_digest
from holdfast.models.config import DecoderConfig
from holdfast.models.shapes import product_shapes
from holdfast.version import __version__

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
) -> tuple[Choice, ...]:
    """How K is cut in every product of a model of this shape; asked once and kept, or anew."""
    shapes = [
        ProductShape(name, rows, width, wide=has_bias or name == "head", is_head=name == "head")
        for name, rows, width, has_bias in product_shapes(model)
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
