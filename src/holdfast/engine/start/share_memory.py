"""Plan the memory of several engines on one device, before any of them starts.

On a GPU what is free is shared: the weights of all, then an equal part of the rest for each. On a CPU a
quarter of the memory is shared for KV, at most 2 GiB for each.
"""

from collections.abc import Sequence
from dataclasses import replace

from holdfast.engine.config import (
    EngineConfig,
    default_gpu_kv_bytes,
    default_kv_bytes,
    dtype_name,
    main_memory_bytes,
    parse_bytes,
)
from holdfast.engine.start.preflight import OpenedModel
from holdfast.errors import ConfigError
from holdfast.models.gguf.checkpoint import GgufCheckpoint
from holdfast.worker.device import compute_capability, unused_gpu_bytes

_GIB = 1 << 30


def share_memory(opened: Sequence[OpenedModel]) -> tuple[list[EngineConfig], str]:
    """Return the configurations with their parts of the device's memory, and what was planned, in words.

    Raises `ConfigError` if weights and KV of all do not fit.
    """
    config = opened[0].config  # the device is the same for all
    on_gpu = compute_capability(config.device, config.kernels) is not None
    room = unused_gpu_bytes(config.device) if on_gpu else main_memory_bytes()
    weights = sum(_weight_bytes(one, on_gpu) for one in opened)
    rest = (room - weights) // len(opened)
    if on_gpu:
        share = default_gpu_kv_bytes(max(rest, 0))
    else:
        share = min(default_kv_bytes(), main_memory_bytes() // 4 // len(opened))
    shares = [share if one.config.kv_memory is None else parse_bytes(one.config.kv_memory) for one in opened]
    needed = weights + sum(shares)
    plan = (
        f"{len(opened)} models take {weights / _GIB:.1f} GiB of weights and {sum(shares) / _GIB:.1f} GiB of KV, "
        f"{shares[0] / _GIB:.1f} GiB each"
    )
    where = f"{room / _GIB:.1f} GiB that {'the GPU has free' if on_gpu else 'this machine has'}"
    if rest <= 0 or needed > room:
        raise ConfigError(f"{plan}: more than the {where}; serve fewer models, or lower kv_memory")
    return [replace(one.config, kv_share=share) for one in opened], f"{plan}, of the {where}"


def _weight_bytes(opened: OpenedModel, on_gpu: bool) -> int:
    """Estimate the memory of a model's weights: as they are stored, or in the dtype that computes."""
    config, model = opened.config, opened.model
    is_kept = not (on_gpu and isinstance(opened.checkpoint, GgufCheckpoint))
    if opened.checkpoint is not None and config.dtype == "auto" and is_kept:
        return opened.files.num_weight_bytes
    return model.num_parameters * (4 if dtype_name(config.dtype, model.torch_dtype) == "float32" else 2)
