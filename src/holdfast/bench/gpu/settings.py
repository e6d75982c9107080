"""What `bench gpu` measures. `tiny` runs all parts at a size for CPUs and tests."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.bench.gpu.cells import CELLS
from holdfast.bench.tiny import TINY, TINY_MOE, is_tiny
from holdfast.errors import ConfigError

PARTS = ("start", "cells", "breakdown", "certificate", "stress")


@dataclass(frozen=True)
class GpuSettings:
    """model is a shape of random weights. After `minutes` no new measurement begins.

    dtype: None is the shape's own. options: further options of every `LLM`.
    """

    model: str = "llama-3.1-8b"
    dtype: str | None = None
    rounds: int = 2
    minutes: float = 60.0
    options: Mapping[str, Any] = field(default_factory=dict)
    divisor: int = 1  # of the lengths of all cells
    max_streams: int = 400
    breakdown_streams: tuple[int, ...] = (1, 32, 256)
    breakdown_steps: int = 24
    breakdown_context: int = 512  # tokens of a prompt before the steps
    breakdown_prompt_len: int = 30_000
    certified_models: tuple[str, ...] = (
        "llama-3.1-8b",
        "qwen3-0.6b",
        "qwen2.5-1.5b",
        "llama-3.1-70b",
        "smollm2-135m",
    )
    sizes: tuple[int, ...] = (*range(1, 513), 1024, 2048, 4096)
    stress_model: str | None = None
    stress_shape: str = "qwen2.5-1.5b"  # several are separated by commas
    stress_runs: int = 300
    stress_tokens: int = 64

    def llm_options(self, model: str, **options: Any) -> dict[str, Any]:
        """The options of an `LLM` of random weights. model: as `dummy_model` gives it."""
        given = {**self.options, **({} if self.dtype is None else {"dtype": self.dtype}), **options}
        return {"model": model, "load_format": "dummy", **given}


def settings_for(model: str | None) -> GpuSettings:
    """The settings for a named shape, or for a tiny one."""
    if model is None:
        return GpuSettings()
    if not is_tiny(model):
        return replace(GpuSettings(), model=model)
    return GpuSettings(
        model=model,
        rounds=1,
        options={"certification": "startup", "max_num_seqs": 8, "max_pass_tokens": 64, "kv_memory": "16MiB"},
        divisor=128,
        max_streams=8,
        breakdown_streams=(2,),
        breakdown_steps=4,
        breakdown_context=24,
        breakdown_prompt_len=200,
        certified_models=(TINY, TINY_MOE),
        sizes=(1, 2, 3, 8, 32, 64),
        stress_shape=model,
        stress_runs=6,
        stress_tokens=8,
    )


def parse_names(only: str | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The parts and the cells that a list such as "start,uniform,mixed" names, in their own order.

    A name stands for all cells that begin with it: `long` for long-8k, long-30k and long-100k.
    """
    if only is None:
        return PARTS, tuple(CELLS)
    given = {name.strip() for name in only.split(",") if name.strip()}
    found = {name: [cell for cell in CELLS if f"{cell}-".startswith(f"{name}-")] for name in given}
    unknown = [name for name in given if name not in PARTS and not found[name]]
    if unknown or not given:
        raise ConfigError(
            f"no part {', '.join(sorted(unknown)) or 'was named'}; the parts are {', '.join(PARTS)}; "
            f"the cells are {', '.join(CELLS)}"
        )
    chosen = {cell for cells in found.values() for cell in cells}
    cells = tuple(name for name in CELLS if name in chosen) or tuple(CELLS)
    return tuple(part for part in PARTS if part in given or (part == "cells" and chosen)), cells
