"""Where the time of a decode step and of a long prompt goes on a GPU: kernels by kind, host gaps, and the
memory floor.

    python benchmarks/gpu_step.py --model llama-3.1-8b --out docs/data

The step time is measured without a profiler, which would stretch the gaps. Kernel times come from a
profile of some further steps. Busy time is the union of all kernels: time in which two of them
overlap counts once.

A step reads only the experts its tokens choose, so with few streams the memory floor depends on
their number. It is calculated: random weights choose nearly every expert equally often.
"""

import random
import re
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from engines import TINY_SHAPES, llm_options
from holdfast import LLM, SamplingParams
from holdfast.bench.stress import submit
from holdfast.engine.engine import Engine
from holdfast.models.config import DecoderConfig
from holdfast.worker.kv_store import page_bytes
from holdfast.worker.model_runner import ModelRunner
from measure import Bench, new_parser

BANDWIDTH = 4.3e12  # bytes per second of a copy on an H200
_NUM_LONGEST = 8  # kernels listed by name

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


def _longest_kernels(kernels: Sequence[KernelEvent], num_steps: int) -> list[dict[str, Any]]:
    """The kernels with the largest total time: ms and calls of a step."""
    found: dict[str, dict[str, Any]] = {}
    for one in kernels:
        entry = found.setdefault(one.name[:120], {"kernel": one.name[:120], "ms": 0.0, "calls": 0.0})
        entry["ms"] += (one.end - one.start) / 1e6 / num_steps
        entry["calls"] += 1 / num_steps
    return sorted(found.values(), key=lambda entry: -float(entry["ms"]))[:_NUM_LONGEST]


def floor_ms(
    config: DecoderConfig,
    streams: int,
    context: int,
    dtype: torch.dtype,
    num_experts: float,
) -> float:
    """Read every weight and every stored key and value once, at copy bandwidth.

    An embedding that is not tied to the head is not counted: a step reads one row of it per token.
    num_experts: how many experts of a layer are read.
    """
    head = config.vocab_size * config.hidden_size
    read: float = config.num_parameters - (0 if config.tie_word_embeddings else head)
    num_sparse = sum(map(config.has_experts, range(config.num_layers)))
    unread = num_sparse * (config.num_experts - num_experts)
    read -= unread * 3 * config.hidden_size * config.expert_size
    kv = streams * context * page_bytes(config, dtype, 1)
    return 1e3 * (read * dtype.itemsize + kv) / BANDWIDTH


def experts_read(config: DecoderConfig, streams: int) -> float:
    """Return how many experts of a layer a step reads on average, if a token chooses each equally often."""
    if not config.num_experts:
        return 0.0
    share = config.experts_per_token / config.num_experts
    return config.num_experts * (1 - (1 - share) ** streams)


@dataclass(frozen=True)
class Steps:
    """What is measured: decode steps at several numbers of streams after a prompt each, and one long prompt."""

    streams: tuple[int, ...] = (1, 32, 256)
    steps: int = 24
    context: int = 512  # tokens of a prompt before the steps
    prompt_len: int = 30_000


def run_breakdown(bench: Bench, model: str, dtype: str | None, what: Steps) -> None:
    """Measure deterministic requests in `auto`. A row's fields `ms X` are those of kernels of kind X."""
    with llm_options(model, dtype) as options:
        options |= {"certification": "startup", "speculation": "off", "prefix_cache": False}
        with LLM(**options) as llm:
            for streams in what.streams:
                if not bench.is_over("breakdown"):
                    _break_down_step(bench, model, what, llm.engine, streams)
            if not bench.is_over("breakdown"):
                _break_down_prompt(bench, model, what, llm.engine)


def _break_down_step(bench: Bench, model: str, what: Steps, engine: Engine, streams: int) -> None:
    decoder, steps = cast(ModelRunner, engine.runner)._decoder, what.steps
    _start_decoding(engine, streams, what)
    ends = _step_ends(engine, steps + 2)
    # The first interval may contain the end of a prefill.
    step = statistics.median([1e3 * (later - earlier) for earlier, later in pairwise(ends[1:])])
    kernels = _profile(lambda: _step_ends(engine, steps))
    _abort_all(engine)
    context = what.context + 2 * steps
    experts = experts_read(decoder.config, streams)
    busy = busy_ns(kernels) / 1e6 / steps
    fields = {"model": model, "streams": streams}
    bench.row(
        part="breakdown",
        **fields,
        context=context,
        experts_read=experts or None,
        step_ms=step,
        busy_ms=busy,
        gap_ms=step - busy,
        floor_ms=floor_ms(decoder.config, streams, context, decoder.dtype, experts),
        **{f"ms {kind}": ms for kind, ms in times_by_kind(kernels, steps).items()},
    )
    for one in _longest_kernels(kernels, steps):
        bench.row(part="kernels", **fields, **one)


def _break_down_prompt(bench: Bench, model: str, what: Steps, engine: Engine) -> None:
    """One deterministic prompt, twice: without a profiler for its time, with one for its kernels."""
    config = cast(ModelRunner, engine.runner)._decoder.config
    num_tokens = min(what.prompt_len, config.max_position_embeddings - 1)
    _prefill(engine, num_tokens, seed=2)  # compiles what is compiled on first use
    started = time.perf_counter()
    _prefill(engine, num_tokens, seed=3)
    prefill_ms = 1e3 * (time.perf_counter() - started)
    kernels = _profile(lambda: _prefill(engine, num_tokens, seed=4))
    by_kind = times_by_kind(kernels, 1)
    # Two products, two operations for each multiply-add, half of the positions.
    flops = 2 * num_tokens**2 * config.num_heads * config.head_dim * config.num_layers
    attention = by_kind.get("attention")
    fields = {"model": model, "prompt": num_tokens}
    bench.row(
        part="breakdown of a prompt",
        **fields,
        prefill_ms=prefill_ms,
        busy_ms=busy_ns(kernels) / 1e6,
        attention_tflops=flops / attention / 1e9 if attention else None,
        **{f"ms {kind}": ms for kind, ms in by_kind.items()},
    )
    for one in _longest_kernels(kernels, 1):
        bench.row(part="kernels", **fields, **one)


def _params(num_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=num_tokens, temperature=0, ignore_eos=True, deterministic=True)


def _prefill(engine: Engine, num_tokens: int, seed: int) -> None:
    """Run one prompt to its first token."""
    prompt = random.Random(seed).choices(range(engine.limits.vocab_size), k=num_tokens)
    submit(engine, prompt, _params(1), want_receipt=False)
    while engine.has_work:
        engine.step()


def _start_decoding(engine: Engine, streams: int, what: Steps) -> None:
    """Submit requests and step until each has its first token. They still decode when all steps are
    timed and profiled."""
    rng, ids = random.Random(1), range(engine.limits.vocab_size)
    params = _params(4 * what.steps + 8)
    waiting = {
        submit(engine, rng.choices(ids, k=what.context), params, want_receipt=False) for _ in range(streams)
    }
    while waiting:
        waiting -= {update.request_id for update in engine.step() if update.delta.token_ids}


def _step_ends(engine: Engine, count: int) -> list[float]:
    ends = []
    for _ in range(count):
        engine.step()
        ends.append(time.perf_counter())
    return ends


def _profile(work: Callable[[], object]) -> list[KernelEvent]:
    on_gpu = torch.cuda.is_available()
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


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--model", default="llama-3.1-8b", help="shape of the random weights; tiny for a CPU")
    parser.add_argument("--dtype", help="bf16, fp16 or fp32; default: of the shape")
    parser.add_argument("--out", type=Path, help="folder for bench-gpu-step.json")
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no measurement after this time")
    given = parser.parse_args()
    bench = Bench("bench-gpu-step", given.out, given.minutes)
    what = Steps((2,), 4, 24, 200) if given.model in TINY_SHAPES else Steps()
    with bench.part(part="breakdown"):
        run_breakdown(bench, given.model, given.dtype, what)
    bench.finish()


if __name__ == "__main__":
    main()
