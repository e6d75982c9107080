"""From settings to a running engine: find the model, load it, certify the machine, size the KV cache."""

import hashlib
import logging
import platform
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch

from holdfast.arithmetic.certificate import Certificate, certificate_key, load_certificate, save_certificate
from holdfast.arithmetic.certify import certify
from holdfast.arithmetic.compiled.build import cpu_flags
from holdfast.arithmetic.compiled.operations import MAX_HEAD_DIM
from holdfast.arithmetic.open import open_arithmetic
from holdfast.arithmetic.row_checks import Geometry, Subject, WholeLayer
from holdfast.arithmetic.settings import NumericSettings, apply_numeric_settings
from holdfast.engine.config import DTYPES, EngineConfig, Kernels, default_kv_bytes, parse_bytes
from holdfast.engine.fingerprint_parts import engine_parts
from holdfast.engine.fingerprinter import Fingerprinter
from holdfast.engine.grammar_compiler import GrammarCompiler
from holdfast.engine.loop import Engine
from holdfast.engine.receipt import Receipts
from holdfast.engine.request_maker import Limits
from holdfast.engine.tokenizer import Tokenizer, open_tokenizer
from holdfast.errors import ConfigError
from holdfast.kv.pool import PagePool
from holdfast.models.checkpoint import Checkpoint, open_checkpoint
from holdfast.models.config import DecoderConfig
from holdfast.models.decoder import Decoder, load_decoder
from holdfast.models.locate import locate
from holdfast.run.runner import Runner
from holdfast.run.store import PAGE_SIZE, KVStore, num_pages_in, page_bytes
from holdfast.schedule.policy import SchedulerConfig
from holdfast.schedule.scheduler import Scheduler
from holdfast.version import __version__

_log = logging.getLogger(__name__)
_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}

ShowProgress = Callable[[str, int, int], None]  # (what, done, in all)


def build(config: EngineConfig, show: ShowProgress | None = None) -> Engine:
    """Find the model, load it and everything around it."""
    checkpoint = open_checkpoint(locate(config.model).path)
    return assemble(
        config, checkpoint, open_tokenizer(checkpoint.path, chat_template=config.chat_template), show
    )


def assemble(
    config: EngineConfig, checkpoint: Checkpoint, tokenizer: Tokenizer, show: ShowProgress | None = None
) -> Engine:
    """An engine over an open checkpoint."""
    settings = apply_numeric_settings(config.num_threads)
    model = checkpoint.config
    max_len = _max_len(config, model)
    dtype = torch_dtype(config, model.torch_dtype)
    num_pages = _num_pages(config, model, dtype, max_len)
    arithmetic = open_arithmetic(dtype, path=_kernels(config, model), num_threads=settings.threads)
    schedule = SchedulerConfig(
        max_num_seqs=config.max_num_seqs,
        max_pass_rows=config.max_pass_rows,
        reference_rows=arithmetic.recipe.rows,
        determinism=config.determinism,
        prefix_cache=config.prefix_cache,
        speculation=config.speculation,
        spot_check_rate=config.spot_check_rate,
    )
    eos_ids = frozenset(model.eos_token_ids) | tokenizer.eos_token_ids
    fingerprinter = Fingerprinter(
        checkpoint,
        lambda: engine_parts(model, eos_ids, tokenizer, arithmetic.recipe, settings, device_parts()),
    )
    decoder = load_decoder(checkpoint, arithmetic, dtype, max_len, _stage(show, "Loading weights"))
    certificate = _certificate(config, decoder, settings, max_len, show)
    if certificate is not None:
        schedule = replace(schedule, certified_sizes=certificate.sizes)
    limits = Limits(
        vocab_size=model.vocab_size,
        max_model_len=max_len,
        eos_ids=eos_ids,
        refusal=_refusal(config, certificate),
    )
    runner = Runner(decoder, KVStore(num_pages, model, dtype))
    scheduler = Scheduler(schedule, PagePool(num_pages, PAGE_SIZE))
    receipts = Receipts(fingerprinter, config.model)
    grammars = GrammarCompiler(tokenizer, model.vocab_size, eos_ids)
    return Engine(scheduler, runner, tokenizer, limits, certificate, grammars, receipts)


def torch_dtype(config: EngineConfig, stored: str | None) -> torch.dtype:
    """The dtype to compute in; "auto" follows the checkpoint, in bf16 where it is quantised or silent."""
    name = stored if config.dtype == "auto" else config.dtype
    return _DTYPES[DTYPES.get(name or "", "bfloat16")]


def certificate_subject(
    config: EngineConfig, decoder: Decoder, settings: NumericSettings, max_len: int
) -> Mapping[str, object]:
    """Everything the outcome of a certification can depend on."""
    model = decoder.config
    return {
        "holdfast": __version__,
        "torch": str(torch.__version__),
        "device": cpu_name(),
        "instructions": device_parts()["instructions"],
        "settings": settings.as_dict(),
        "recipe": decoder.arithmetic.recipe.as_dict(),
        "shapes": {
            "family": model.family,
            "hidden": model.hidden_size,
            "intermediate": model.intermediate_size,
            "layers": model.num_layers,
            "heads": [model.num_heads, model.num_kv_heads, model.head_dim],
            "vocab": model.vocab_size,
            "windows": sorted({window for window in model.layer_windows if window is not None}),
        },
        "rows": config.max_pass_rows,
        "context": max_len,
    }


def cpu_name() -> str:
    """The processor, as the system names it."""
    names: list[str] = []
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "CPU implementer", "CPU part")):
                names.append(line.split(":", 1)[1].strip())
    except OSError:
        pass
    return f"{platform.machine()} {' '.join(dict.fromkeys(names))}".strip()


def device_parts() -> dict[str, str]:
    """What of the device decides bits: its kind, its name, and which instructions it has."""
    instructions = hashlib.sha256(cpu_flags().encode()).hexdigest()
    return {"kind": "cpu", "name": cpu_name(), "instructions": instructions}


def _certificate(
    config: EngineConfig, decoder: Decoder, settings: NumericSettings, max_len: int, show: ShowProgress | None
) -> Certificate | None:
    """From the cache, or made now. An engine without determinism needs none."""
    if config.determinism == "off":
        return None
    about = certificate_subject(config, decoder, settings, max_len)
    known = load_certificate(certificate_key(about))
    if known is not None:
        return known
    model = decoder.config
    thorough = sorted({0, model.num_layers // 2, model.num_layers - 1})
    layers = [WholeLayer(f"layers.{index}", decoder.layers[index], decoder.layer_shape) for index in thorough]
    subjects = [
        Subject(product.name, product.linear, product.layer in thorough, product.is_head)
        for product in decoder.products()
    ]
    geometry = Geometry(
        hidden=model.hidden_size,
        heads=model.num_heads,
        kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        intermediate=model.intermediate_size,
        vocab=model.vocab_size,
        page_size=PAGE_SIZE,
        max_context=max_len,
        window=next((window for window in model.layer_windows if window is not None), None),
    )
    arithmetic = decoder.arithmetic
    wide = arithmetic
    if decoder.dtype is not torch.float32:
        path: Kernels = "compiled" if arithmetic.recipe.path == "compiled" else "library"
        wide = open_arithmetic(torch.float32, path=path, num_threads=settings.threads)
    progress = _stage(show, "Certifying")
    made = certify(arithmetic, wide, subjects, layers, geometry, config.max_pass_rows, about, progress)
    save_certificate(made)
    return made


def _refusal(config: EngineConfig, certificate: Certificate | None) -> str | None:
    if config.determinism == "off":
        return "this engine runs with determinism off; start it with determinism auto or verify"
    return certificate.refusal if certificate is not None else None


def _kernels(config: EngineConfig, model: DecoderConfig) -> Kernels:
    """The path asked for, unless this model's heads are larger than the compiled one takes."""
    if config.kernels == "library" or model.head_dim <= MAX_HEAD_DIM:
        return config.kernels
    reason = f"the compiled kernels take heads of at most {MAX_HEAD_DIM}, this model's have {model.head_dim}"
    if config.kernels == "compiled":
        raise ConfigError(f"{reason}; use kernels auto or library")
    _log.warning("using the slower library arithmetic: %s", reason)
    return "library"


def _max_len(config: EngineConfig, model: DecoderConfig) -> int:
    longest = model.max_position_embeddings
    if config.max_model_len is None:
        return longest
    if config.max_model_len > longest:
        raise ConfigError(f"max_model_len is {config.max_model_len}, the model's context is {longest}")
    return config.max_model_len


def _num_pages(config: EngineConfig, model: DecoderConfig, dtype: torch.dtype, max_len: int) -> int:
    """As many pages as the budget holds; without one, at most what every request at full length would need."""
    if config.kv_memory is not None:
        return num_pages_in(parse_bytes(config.kv_memory), model, dtype)
    most = config.max_num_seqs * -(-max_len // PAGE_SIZE)
    return min(num_pages_in(max(default_kv_bytes(), page_bytes(model, dtype)), model, dtype), most)


def _stage(show: ShowProgress | None, what: str) -> Callable[[int, int], None] | None:
    if show is None:
        return None
    return lambda done, total: show(what, done, total)
