"""Where the time of a decode step and of a long prompt goes: kernels by kind, host gaps, and the
memory floor.

The step time is measured without a profiler, which would stretch the gaps. Kernel times come from a
profile of some further steps. Busy time is the union of all kernels: time in which two of them
overlap counts once.
"""

import random
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from holdfast.bench.determinism.stress import submit
from holdfast.bench.gpu.engines import EnginePair, default_device, kv_bytes_per_token, shape_config
from holdfast.bench.gpu.report import BreakdownSection, PromptBreakdown, SectionContext, StepBreakdown
from holdfast.bench.gpu.settings import GpuSettings
from holdfast.bench.gpu.timing import draw_prompts, median_ms
from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.engine import Engine
from holdfast.models.config import DecoderConfig

BANDWIDTH = 4.3e12  # bytes per second of a copy on an H200
_NUM_LONGEST = 16  # kernels listed by name

HEAD, PRODUCTS, OTHER = "head", "products", "other"
# The first match counts. Names are those of the GEMM library, torch and numerics/backends/triton.
_KINDS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("copies", re.compile(r"memcpy|memset", re.I)),
    ("experts", re.compile(r"grouped_gemm|^_(route|assign|count_segments|list_tiles|combine|row_dot)$")),
    (
        PRODUCTS,
        re.compile(
            r"gemm|gemv|nvjet|cutlass|cublas|splitk|xmma|matmul|small_m_|^_reduce_partial_sums$|aten::(linear|b?mm|addmm)",
            re.I,
        ),
    ),
    ("attention", re.compile(r"attention|merge_splits", re.I)),
    ("norms", re.compile(r"norm", re.I)),
    ("rope and store", re.compile(r"rope|^_store", re.I)),
    ("activation", re.compile(r"silu", re.I)),
    (
        "sampler",
        re.compile(
            r"^_(chunk_|finish_|compact|radix_select|limits|weigh_block|accept)|choose|choice|greedy|argmax|logsumexp|softmax|topk|sort",
            re.I,
        ),
    ),
    ("embedding", re.compile(r"embed", re.I)),
    ("copies", re.compile(r"copy|cat|index|gather|scatter|fill|elementwise|aten::", re.I)),
)


@dataclass(frozen=True)
class KernelEvent:
    """One kernel launch on the device; start and end are nanoseconds."""

    name: str
    start: int
    end: int


def kind_of(name: str) -> str:
    return next((kind for kind, pattern in _KINDS if pattern.search(name)), OTHER)


def busy_ns(kernels: Iterable[KernelEvent]) -> int:
    """The time in which at least one kernel ran."""
    total, until = 0, 0
    for one in sorted(kernels, key=lambda kernel: kernel.start):
        total += max(0, one.end - max(one.start, until))
        until = max(until, one.end)
    return total


def times_by_kind(kernels: Sequence[KernelEvent], num_steps: int) -> dict[str, float]:
    """Milliseconds per step.

    The longest product of each step is the head: it has the most output columns.
    """
    products = sorted(
        (one for one in kernels if kind_of(one.name) == PRODUCTS), key=lambda one: one.start - one.end
    )
    heads = {id(one) for one in products[:num_steps]}
    total: dict[str, float] = {}
    for one in kernels:
        kind = HEAD if id(one) in heads else kind_of(one.name)
        total[kind] = total.get(kind, 0.0) + (one.end - one.start) / 1e6 / num_steps
    return dict(sorted(total.items(), key=lambda item: -item[1]))


def longest_kernels(kernels: Sequence[KernelEvent], num_steps: int) -> dict[str, dict[str, float]]:
    """The kernels with the largest total time, by name."""
    found: dict[str, dict[str, float]] = {}
    for one in kernels:
        entry = found.setdefault(one.name[:120], {"ms": 0.0, "calls": 0.0})
        entry["ms"] += (one.end - one.start) / 1e6 / num_steps
        entry["calls"] += 1 / num_steps
    return dict(sorted(found.items(), key=lambda item: -item[1]["ms"])[:_NUM_LONGEST])


def floor_ms(
    config: DecoderConfig, streams: int, context: int, itemsize: int, num_experts: float | None = None
) -> float:
    """Read every weight and every stored key and value once, at copy bandwidth.

    An embedding that is not tied to the head is not counted: a step reads one row of it per token.
    num_experts: of each layer only so many experts are read.
    """
    head = config.vocab_size * config.hidden_size
    read: float = config.num_parameters - (0 if config.tie_word_embeddings else head)
    if num_experts is not None:
        num_sparse = sum(map(config.has_experts, range(config.num_layers)))
        unread = num_sparse * (config.num_experts - num_experts)
        read -= unread * 3 * config.hidden_size * config.expert_size
    kv = streams * context * kv_bytes_per_token(config, itemsize)
    return 1e3 * (read * itemsize + kv) / BANDWIDTH


def run_breakdown(
    pair: EnginePair, model: str, settings: GpuSettings, context: SectionContext
) -> BreakdownSection:
    """Deterministic requests in `auto`, at several numbers of streams."""
    found = BreakdownSection(model, settings.dtype)
    context.report.sections["breakdown"] = found
    for streams in settings.breakdown_streams:
        if context.is_over_time:
            found.cut_off = True
            break
        step = break_down(pair.engine("auto", plain=False), shape_config(model), streams, settings)
        found.steps.append(step)
        context.log(
            f"{model}, N = {streams}: {step.step_ms:.2f} ms per step, busy {step.busy_ms:.2f} "
            f"({100 * step.busy_share:.0f} %), floor {step.floor_ms:.2f}"
        )
        context.save()
    if settings.breakdown_prompt_len and not context.is_over_time:
        found.prompt = _break_down_prompt(
            pair.engine("auto", plain=False), shape_config(model), settings.breakdown_prompt_len
        )
        context.log(
            f"{model}, prompt of {found.prompt.num_tokens}: {found.prompt.prefill_ms:.0f} ms, "
            f"attention {found.prompt.attention_tflops:.0f} TFLOP/s"
        )
        context.save()
    return found


def _break_down_prompt(engine: Engine, config: DecoderConfig, num_tokens: int) -> PromptBreakdown:
    """One deterministic prompt, twice: without a profiler for its time, with one for its kernels."""
    _prefill(engine, num_tokens, seed=2)  # compiles what is compiled on first use
    started = time.perf_counter()
    _prefill(engine, num_tokens, seed=3)
    prefill_ms = 1e3 * (time.perf_counter() - started)
    kernels = _profile(lambda: _prefill(engine, num_tokens, seed=4))
    by_kind = times_by_kind(kernels, 1)
    # Two products, two operations for each multiply-add, half of the positions.
    flops = 2 * num_tokens**2 * config.num_heads * config.head_dim * config.num_layers
    attention = by_kind.get("attention", 0.0)
    return PromptBreakdown(
        num_tokens=num_tokens,
        prefill_ms=prefill_ms,
        busy_ms=busy_ns(kernels) / 1e6,
        attention_tflops=flops / attention / 1e9 if attention else 0.0,
        by_kind=by_kind,
        kernels=longest_kernels(kernels, 1),
    )


def _prefill(engine: Engine, num_tokens: int, seed: int) -> None:
    """Run one prompt to its first token."""
    (prompt,) = draw_prompts(random.Random(seed), 1, num_tokens, engine.limits.vocab_size)
    params = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True, deterministic=True)
    submit(engine, prompt, params, want_receipt=False)
    while engine.has_work:
        engine.step()


def break_down(
    engine: Engine,
    config: DecoderConfig,
    streams: int,
    settings: GpuSettings,
    *,
    num_experts: float | None = None,
) -> StepBreakdown:
    """A decode step of deterministic requests. num_experts: how many experts of a layer it reads."""
    steps = settings.breakdown_steps
    _start_decoding(engine, streams, settings)
    step = median_ms(_step_ends(engine, steps + 2))
    assert step is not None, "at least four steps are needed"
    kernels = _profile(lambda: _step_ends(engine, steps))
    context = settings.prompt_len + 2 * steps
    itemsize = 4 if settings.dtype == "fp32" else 2
    _abort_all(engine)
    busy = busy_ns(kernels) / 1e6 / steps
    return StepBreakdown(
        streams=streams,
        context=context,
        step_ms=step,
        busy_ms=busy,
        gap_ms=step - busy,
        busy_share=busy / step,
        floor_ms=floor_ms(config, streams, context, itemsize, num_experts),
        num_steps=steps,
        by_kind=times_by_kind(kernels, steps),
        kernels=longest_kernels(kernels, steps),
    )


def _start_decoding(engine: Engine, streams: int, settings: GpuSettings) -> None:
    """Submit requests and step until each has its first token."""
    prompts = draw_prompts(random.Random(1), streams, settings.prompt_len, engine.limits.vocab_size)
    params = SamplingParams(
        max_tokens=settings.breakdown_tokens, temperature=0, ignore_eos=True, deterministic=True
    )
    waiting = {submit(engine, prompt, params, want_receipt=False) for prompt in prompts}
    while waiting:
        waiting -= {update.request_id for update in engine.step() if update.delta.token_ids}


def _step_ends(engine: Engine, count: int) -> list[float]:
    ends = []
    for _ in range(count):
        engine.step()
        ends.append(time.perf_counter())
    return ends


def _profile(work: Callable[[], object]) -> list[KernelEvent]:
    on_gpu = default_device().type == "cuda"
    activity = ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU
    _synchronize(on_gpu)
    with profile(activities=[activity]) as profiler:
        work()
        _synchronize(on_gpu)
    wanted = DeviceType.CUDA if on_gpu else DeviceType.CPU
    assert profiler.profiler is not None and profiler.profiler.kineto_results is not None
    return [
        KernelEvent(event.name(), event.start_ns(), event.start_ns() + event.duration_ns())
        for event in profiler.profiler.kineto_results.events()
        if event.device_type() == wanted
    ]


def _synchronize(on_gpu: bool) -> None:
    if on_gpu:
        torch.cuda.synchronize()


def _abort_all(engine: Engine) -> None:
    for request in list(engine.scheduler.requests):
        engine.abort(request.request_id)
    while engine.has_work:
        engine.step()
