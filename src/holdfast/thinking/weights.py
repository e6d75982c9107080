"""The tensors of `thinking.safetensors`: read whole, checked against what the configurations say."""

from pathlib import Path

from torch import Tensor

from holdfast.errors import BadWeights
from holdfast.models.config import DecoderConfig
from holdfast.models.families import require_tensors
from holdfast.thinking.config import WEIGHTS_FILE, ThinkingConfig, thinking_tensors


def read_thinking_weights(folder: Path, config: ThinkingConfig, decoder: DecoderConfig) -> dict[str, Tensor]:
    """Exactly the tensors T and C consist of, as stored, on the CPU."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = folder / WEIGHTS_FILE
    try:
        held: dict[str, Tensor] = load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise BadWeights(f"{path.name} is not a whole safetensors file: {error}") from error
    expected = thinking_tensors(config, decoder)
    require_tensors(expected, lambda name: tuple(held[name].shape) if name in held else None, str(path))
    return {name: held[name] for name in expected}
