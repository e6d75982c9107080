"""A mixture of experts: speed through `LLM.generate`, where the time of a step goes, and how many
experts a step reads.

With few streams a step reads only the experts its tokens choose, so its memory floor depends on
their number. With random weights nearly every expert is chosen equally often.
"""

import random
from copy import copy
from functools import partial

import torch
from torch import Tensor

from holdfast.bench.gpu.breakdown import break_down
from holdfast.bench.gpu.cells import Cell, CellBench
from holdfast.bench.gpu.engines import EnginePair, shape_config
from holdfast.bench.gpu.report import CellSection, MoeSection, SectionContext
from holdfast.bench.gpu.settings import GpuSettings
from holdfast.models.decoder import Decoder
from holdfast.numerics.experts import Experts
from holdfast.numerics.forward_batch import ForwardBatch
from holdfast.numerics.layer import LayerShape, run_layer

# The least tok/s for the Qwen3-30B-A3B shape on an H200, by number of streams.
_GOALS = {1: 280.0, 32: 2000.0, 256: 9200.0}
_PREFILL = "prefill"


def moe_cells(settings: GpuSettings) -> dict[str, Cell]:
    """Greedy requests at several numbers of streams, and prompts until their first token."""
    cells = [
        Cell(f"moe-{count}", f"experts, N = {count}", count, goal=0.98, goal_speed=_GOALS.get(count))
        for count in settings.small_streams
    ]
    streams = settings.moe_prefill_streams
    cells.append(Cell(_PREFILL, f"experts, {streams} prompts", streams, num_tokens=1, kind=_PREFILL))
    return {cell.name: cell for cell in cells}


def run_moe(pair: EnginePair, model: str, settings: GpuSettings, context: SectionContext) -> MoeSection:
    found = MoeSection(model, settings.dtype, CellSection(model, settings.dtype))
    context.report.sections["moe"] = found
    decoder = pair.exact.runner._decoder  # type: ignore[attr-defined]
    for streams in settings.small_streams:
        found.experts_read[streams] = experts_read(decoder, streams)
        context.log(f"{model}, N = {streams}: {found.experts_read[streams]:.1f} experts of a layer are read")
    cells = moe_cells(settings)
    CellBench(pair, found.cells, settings, context, cells).run(list(cells))
    for streams in settings.small_streams:
        if context.is_over_time:
            found.cut_off = True
            break
        step = break_down(
            pair.engine("auto", plain=False),
            shape_config(model),
            streams,
            settings,
            num_experts=found.experts_read[streams],
        )
        found.steps.append(step)
        context.log(f"{model}, N = {streams}: {step.step_ms:.2f} ms per step, floor {step.floor_ms:.2f}")
        context.save()
    return found


def experts_read(decoder: Decoder, num_tokens: int) -> float:
    """The mean number of experts of a layer that a pass of random tokens reads."""
    counts: list[int] = []
    backend = copy(decoder.backend)

    def counted(x: Tensor, layer: Experts, shape: LayerShape, *, canonical: bool) -> Tensor:
        logits = decoder.backend.logits(x, layer.router, canonical=True)
        num_experts = len(layer.gate_up.linears)
        _, ids = backend.route(logits[:, :num_experts], layer.top_k, normalizes=layer.normalizes)
        counts.append(int((torch.bincount(ids.flatten()) > 0).sum()))
        return decoder.backend.experts(x, layer, shape, canonical=canonical)

    backend.experts = counted  # type: ignore[method-assign]
    backend.layer = partial(run_layer, backend)  # type: ignore[method-assign]
    config, device = decoder.config, backend.device
    store = [
        backend.new_kv_layer(num_tokens, config.num_kv_heads, config.head_dim)
        for _ in range(config.num_layers)
    ]
    ids = random.Random(0).choices(range(config.vocab_size), k=num_tokens)
    numbers = torch.arange(num_tokens, device=device)
    batch = ForwardBatch(
        token_ids=torch.tensor(ids, device=device),
        positions=torch.zeros_like(numbers),
        slots=numbers * backend.page_size,
        span_starts=torch.arange(num_tokens + 1, dtype=torch.int32, device=device),
        page_table=numbers.to(torch.int32)[:, None].contiguous(),
    )
    with torch.inference_mode():
        decoder.with_backend(backend).forward(batch, store, canonical=False)
    return sum(counts) / len(counts)
