"""Builds an engine: choose the device and the backend, load the model, size the KV cache, capture
CUDA graphs, certify the machine.
"""

import logging
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from holdfast.certification.canary import Canary, run_canary
from holdfast.certification.certificate import Certificate, certificate_key, load_certificate
from holdfast.certification.certification import Progress
from holdfast.certification.certify import certificate_subject, plan_certification
from holdfast.certification.gemm.choose import choose_recipes
from holdfast.certification.gemm.recipes import GemmRecipe, split_k_by_shape, split_n_by_shape
from holdfast.engine.background_work import Certifier, SpareKVPages
from holdfast.engine.config import (
    BatchLimits,
    EngineConfig,
    default_gpu_kv_bytes,
    default_kv_bytes,
    dtype_name,
    parse_bytes,
)
from holdfast.engine.engine import Engine
from holdfast.engine.start.compile_ahead import CompileWorker, compile_ahead
from holdfast.engine.start.preflight import (
    OpenedModel,
    context_len,
    dummy_config,
    open_model,
    request_limits,
)
from holdfast.engine.start.start_up import (
    StartUpClock,
    explain_kernel_failure,
    release_free_memory,
    release_library_pages,
)
from holdfast.engine.status import ShowProgress
from holdfast.errors import ConfigError, HoldfastError, UnsupportedModel
from holdfast.kv_cache.page_pool import PagePool
from holdfast.models.checkpoint import Checkpoint, open_checkpoint
from holdfast.models.config import DecoderConfig
from holdfast.models.decoder import Decoder
from holdfast.models.dummy import DummyCheckpoint
from holdfast.models.locate import locate
from holdfast.models.weight_loader import load_decoder
from holdfast.numerics.backends.c.layers import MAX_HEAD_DIM
from holdfast.numerics.backends.select_backend import open_backend, uses_c_kernels, uses_triton
from holdfast.numerics.batch_sizes import padded_batch_sizes
from holdfast.numerics.blocks import BlockSource
from holdfast.numerics.ops import Backend
from holdfast.numerics.recipe import KernelBackend
from holdfast.numerics.settings import NumericSettings, numeric_settings
from holdfast.numerics.settings_guard import our_settings
from holdfast.receipts.canonical_json import JsonValue
from holdfast.receipts.engine_fingerprint import FingerprintTask, engine_parts
from holdfast.receipts.machine import describe_machine
from holdfast.receipts.receipt import ReceiptFactory
from holdfast.receipts.signing import SigningKey
from holdfast.scheduler.policy import SchedulerConfig
from holdfast.scheduler.scheduler import Scheduler
from holdfast.structured.compiler import GrammarCompiler
from holdfast.text.tokenizer import Tokenizer
from holdfast.thinking.blocks import load_blocks
from holdfast.thinking.config import ThinkingConfig, read_thinking, thinking_folder
from holdfast.thinking.log import ThoughtLogs
from holdfast.thinking.runner import ThoughtRunner, slot_bytes
from holdfast.thinking.weights import thinking_parts
from holdfast.worker.device import choose_device, cpu_name, device_name, device_parts, free_memory
from holdfast.worker.kv_store import KVStore, num_pages_in, page_bytes
from holdfast.worker.model_runner import ModelRunner

_log = logging.getLogger(__name__)
_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
_MAX_GRAPH_REFERENCES = 2  # times the reference's tokens, in a canonical pass in a CUDA graph


def build(
    config: EngineConfig,
    show: ShowProgress | None = None,
    opened: OpenedModel | None = None,
    worker: CompileWorker | None = None,
) -> Engine:
    """Find the model, load it and build its engine. opened is the model, if it is open already.
    worker compiles its kernels, if it runs already; it is closed."""
    opened = opened or open_model(config)
    with closing(worker or compile_ahead(config, opened.model)) as worker:
        checkpoint: Checkpoint | None = opened.checkpoint
        if checkpoint is None:
            device = choose_device(config.device, config.kernels)
            checkpoint = DummyCheckpoint(opened.model, device=device)
        return assemble(config, checkpoint, opened.tokenizer, show, worker)


@dataclass(frozen=True)
class _Setup:
    """A configuration with what the device and the model add to it."""

    config: EngineConfig
    model: DecoderConfig
    folder: Path | None  # of T and C, if the model thinks
    thinking: ThinkingConfig | None  # of a model that thinks
    device: torch.device
    dtype: torch.dtype
    settings: NumericSettings
    limits: BatchLimits
    max_len: int
    block_formats: frozenset[str]  # of weights that the kernels keep in quantised blocks

    @property
    def extra_slot_bytes(self) -> int:
        return 0 if self.thinking is None else slot_bytes(self.model.hidden_size, self.dtype)


def assemble(
    config: EngineConfig,
    checkpoint: Checkpoint,
    tokenizer: Tokenizer,
    show: ShowProgress | None = None,
    worker: CompileWorker | None = None,
) -> Engine:
    """Build an engine for an open checkpoint. worker: compiles its kernels meanwhile."""
    device = choose_device(config.device, config.kernels)
    settings = numeric_settings(config.num_threads, device=device)
    with our_settings(device):
        setup = _make_setup(config, checkpoint, device, settings)
        try:
            return _assemble(setup, checkpoint, tokenizer, worker or CompileWorker(), show)
        except (MemoryError, torch.OutOfMemoryError) as error:
            raise ConfigError(_out_of_memory(setup)) from error
        except HoldfastError:
            raise
        except Exception as error:
            message = explain_kernel_failure(error, device)
            if message is None:
                raise
            raise ConfigError(message) from error


def _make_setup(
    config: EngineConfig, checkpoint: Checkpoint, device: torch.device, settings: NumericSettings
) -> _Setup:
    max_len = context_len(config, checkpoint.config)
    model = checkpoint.config.for_length(max_len)
    folder = thinking_folder(config.model, checkpoint)
    formats = _kept_formats(config, checkpoint, device)
    return _Setup(
        config=config,
        model=model,
        folder=folder,
        thinking=None if folder is None else read_thinking(folder, model),
        device=device,
        dtype=torch.float32 if formats else torch_dtype(config, model.torch_dtype),
        settings=settings,
        limits=config.batch_limits(device.type, model.num_experts),
        max_len=max_len,
        block_formats=formats,
    )


def _assemble(
    setup: _Setup,
    checkpoint: Checkpoint,
    tokenizer: Tokenizer,
    worker: CompileWorker,
    show: ShowProgress | None,
) -> Engine:
    config, model, thinking = setup.config, setup.model, setup.thinking
    key = None if config.receipt_key is None else SigningKey.read(Path(config.receipt_key).expanduser())
    clock = StartUpClock(setup.device)
    backend = _open_backend(setup, show)
    clock.end("recipes and backend")
    _await_kernels(worker, show)
    clock.end("kernels")
    canary = run_canary(backend, model)  # before anything fills the device's memory
    release_free_memory()
    if setup.device.type == "cpu":
        release_library_pages()
    clock.end("canary")
    if thinking is not None and backend.page_size % thinking.chunk:
        raise UnsupportedModel(
            f"the model thinks in chunks of {thinking.chunk} tokens; here a chunk must divide a page of "
            f"{backend.page_size}"
        )
    schedule = _schedule(setup, backend)
    if config.kv_memory is not None:  # refuse too little memory before loading anything
        _num_pages_in(setup, backend, parse_bytes(config.kv_memory))
    eos_ids = frozenset(model.eos_token_ids) | tokenizer.eos_token_ids
    fingerprint = _start_fingerprint(setup, checkpoint, tokenizer, eos_ids, backend, canary)
    longest = setup.max_len if thinking is None else max(setup.max_len, thinking.longest)
    decoder = load_decoder(checkpoint, backend, setup.dtype, longest, _stage(show, "Loading weights"))
    blocks = None
    if thinking is not None and setup.folder is not None:
        blocks = load_blocks(setup.folder, thinking, decoder)
    checkpoint.release()
    clock.end("weights")
    num_pages = _num_pages(setup, backend)
    store = KVStore(num_pages, model, backend)
    extension = None if blocks is None else ThoughtRunner(decoder, blocks, num_pages)
    runner = ModelRunner(decoder, store, extension)
    clock.end("KV cache")
    if setup.device.type == "cuda":
        _plan_graphs(runner, schedule, setup.max_len)
        clock.end("graphs")
    subject = certificate_subject(
        decoder, setup.settings, canary.fast, setup.limits.max_pass_tokens, setup.max_len
    )
    certificate, certifier = _obtain_certificate(setup, subject, decoder, runner, store, show)
    release_free_memory()
    clock.end("certificate" if certifier is None else "reference's own test")
    if certificate is not None:
        sizes = _padded_sizes(certificate.sizes, backend, setup.limits)
        schedule = replace(schedule, certified_sizes=sizes)
    kernels = () if certificate is None else certificate.kernels
    machine = describe_machine(setup.device.type, device_name(setup.device), cpu_name(), kernels)
    limits = request_limits(config, model, tokenizer, thinking)
    engine = Engine(
        Scheduler(schedule, PagePool(num_pages, backend.page_size)),
        runner,
        tokenizer,
        limits if certificate is None else replace(limits, refusal=certificate.refusal),
        certificate,
        GrammarCompiler(tokenizer, model.vocab_size, eos_ids),
        ReceiptFactory(fingerprint.get, config.model, machine, key),
        certifier,
    )
    if setup.device.type == "cuda":
        engine.background.warm_up = runner.capture_next
        engine.background.warms_up_busy = config.certifies_in_background
    engine.start_up_seconds = clock.seconds
    _log.debug("built the engine in %s", clock)
    if certifier is not None and certifier.is_at_work:
        _log.info(
            "no certificate of this model and machine yet: it is made in the background, and deterministic "
            "answers are verified until then"
        )
    return engine


def _await_kernels(worker: CompileWorker, show: ShowProgress | None) -> None:
    is_shown = show is not None and worker.is_running
    if show is not None and is_shown:
        show("Compiling kernels", 0, 1)
    worker.wait()
    if show is not None and is_shown:
        show("Compiling kernels", 1, 1)


def _obtain_certificate(
    setup: _Setup,
    subject: Mapping[str, object],
    decoder: Decoder,
    runner: ModelRunner,
    store: KVStore,
    show: ShowProgress | None,
) -> tuple[Certificate | None, Certifier | None]:
    """Read the certificate, or make it now; or return what makes it while the engine serves."""
    config = setup.config
    if config.determinism == "off":
        return None, None
    known = load_certificate(certificate_key(subject))
    if known is not None:
        return known, None
    limits = setup.limits
    pages = SpareKVPages(store.num_pages)
    certification = plan_certification(
        subject,
        decoder,
        runner,
        store,
        max_pass_tokens=limits.max_pass_tokens,
        max_len=setup.max_len,
        lender=pages,
    )
    certifier = Certifier(certification, pages, lambda sizes: _padded_sizes(sizes, decoder.backend, limits))
    if not config.certifies_in_background:
        _log.info("no certificate of this model and machine yet: it is made now, once")
        certifier.finish(_stage(show, "Certifying"))
        return certifier.certificate, None if certifier.failure is None else certifier
    refused = certification.test_reference(_stage(show, "Testing the reference"))
    return refused, certifier if refused is None else None


def _out_of_memory(setup: _Setup) -> str:
    weights = setup.model.num_parameters * setup.dtype.itemsize / 2**30
    dtype = str(setup.dtype).removeprefix("torch.")
    return (
        f"{device_name(setup.device)} ran out of memory while the engine was built; the weights of this model take "
        f"{weights:.1f} GiB in {dtype}. Use a device with more memory or a smaller model, or lower kv_memory, "
        "max_pass_tokens or max_num_seqs"
    )


def _start_fingerprint(
    setup: _Setup,
    checkpoint: Checkpoint,
    tokenizer: Tokenizer,
    eos_ids: frozenset[int],
    backend: Backend,
    canary: Canary,
) -> FingerprintTask:
    thinking, folder, model = setup.thinking, setup.folder, setup.model

    def describe() -> Mapping[str, JsonValue]:
        device = device_parts(setup.device)
        extra = {}
        if thinking is not None and folder is not None:
            extra["thinking"] = thinking_parts(folder, thinking, model)
        return engine_parts(
            model, eos_ids, tokenizer, backend, setup.settings, device, canary.reference, extra
        )

    return FingerprintTask(checkpoint, describe)


def gemm_recipes(
    config: EngineConfig, show: ShowProgress | None = None, *, anew: bool = False
) -> tuple[GemmRecipe, ...]:
    """Return the GEMM recipes of an engine with this configuration, without loading its weights.

    Empty on a CPU.
    """
    device = choose_device(config.device, config.kernels)
    if not uses_triton(config.kernels, device):
        return ()
    settings = numeric_settings(config.num_threads, device=device)
    if config.load_format == "dummy":
        model = dummy_config(config.model)
    else:
        model = open_checkpoint(locate(config.model).path).config
    dtype = torch_dtype(config, model.torch_dtype)
    return choose_recipes(model, dtype, device, settings, _stage(show, "Choosing recipes"), anew=anew)


def torch_dtype(config: EngineConfig, stored: str | None) -> torch.dtype:
    """Return the dtype to compute in; stored: the checkpoint's own."""
    return _DTYPES[dtype_name(config.dtype, stored)]


def _schedule(setup: _Setup, backend: Backend) -> SchedulerConfig:
    config, thinking = setup.config, setup.thinking
    logs = None
    if thinking is not None:
        logs = ThoughtLogs(thinking.chunk, thinking.while_answering, thinking.reset_ids)
    return SchedulerConfig(
        max_num_seqs=setup.limits.max_num_seqs,
        max_pass_tokens=setup.limits.max_pass_tokens,
        reference_tokens=backend.recipe.rows,
        determinism=config.determinism,
        prefix_cache=config.prefix_cache,
        speculation=config.speculation,
        spot_check_rate=config.spot_check_rate_on(setup.device.type),
        async_scheduling=setup.device.type == "cuda" and thinking is None,
        new_extension=logs,
    )


def _open_backend(setup: _Setup, show: ShowProgress | None) -> Backend:
    """Open the backend that computes; on a GPU with the GEMM recipes chosen for it."""
    config, dtype, num_threads = setup.config, setup.dtype, setup.settings.threads
    if not uses_triton(config.kernels, setup.device):
        return open_backend(
            dtype,
            kernels=_cpu_kernels(config, setup.model),
            num_threads=num_threads,
            portable=config.portable,
            block_formats=setup.block_formats,
        )
    recipes = choose_recipes(
        setup.model, dtype, setup.device, setup.settings, _stage(show, "Choosing recipes")
    )
    return open_backend(
        dtype,
        kernels="triton",
        num_threads=num_threads,
        device=setup.device,
        portable=config.portable,
        vendor_gemm=config.determinism == "off",
        split_k=split_k_by_shape(recipes),
        split_n=split_n_by_shape(recipes),
    )


def _kept_formats(config: EngineConfig, checkpoint: Checkpoint, device: torch.device) -> frozenset[str]:
    """The formats of quantised blocks that C kernels compute with as they are, with activations in fp32.
    A configured dtype dequantises them."""
    if config.dtype != "auto" or not isinstance(checkpoint, BlockSource):
        return frozenset()
    fits = checkpoint.config.head_dim <= MAX_HEAD_DIM
    return checkpoint.block_formats() if fits and uses_c_kernels(config.kernels, device) else frozenset()


def _cpu_kernels(config: EngineConfig, model: DecoderConfig) -> KernelBackend:
    """Choose the configured kernels, unless this model's heads are too large for the C kernels."""
    if config.kernels == "torch" or model.head_dim <= MAX_HEAD_DIM:
        return config.kernels
    reason = f"the C kernels take heads of at most {MAX_HEAD_DIM}, this model's have {model.head_dim}"
    if config.kernels == "c" or config.portable:
        raise ConfigError(f"{reason}; use kernels auto or torch, and not portable")
    _log.warning("using the slower torch backend: %s", reason)
    return "torch"


def _plan_graphs(runner: ModelRunner, schedule: SchedulerConfig, max_len: int) -> None:
    """CUDA graphs of passes of every padded size, and of the canonical passes that verify or check
    the certificate. Each is captured when it is first used, or by an idle engine.
    """
    canonical: list[int] = []
    if schedule.determinism != "off":
        canonical = [schedule.reference_tokens * count for count in range(1, _MAX_GRAPH_REFERENCES + 1)]
    sizes = padded_batch_sizes(schedule.max_pass_tokens)
    runner.capture(sizes, canonical, max_len=max_len, lazily=True)


def _padded_sizes(certified: Sequence[int], backend: Backend, limits: BatchLimits) -> tuple[int, ...]:
    """Choose the certified batch sizes that passes are padded to: on a GPU those with a CUDA graph."""
    if backend.device.type != "cuda":
        return tuple(certified)
    captured = frozenset(padded_batch_sizes(limits.max_pass_tokens))
    return tuple(size for size in certified if size in captured)


def _num_pages(setup: _Setup, backend: Backend) -> int:
    """Count the pages that fit the KV budget.

    Without a configured one, at most what all requests need at full length.
    """
    if setup.config.kv_memory is not None:
        return _num_pages_in(setup, backend, parse_bytes(setup.config.kv_memory))
    on_gpu = setup.device.type == "cuda"
    budget = default_gpu_kv_bytes(free_memory(setup.device)) if on_gpu else default_kv_bytes()
    page = page_bytes(setup.model, setup.dtype, backend.page_size, extra=setup.extra_slot_bytes)
    num_needed = setup.limits.max_num_seqs * -(-setup.max_len // backend.page_size)
    return min(_num_pages_in(setup, backend, max(budget, page)), num_needed)


def _num_pages_in(setup: _Setup, backend: Backend, num_bytes: int) -> int:
    return num_pages_in(num_bytes, setup.model, setup.dtype, backend.page_size, extra=setup.extra_slot_bytes)


def _stage(show: ShowProgress | None, stage: str) -> Progress | None:
    if show is None:
        return None
    return lambda done, total: show(stage, done, total)
