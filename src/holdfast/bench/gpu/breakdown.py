"""Where a decode step's time goes: kernels by kind, the host's gap, and the memory traffic that nobody can avoid.

The step is timed without a profiler, which would stretch the gaps; the kernels' own times come from one over some further
steps. Busy is the union of all kernels, so that what overlaps counts once.
"""

import random
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from holdfast.bench.gpu.engines import Twins, kv_bytes_per_token, shape_config, the_device
from holdfast.bench.gpu.report import Breakdown, Desk, StepBreakdown
from holdfast.bench.gpu.settings import GpuSettings
from holdfast.bench.gpu.timing import draw_prompts, median_ms
from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.engine import Engine
from holdfast.models.config import DecoderConfig

BANDWIDTH = 4.3e12  # bytes a second of a copy on an H200
_LONGEST = 16  # kernels named

HEAD, PRODUCTS, OTHER = "head", "products", "other"
# The first that matches; names are the library's, torch's and those of backend/triton.
_KINDS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("copies", re.compile(r"memcpy|memset", re.I)),
    (
        PRODUCTS,
        re.compile(
            r"gemm|gemv|nvjet|cutlass|cublas|splitk|xmma|matmul|multiply_few|gate_up_few|^_finish$|aten::(linear|b?mm|addmm)",
            re.I,
        ),
    ),
    ("attention", re.compile(r"attend|attention|fold_splits", re.I)),
    ("norms", re.compile(r"norm", re.I)),
    ("rope and store", re.compile(r"rope|^_store", re.I)),
    ("activation", re.compile(r"silu", re.I)),
    (
        "sampler",
        re.compile(
            r"^_(chunk_|finish_|compact|narrow|descend|limits|weighed)|choose|choice|greedy|argmax|logsumexp|softmax|topk|sort",
            re.I,
        ),
    ),
    ("embedding", re.compile(r"embed", re.I)),
    ("copies", re.compile(r"copy|cat|index|gather|scatter|fill|elementwise|aten::", re.I)),
)


@dataclass(frozen=True)
class Kernel:
    """One stretch of the device's time, in nanoseconds."""

    name: str
    start: int
    end: int


def kind_of(name: str) -> str:
    return next((kind for kind, pattern in _KINDS if pattern.search(name)), OTHER)


def busy_ns(kernels: Iterable[Kernel]) -> int:
    """The time at least one of them ran."""
    total, until = 0, 0
    for one in sorted(kernels, key=lambda kernel: kernel.start):
        total += max(0, one.end - max(one.start, until))
        until = max(until, one.end)
    return total


def times_by_kind(kernels: Sequence[Kernel], num_steps: int) -> dict[str, float]:
    """Milliseconds a step. The longest product of every step is the head: no other has as many outputs."""
    products = sorted(
        (one for one in kernels if kind_of(one.name) == PRODUCTS), key=lambda one: one.start - one.end
    )
    heads = {id(one) for one in products[:num_steps]}
    total: dict[str, float] = {}
    for one in kernels:
        kind = HEAD if id(one) in heads else kind_of(one.name)
        total[kind] = total.get(kind, 0.0) + (one.end - one.start) / 1e6 / num_steps
    return dict(sorted(total.items(), key=lambda item: -item[1]))


def longest_kernels(kernels: Sequence[Kernel], num_steps: int) -> dict[str, dict[str, float]]:
    """By name, those that take the most time together."""
    found: dict[str, dict[str, float]] = {}
    for one in kernels:
        entry = found.setdefault(one.name[:120], {"ms": 0.0, "calls": 0.0})
        entry["ms"] += (one.end - one.start) / 1e6 / num_steps
        entry["calls"] += 1 / num_steps
    return dict(sorted(found.items(), key=lambda item: -item[1]["ms"])[:_LONGEST])


def floor_ms(config: DecoderConfig, streams: int, context: int, itemsize: int) -> float:
    """Every weight of a step and every stored key and value read once. Of an embedding that is no head, a row is."""
    head = config.vocab_size * config.hidden_size
    read = config.num_parameters - (0 if config.tie_word_embeddings else head)
    kv = streams * context * kv_bytes_per_token(config, itemsize)
    return 1e3 * (read * itemsize + kv) / BANDWIDTH


def run_breakdown(twins: Twins, model: str, settings: GpuSettings, desk: Desk) -> Breakdown:
    """All deterministic, `auto`, at some numbers of streams."""
    found = Breakdown(model, settings.dtype)
    desk.report.sections["breakdown"] = found
    for streams in settings.breakdown_streams:
        if desk.is_late:
            found.cut_off = True
            break
        step = _break_down(twins.engine("auto", plain=False), shape_config(model), streams, settings)
        found.steps.append(step)
        desk.tell(
            f"{model}, N = {streams}: {step.step_ms:.2f} ms a step, busy {step.busy_ms:.2f} "
            f"({100 * step.busy_share:.0f} %), floor {step.floor_ms:.2f}"
        )
        desk.save()
    return found


def _break_down(engine: Engine, config: DecoderConfig, streams: int, settings: GpuSettings) -> StepBreakdown:
    steps = settings.breakdown_steps
    _start(engine, streams, settings, settings.breakdown_tokens)
    step = median_ms(_step_ends(engine, steps + 2))
    assert step is not None, "a few steps at least"
    kernels = _profile(engine, steps)
    context = settings.prompt_len + 2 * steps
    itemsize = 4 if settings.dtype == "fp32" else 2
    _send_away(engine)
    busy = busy_ns(kernels) / 1e6 / steps
    return StepBreakdown(
        streams=streams,
        context=context,
        step_ms=step,
        busy_ms=busy,
        gap_ms=step - busy,
        busy_share=busy / step,
        floor_ms=floor_ms(config, streams, context, itemsize),
        num_steps=steps,
        by_kind=times_by_kind(kernels, steps),
        kernels=longest_kernels(kernels, steps),
    )


def _start(engine: Engine, streams: int, settings: GpuSettings, num_tokens: int) -> None:
    """Requests that all decode."""
    prompts = draw_prompts(random.Random(1), streams, settings.prompt_len, engine.limits.vocab_size)
    params = SamplingParams(max_tokens=num_tokens, temperature=0, ignore_eos=True, deterministic=True)
    waiting = set()
    for prompt in prompts:
        request = engine.prepare(prompt, params)
        engine.submit(request)
        waiting.add(request.request_id)
    while waiting:
        waiting -= {update.request_id for update in engine.step() if update.delta.token_ids}


def _step_ends(engine: Engine, count: int) -> list[float]:
    ends = []
    for _ in range(count):
        engine.step()
        ends.append(time.perf_counter())
    return ends


def _profile(engine: Engine, steps: int) -> list[Kernel]:
    on_gpu = the_device().type == "cuda"
    activity = ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU
    _settle(on_gpu)
    with profile(activities=[activity]) as profiler:
        for _ in range(steps):
            engine.step()
        _settle(on_gpu)
    wanted = DeviceType.CUDA if on_gpu else DeviceType.CPU
    assert profiler.profiler is not None and profiler.profiler.kineto_results is not None
    return [
        Kernel(event.name(), event.start_ns(), event.start_ns() + event.duration_ns())
        for event in profiler.profiler.kineto_results.events()
        if event.device_type() == wanted
    ]


def _settle(on_gpu: bool) -> None:
    if on_gpu:
        torch.cuda.synchronize()


def _send_away(engine: Engine) -> None:
    for sequence in list(engine.scheduler.requests):
        engine.abort(sequence.request_id)
    while engine.has_work:
        engine.step()
