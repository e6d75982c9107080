"""Builds an engine: choose the device and the backend, load the model, size the KV cache, capture
CUDA graphs, certify the machine.
"""

import logging
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

from holdfast.certification.canary import run_canary
from holdfast.certification.certificate import certificate_key, load_certificate
from holdfast.certification.gemm.recipes import GemmRecipe, split_k_by_shape, split_n_by_shape
from holdfast.certification.subject import certificate_subject
from holdfast.engine.background_work import BackgroundWork, SpareKVPages
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
from holdfast.engine.start.preflight import OpenedModel, open_model
from holdfast.engine.start.start_up import (
    StartUpClock,
    explain_kernel_failure,
    release_free_memory,
    release_library_pages,
)
from holdfast.engine.status import ShowProgress
from holdfast.errors import ConfigError, HoldfastError, UnsupportedModel
from holdfast.kv_cache.page_pool import PagePool
from holdfast.models.checkpoint import Checkpoint
from holdfast.models.config import DecoderConfig
from holdfast.models.decoder import Decoder
from holdfast.models.weight_loader import load_decoder
from holdfast.numerics.arrays import Device, arrays_on
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
from holdfast.thinking.blocks import load_blocks
from holdfast.thinking.log import ThoughtLogs
from holdfast.thinking.runner import ThoughtRunner, slot_bytes
from holdfast.thinking.weights import thinking_parts
from holdfast.worker.device import (
    choose_device,
    cpu_name,
    device_name,
    device_parts,
    free_memory,
)
from holdfast.worker.kv_store import (
    NUM_SCRATCH_STATES,
    KVStore,
    log_len_for,
    num_pages_in,
    page_bytes,
    state_bytes,
)
from holdfast.worker.model_runner import ModelRunner

_log = logging.getLogger(__name__)
_MORE_STATES, _FEWEST_SPARE_STATES = 64, 4  # recurrent states besides those of running requests
_MAX_RECURRENT_WINDOW = 31  # candidates; the log of a recurrent layer holds several windows
_STATE_INTERVALS = {"cpu": 256, "cuda": 2048}  # positions between states of a prompt that are kept
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
        return assemble(opened, opened.checkpoint, show, worker)


def assemble(
    opened: OpenedModel,
    checkpoint: Checkpoint | None,
    show: ShowProgress | None = None,
    worker: CompileWorker | None = None,
) -> Engine:
    """Build an engine for an opened model. checkpoint: its weights, by default random ones. worker: compiles
    its kernels meanwhile."""
    config = opened.config
    device = choose_device(config.device, config.kernels)
    checkpoint = checkpoint or _random_weights(opened.model, device)
    settings = numeric_settings(config.num_threads, device=device)
    with our_settings(device):
        builder = _Builder(opened, checkpoint, device, settings, show)
        try:
            return builder.build(worker or CompileWorker())
        except (MemoryError, arrays_on(device).OutOfMemoryError) as error:
            raise ConfigError(builder.out_of_memory()) from error
        except HoldfastError:
            raise
        except Exception as error:
            message = explain_kernel_failure(error, device)
            if message is None:
                raise
            raise ConfigError(message) from error


class _Builder:
    """Builds one engine of a configuration, of what the device and the model add to it, and of a backend."""

    backend: Backend

    def __init__(
        self,
        opened: OpenedModel,
        checkpoint: Checkpoint,
        device: Device,
        settings: NumericSettings,
        show: ShowProgress | None,
    ) -> None:
        config = self.config = opened.config
        self.checkpoint, self.tokenizer, self.files = checkpoint, opened.tokenizer, opened.files
        self.device, self.settings, self.show = device, settings, show or _show_nothing
        self.limits = opened.limits
        self.max_len = self.limits.max_model_len
        model = self.model = checkpoint.config.for_length(self.max_len)
        self.folder, self.thinking = opened.thinking_folder, opened.thinking
        self.block_formats = _kept_formats(config, checkpoint, device)
        wanted = "float32" if self.block_formats else dtype_name(config.dtype, model.torch_dtype)
        self.dtype = arrays_on(device).dtype(wanted)
        self.batch_limits = config.batch_limits(device.type, model.num_experts)

    def build(self, worker: CompileWorker) -> Engine:
        config, model, thinking, on_gpu = self.config, self.model, self.thinking, self.device.type == "cuda"
        key = None if config.receipt_key is None else SigningKey.read(Path(config.receipt_key).expanduser())
        clock = StartUpClock(self.device)
        backend = self.backend = self.open_backend()
        clock.end("recipes and backend")
        is_compiling = worker.is_running
        if is_compiling:
            self.show("Compiling kernels", 0, 1)
        worker.wait()
        if is_compiling:
            self.show("Compiling kernels", 1, 1)
        clock.end("kernels")
        canary = run_canary(backend, model)  # before anything fills the device's memory
        release_free_memory()
        if not on_gpu:
            release_library_pages()
        clock.end("canary")
        if thinking is not None and model.num_recurrent_layers:
            raise UnsupportedModel(
                "thinking states need attention in every layer; this model's are recurrent"
            )
        if thinking is not None and backend.page_size % thinking.chunk:
            raise UnsupportedModel(
                f"the model thinks in chunks of {thinking.chunk} tokens; here a chunk must divide a page of "
                f"{backend.page_size}"
            )
        schedule = self._schedule()
        if config.kv_memory is not None:  # refuse too little memory before loading anything
            self._num_pages(self._with_states(schedule))
        fingerprint = FingerprintTask(self.checkpoint, partial(self._fingerprint_parts, canary.reference))
        longest = self.max_len if thinking is None else max(self.max_len, thinking.longest)
        loading = partial(self.show, "Loading weights")
        decoder = load_decoder(self.checkpoint, backend, self.dtype, longest, loading)
        blocks = None
        if thinking is not None and self.folder is not None:
            blocks = load_blocks(self.folder, thinking, decoder)
        self.checkpoint.release()
        self.files.require_unchanged()
        clock.end("weights")
        schedule = self._with_states(schedule)
        num_pages = self._num_pages(schedule)
        log_len = log_len_for(model, schedule.num_uncertain)
        store = KVStore(num_pages, model, backend, schedule.num_states, log_len)
        extension = None if blocks is None else ThoughtRunner(decoder, blocks, num_pages)
        runner = ModelRunner(decoder, store, extension)
        clock.end("KV cache")
        if on_gpu:
            _plan_graphs(runner, schedule, self.max_len)
            clock.end("graphs")
        subject = certificate_subject(
            decoder, self.settings, canary.fast, self.batch_limits.max_pass_tokens, self.max_len
        )
        background = self._obtain_certificate(subject, decoder, runner, store)
        certificate, is_certifying = background.certificate, background.is_left
        release_free_memory()
        clock.end("reference's own test" if is_certifying else "certificate")
        limits, kernels = self.limits, None
        if certificate is not None:
            sizes = _padded_sizes(certificate.sizes, backend, self.batch_limits)
            schedule = replace(schedule, certified_sizes=sizes)
            limits, kernels = replace(limits, refusal=certificate.refusal), certificate.kernels
        machine = describe_machine(self.device.type, device_name(self.device), cpu_name(), kernels or ())
        if on_gpu:
            background.warm_up = runner.capture_next
            background.warms_up_busy = config.certification == "background"
        engine = Engine(
            Scheduler(schedule, PagePool(num_pages, backend.page_size)),
            runner,
            self.tokenizer,
            limits,
            GrammarCompiler(self.tokenizer, model.vocab_size, limits.eos_ids),
            ReceiptFactory(fingerprint.get, config.model, machine, key),
            background,
        )
        engine.start_up_seconds = clock.seconds
        _log.debug("built the engine in %s", clock)
        if is_certifying:
            _log.info(
                "no certificate of this model and machine yet: it is made in the background, and deterministic "
                "answers are verified until then"
            )
        return engine

    def _obtain_certificate(
        self, subject: Mapping[str, object], decoder: Decoder, runner: ModelRunner, store: KVStore
    ) -> BackgroundWork:
        """Read the certificate, or make it now; or return what makes it while the engine serves."""
        if self.config.determinism == "off":
            return BackgroundWork()
        known = load_certificate(certificate_key(subject))
        if known is not None:
            return BackgroundWork(known)
        from holdfast.certification.certify import plan_certification  # with all checks; once for a machine

        limits, pages = self.batch_limits, SpareKVPages(store.num_pages)
        certification = plan_certification(
            subject,
            decoder,
            runner,
            store,
            max_pass_tokens=limits.max_pass_tokens,
            max_len=self.max_len,
            lender=pages,
        )
        padded_sizes = partial(_padded_sizes, backend=decoder.backend, limits=limits)
        background = BackgroundWork(None, certification, pages, padded_sizes)
        if self.config.certification == "startup":
            _log.info("no certificate of this model and machine yet: it is made now, once")
            background.finish(partial(self.show, "Certifying"))
            made = certification.certificate
        else:  # a refusal, if there is one
            made = certification.test_reference(partial(self.show, "Testing the reference"))
        return background if made is None else BackgroundWork(made)

    def out_of_memory(self) -> str:
        weights = self.model.num_parameters * self.dtype.itemsize / 2**30
        dtype = self.backend.recipe.dtype
        return (
            f"{device_name(self.device)} ran out of memory while the engine was built; the weights of this model "
            f"take {weights:.1f} GiB in {dtype}. Use a device with more memory or a smaller model, or lower "
            "kv_memory, max_pass_tokens or max_num_seqs"
        )

    def _fingerprint_parts(self, canary: Mapping[str, str]) -> Mapping[str, JsonValue]:
        extra = {}
        if self.thinking is not None and self.folder is not None:
            extra["thinking"] = thinking_parts(self.folder, self.thinking, self.model)
        self.files.require_unchanged()  # the weights were hashed before
        return engine_parts(
            self.model,
            self.limits.eos_ids,
            self.tokenizer,
            self.backend,
            self.settings,
            device_parts(self.device),
            canary,
            extra,
        )

    def _schedule(self) -> SchedulerConfig:
        config, thinking = self.config, self.thinking
        logs = None
        if thinking is not None:
            how = (thinking.while_answering, thinking.reset_ids, thinking.settle, thinking.carry)
            logs = ThoughtLogs(thinking.chunk, *how)
        return SchedulerConfig(
            max_num_seqs=self.batch_limits.max_num_seqs,
            max_pass_tokens=self.batch_limits.max_pass_tokens,
            reference_tokens=self.backend.recipe.rows,
            determinism=config.determinism,
            prefix_cache=config.prefix_cache,
            speculation=config.speculation,
            spot_check_rate=config.spot_check_rate_on(self.device.type),
            async_scheduling=self.device.type == "cuda" and thinking is None,
            new_extension=logs,
            max_window=_MAX_RECURRENT_WINDOW if self.model.num_recurrent_layers else None,
            state_interval=_STATE_INTERVALS[self.device.type],
        )

    def open_backend(self) -> Backend:
        """Open the backend that computes; on a GPU with the GEMM recipes chosen for it."""
        config, dtype, num_threads = self.config, self.dtype, self.settings.threads
        if not uses_triton(config.kernels, self.device):
            return open_backend(
                dtype,
                kernels=_cpu_kernels(config, self.model),
                num_threads=num_threads,
                portable=config.portable,
                block_formats=self.block_formats,
                device=self.device,
            )
        from holdfast.certification.gemm.choose import choose_recipes  # imports torch

        choosing = partial(self.show, "Choosing recipes")
        recipes = choose_recipes(self.model, dtype, self.device, self.settings, choosing)
        return open_backend(
            dtype,
            kernels="triton",
            num_threads=num_threads,
            device=self.device,
            portable=config.portable,
            vendor_gemm=config.determinism == "off",
            split_k=split_k_by_shape(recipes),
            split_n=split_n_by_shape(recipes),
        )

    def _with_states(self, schedule: SchedulerConfig) -> SchedulerConfig:
        """Return the schedule with as many recurrent states as fit half of the KV budget: one for each request
        that runs, some for the prefix cache. If memory is short, fewer requests run at once."""
        if not self.model.num_recurrent_layers:
            return schedule
        one = self._state_bytes(schedule)
        most = 2 * schedule.max_num_seqs + _MORE_STATES
        num_states = min(self._kv_budget() // 2 // one - NUM_SCRATCH_STATES, most)
        if num_states < 1 + _FEWEST_SPARE_STATES:
            raise ConfigError(
                f"a request of this model has {one / 2**20:.1f} MiB of recurrent states, and half of the memory for "
                f"KV and states does not hold {1 + _FEWEST_SPARE_STATES + NUM_SCRATCH_STATES}; raise kv_memory"
            )
        max_num_seqs = min(schedule.max_num_seqs, num_states - _FEWEST_SPARE_STATES)
        if max_num_seqs < schedule.max_num_seqs:
            _log.warning("memory holds the recurrent states of %d requests at once", max_num_seqs)
        _log.info(
            "%d recurrent states of %.1f MiB take %.2f GiB",
            *(num_states, one / 2**20, num_states * one / 2**30),
        )
        return replace(schedule, max_num_seqs=max_num_seqs, num_states=num_states)

    def _state_bytes(self, schedule: SchedulerConfig) -> int:
        return state_bytes(self.model, self.dtype, log_len_for(self.model, schedule.num_uncertain))

    def _kv_budget(self) -> int:
        """Return the bytes for KV pages and recurrent states."""
        if self.config.kv_memory is not None:
            return parse_bytes(self.config.kv_memory)
        if self.config.kv_share is not None:
            return self.config.kv_share
        on_gpu = self.device.type == "cuda"
        return default_gpu_kv_bytes(free_memory(self.device)) if on_gpu else default_kv_bytes()

    def _num_pages(self, schedule: SchedulerConfig) -> int:
        """Count the pages that fit the KV budget. Without a configured one, at most what all requests need
        at full length."""
        budget, page_size, extra = self._kv_budget(), self.backend.page_size, self._extra_slot_bytes
        if schedule.num_states:
            budget -= (schedule.num_states + NUM_SCRATCH_STATES) * self._state_bytes(schedule)
        page = page_bytes(self.model, self.dtype, page_size, extra=extra)
        if self.config.kv_memory is None:
            budget = max(budget, page)
        num_pages = num_pages_in(budget, self.model, self.dtype, page_size, extra=extra)
        if self.config.kv_memory is not None:
            return num_pages
        return min(num_pages, schedule.max_num_seqs * -(-self.max_len // page_size))

    @property
    def _extra_slot_bytes(self) -> int:
        return 0 if self.thinking is None else slot_bytes(self.model.hidden_size, self.dtype)


def gemm_recipes(
    config: EngineConfig, show: ShowProgress | None = None, *, anew: bool = False
) -> tuple[GemmRecipe, ...]:
    """Return the GEMM recipes of an engine with this configuration, without loading its weights.

    Empty on a CPU.
    """
    device = choose_device(config.device, config.kernels)
    if not uses_triton(config.kernels, device):
        return ()
    from holdfast.certification.gemm.choose import choose_recipes  # imports torch

    settings = numeric_settings(config.num_threads, device=device)
    model = open_model(config).model
    dtype = arrays_on(device).dtype(dtype_name(config.dtype, model.torch_dtype))
    choosing = partial(show or _show_nothing, "Choosing recipes")
    return choose_recipes(model, dtype, device, settings, choosing, anew=anew)


def _random_weights(model: DecoderConfig, device: Device) -> Checkpoint:
    from holdfast.models.dummy import DummyCheckpoint

    return DummyCheckpoint(model, device=str(device))


def _kept_formats(config: EngineConfig, checkpoint: Checkpoint, device: Device) -> frozenset[str]:
    """Return the formats of quantised blocks that C kernels compute with as they are, with activations in fp32.
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


def _show_nothing(stage: str, done: int, total: int) -> None:
    pass
