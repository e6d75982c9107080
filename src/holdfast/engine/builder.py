"""From settings to a running engine: choose the device, ask it for recipes, load the model, size the KV cache, capture
graphs, certify the machine."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from holdfast.certification.certificate import Certificate
from holdfast.certification.certify import obtain_certificate
from holdfast.certification.gemm.choose import choose_recipes
from holdfast.certification.gemm.recipes import GemmRecipe, split_k_by_shape, split_n_by_shape
from holdfast.engine.config import (
    DTYPES,
    BatchLimits,
    EngineConfig,
    default_gpu_kv_bytes,
    default_kv_bytes,
    parse_bytes,
)
from holdfast.engine.dummy_model import dummy_tokenizer, open_dummy
from holdfast.engine.engine import Engine
from holdfast.engine.input_processor import RequestLimits
from holdfast.engine.status import ShowProgress
from holdfast.errors import ConfigError, UnsupportedModel
from holdfast.kv_cache.page_pool import PagePool
from holdfast.models.checkpoint import Checkpoint, open_checkpoint
from holdfast.models.config import DecoderConfig
from holdfast.models.decoder import load_decoder
from holdfast.models.locate import locate
from holdfast.numerics.backends.c.backend import MAX_HEAD_DIM
from holdfast.numerics.batch_sizes import padded_batch_sizes
from holdfast.numerics.ops import Backend
from holdfast.numerics.recipe import KernelBackend
from holdfast.numerics.select_backend import open_backend, uses_triton
from holdfast.numerics.settings import NumericSettings, apply_numeric_settings
from holdfast.receipts.engine_fingerprint import FingerprintTask, engine_parts
from holdfast.receipts.receipt import ReceiptFactory
from holdfast.scheduler.policy import SchedulerConfig
from holdfast.scheduler.scheduler import Scheduler
from holdfast.structured.compiler import GrammarCompiler
from holdfast.text.tokenizer import Tokenizer, open_tokenizer
from holdfast.thinking.blocks import load_blocks
from holdfast.thinking.config import ThinkingConfig, read_thinking
from holdfast.thinking.weights import thinking_parts
from holdfast.worker.device import choose_device, device_parts, free_memory
from holdfast.worker.kv_store import KVStore, num_pages_in, page_bytes
from holdfast.worker.model_runner import ModelRunner
from holdfast.worker.thought_runner import ThoughtRunner

_log = logging.getLogger(__name__)
_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
_REFERENCE_PASSES = 2  # a canonical pass in a captured graph has at most so many reference passes


def build(config: EngineConfig, show: ShowProgress | None = None) -> Engine:
    """Find the model, load it and everything around it."""
    if config.load_format == "dummy":
        device = choose_device(config.device, config.kernels)
        tokenizer = dummy_tokenizer(config.model, config.chat_template)
        return assemble(config, open_dummy(config.model, device), tokenizer, show)
    checkpoint = open_checkpoint(locate(config.model).path)
    return assemble(
        config, checkpoint, open_tokenizer(checkpoint.path, chat_template=config.chat_template), show
    )


def assemble(
    config: EngineConfig, checkpoint: Checkpoint, tokenizer: Tokenizer, show: ShowProgress | None = None
) -> Engine:
    """An engine over an open checkpoint."""
    device = choose_device(config.device, config.kernels)
    settings = apply_numeric_settings(config.num_threads, device=device)
    model = checkpoint.config
    thinking = read_thinking(checkpoint.path, model) if checkpoint.path.is_dir() else None
    max_len = _max_len(config, model)
    dtype = torch_dtype(config, model.torch_dtype)
    limits = config.batch_limits(device.type)
    backend = _open_backend(config, model, dtype, device, settings, show)
    if thinking is not None:
        _check_chunk(thinking, backend.page_size)
    schedule = SchedulerConfig(
        max_num_seqs=limits.max_num_seqs,
        max_pass_tokens=limits.max_pass_tokens,
        reference_tokens=backend.recipe.rows,
        determinism=config.determinism,
        prefix_cache=config.prefix_cache,
        speculation=config.speculation,
        spot_check_rate=config.spot_check_rate_on(device.type),
        async_scheduling=device.type == "cuda" and thinking is None,
        chunk_len=0 if thinking is None else thinking.chunk,
        while_answering=thinking is None or thinking.while_answering,
    )
    if config.kv_memory is not None:  # too little is said before anything is loaded
        num_pages_in(
            parse_bytes(config.kv_memory), model, dtype, backend.page_size, thinks=thinking is not None
        )
    eos_ids = frozenset(model.eos_token_ids) | tokenizer.eos_token_ids
    fingerprinter = FingerprintTask(
        checkpoint,
        lambda: engine_parts(
            model,
            eos_ids,
            tokenizer,
            backend.recipe,
            settings,
            device_parts(device),
            None if thinking is None else thinking_parts(checkpoint.path, thinking, model),
        ),
    )
    longest = max_len if thinking is None else max(max_len, thinking.longest)
    decoder = load_decoder(checkpoint, backend, dtype, longest, _stage(show, "Loading weights"))
    blocks = None if thinking is None else load_blocks(checkpoint.path, thinking, decoder)
    num_pages = _num_pages(config, model, backend, limits, max_len, thinks=thinking is not None)
    store = KVStore(num_pages, model, backend)
    thinker = None if blocks is None else ThoughtRunner(decoder, blocks, num_pages)
    runner = ModelRunner(decoder, store, thinker)
    if device.type == "cuda":
        _capture(runner, schedule, max_len, _stage(show, "Capturing graphs"))
    certifying = _stage(show, "Certifying")
    certificate = obtain_certificate(
        decoder,
        runner,
        store,
        determinism=config.determinism,
        settings=settings,
        max_pass_tokens=limits.max_pass_tokens,
        max_len=max_len,
        progress=certifying,
    )
    if certificate is not None:
        schedule = replace(schedule, certified_sizes=_padded_sizes(certificate.sizes, backend, limits))
    scheduler = Scheduler(schedule, PagePool(num_pages, backend.page_size))
    asked = RequestLimits(
        vocab_size=model.vocab_size,
        max_model_len=max_len,
        eos_ids=eos_ids,
        refusal=_refusal(config, certificate),
        max_thought=0 if thinking is None else thinking.max_thought,
        thought_end=-1 if thinking is None else thinking.end_id,
    )
    receipts = ReceiptFactory(fingerprinter, config.model)
    grammars = GrammarCompiler(tokenizer, model.vocab_size, eos_ids)
    return Engine(scheduler, runner, tokenizer, asked, certificate, grammars, receipts)


def recipes_of(
    config: EngineConfig, show: ShowProgress | None = None, *, anew: bool = False
) -> tuple[GemmRecipe, ...]:
    """The recipes an engine with these settings multiplies by, without loading a weight; none on a CPU's own paths."""
    device = choose_device(config.device, config.kernels)
    if not uses_triton(config.kernels, device):
        return ()
    settings = apply_numeric_settings(config.num_threads, device=device)
    if config.load_format == "dummy":
        model = open_dummy(config.model, device).config
    else:
        model = open_checkpoint(locate(config.model).path).config
    dtype = torch_dtype(config, model.torch_dtype)
    return choose_recipes(model, dtype, device, settings, _stage(show, "Choosing recipes"), anew=anew)


def torch_dtype(config: EngineConfig, stored: str | None) -> torch.dtype:
    """The dtype to compute in; "auto" follows the checkpoint, in bf16 where it is quantised or silent."""
    name = stored if config.dtype == "auto" else config.dtype
    return _DTYPES[DTYPES.get(name or "", "bfloat16")]


def _open_backend(
    config: EngineConfig,
    model: DecoderConfig,
    dtype: torch.dtype,
    device: torch.device,
    settings: NumericSettings,
    show: ShowProgress | None,
) -> Backend:
    """On a GPU with the recipes it asks for."""
    if not uses_triton(config.kernels, device):
        return open_backend(dtype, kernels=_kernels(config, model), num_threads=settings.threads)
    choices = choose_recipes(model, dtype, device, settings, _stage(show, "Choosing recipes"))
    return open_backend(
        dtype,
        kernels="triton",
        num_threads=settings.threads,
        device=device,
        vendor_gemm=config.determinism == "off",
        split_k=split_k_by_shape(choices),
        split_n=split_n_by_shape(choices),
    )


def _capture(
    runner: ModelRunner, schedule: SchedulerConfig, max_len: int, progress: Callable[[int, int], None] | None
) -> None:
    """Graphs of passes of every total; to verify, also of those that decide, else of those that check."""
    sizes = padded_batch_sizes(schedule.max_pass_tokens)
    rows = schedule.reference_tokens
    canonical = [rows * count for count in range(1, _REFERENCE_PASSES + 1)]
    if schedule.determinism != "verify":
        canonical = [rows] if schedule.spot_check_rate > 0 else []
    runner.capture(sizes, canonical, progress, max_len=max_len)


def _padded_sizes(certified: Sequence[int], backend: Backend, limits: BatchLimits) -> tuple[int, ...]:
    """Of the certified totals those that passes are padded to: on a GPU those with a graph."""
    if backend.device.type != "cuda":
        return tuple(certified)
    wanted = frozenset(padded_batch_sizes(limits.max_pass_tokens))
    return tuple(size for size in certified if size in wanted)


def _refusal(config: EngineConfig, certificate: Certificate | None) -> str | None:
    if config.determinism == "off":
        return "this engine runs with determinism off; start it with determinism auto or verify"
    return certificate.refusal if certificate is not None else None


def _kernels(config: EngineConfig, model: DecoderConfig) -> KernelBackend:
    """The path asked for, unless this model's heads are larger than the C kernels take."""
    if config.kernels == "torch" or model.head_dim <= MAX_HEAD_DIM:
        return config.kernels
    reason = f"the C kernels take heads of at most {MAX_HEAD_DIM}, this model's have {model.head_dim}"
    if config.kernels == "c":
        raise ConfigError(f"{reason}; use kernels auto or torch")
    _log.warning("using the slower torch backend: %s", reason)
    return "torch"


def _max_len(config: EngineConfig, model: DecoderConfig) -> int:
    longest = model.max_position_embeddings
    if config.max_model_len is None:
        return longest
    if config.max_model_len > longest:
        raise ConfigError(f"max_model_len is {config.max_model_len}, the model's context is {longest}")
    return config.max_model_len


def _num_pages(
    config: EngineConfig,
    model: DecoderConfig,
    backend: Backend,
    limits: BatchLimits,
    max_len: int,
    *,
    thinks: bool,
) -> int:
    """As many pages as the budget holds; without one, at most what every request at full length would need."""
    dtype = _DTYPES[backend.recipe.dtype]
    if config.kv_memory is not None:
        return num_pages_in(parse_bytes(config.kv_memory), model, dtype, backend.page_size, thinks=thinks)
    on_gpu = backend.device.type == "cuda"
    budget = default_gpu_kv_bytes(free_memory(backend.device)) if on_gpu else default_kv_bytes()
    size = backend.page_size
    most = limits.max_num_seqs * -(-max_len // size)
    budget = max(budget, page_bytes(model, dtype, size, thinks=thinks))
    return min(num_pages_in(budget, model, dtype, size, thinks=thinks), most)


def _check_chunk(thinking: ThinkingConfig, page_size: int) -> None:
    if page_size % thinking.chunk:
        raise UnsupportedModel(
            f"the model thinks in chunks of {thinking.chunk} tokens; here a chunk must divide a page of {page_size}"
        )


def _stage(show: ShowProgress | None, what: str) -> Callable[[int, int], None] | None:
    if show is None:
        return None
    return lambda done, total: show(what, done, total)
