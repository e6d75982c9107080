"""Settings of one engine. An `EngineConfig` is consistent; the builder checks it against the model.

Its fields are the engine's options everywhere: `LLM(...)`, the command line, environment,
configuration file.
"""

# ruff: noqa: RUF009  (option() makes a dataclass field)

import os
import re
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Literal

from holdfast.core.options import check_choices, option
from holdfast.core.request import RequestDefaults
from holdfast.core.sampling_params import MAX_SEED, show
from holdfast.errors import ConfigError
from holdfast.numerics.recipe import KernelBackend
from holdfast.scheduler.policy import DeterminismMode, Speculation

LoadFormat = Literal["auto", "dummy"]
CertificationTime = Literal["background", "startup"]

# Accepted spellings of a dtype, and torch's name of it.
DTYPES = {
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
    "float16": "float16",
    "fp16": "float16",
    "float32": "float32",
    "fp32": "float32",
}


def dtype_name(configured: str, stored: str | None) -> str:
    """Return the dtype to compute in, by torch's name.

    "auto" is the checkpoint's own; bf16 if that is quantised or unknown.
    """
    return DTYPES.get((stored if configured == "auto" else configured) or "", "bfloat16")


MAX_TEMPLATE_CHARS = 1 << 20
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}
_SPOT_CHECK_RATES = {"cpu": 0.01, "cuda": 0.001}


@dataclass(frozen=True)
class BatchLimits:
    """The largest number of requests that run at once, and of tokens in one pass."""

    max_num_seqs: int
    max_pass_tokens: int


_BATCH_LIMITS = {"cpu": BatchLimits(64, 512), "cuda": BatchLimits(512, 8192)}
_EXPERTS_PASS_TOKENS = 16384  # on a GPU

_option = partial(option, panel="Engine")


@dataclass(frozen=True)
class EngineConfig:
    """Settings of one engine. None means: decided by the device or the model.

    max_num_seqs, max_pass_tokens, kv_memory, prefix_cache, speculation and spot_check_rate change
    the speed and never a bit of a deterministic answer. kv_share is the default of kv_memory in bytes, if
    several engines share the device.
    """

    model: str | None = None
    _: KW_ONLY
    device: str = _option(
        "auto", "cpu, cuda, cuda:N, or auto: a GPU if torch sees one and triton is installed."
    )
    dtype: str = _option(
        "auto",
        "bf16, fp16, fp32, or auto: the checkpoint's, bf16 for a GGUF file. On a CPU, auto computes with the quantised "
        "blocks of a GGUF file as they are; the others dequantise them.",
    )
    determinism: DeterminismMode = _option(
        "auto",
        "auto: commit certified batch sizes at once, verify all others; verify: verify everything; off: refuse "
        "deterministic requests.",
    )
    certification: CertificationTime = _option(
        "startup",
        "When a machine without a certificate for this model makes one. startup: before the first request. background: "
        "while requests are served; until then every deterministic answer is verified.",
    )
    deterministic: bool = _option(
        False,
        "Treat every request as deterministic unless it says otherwise. Clients that know nothing of this engine "
        "get the guarantee.",
        server_only=True,
    )
    default_seed: int | str | None = _option(
        None,
        "Seed of requests that give none: a number, or random (a new one for each, for pass@k and retries).",
        metavar="SEED",
        unset="0 with --deterministic, else random",
        server_only=True,
    )
    max_model_len: int | None = _option(
        None,
        "Maximum number of tokens of a prompt and its answer together.",
        unset="the model's context, at most 1048576",
    )
    max_num_seqs: int | None = _option(
        None, "Maximum number of requests that run at once.", unset="64 on a CPU, 512 on a GPU"
    )
    kv_memory: int | str | None = _option(
        None,
        "Memory for the KV cache, such as 512MiB.",
        unset="a quarter of a CPU's memory, at most 2GiB; 90% of a GPU's memory after the weights, less 4GiB",
    )
    max_pass_tokens: int | None = _option(
        None,
        "Maximum number of tokens in one pass; vLLM calls it max_num_batched_tokens.",
        unset="512 on a CPU, 8192 on a GPU, 16384 on a GPU with experts",
    )
    num_threads: int | None = _option(None, "Number of CPU threads.", unset="torch's default")
    kernels: KernelBackend = _option(
        "auto",
        "On a CPU: c (our C kernels) or torch (torch operations only). On a GPU: triton.",
    )
    portable: bool = _option(
        False,
        "Compute with the recipe that gives the same bits on every CPU. C kernels do so anyway, except bf16 on a "
        "CPU with AMX, which is faster with AMX.",
    )
    prefix_cache: bool = _option(True, "Reuse the KV pages of earlier prompts that begin alike.")
    speculation: Speculation = _option(
        "ngram",
        "ngram: propose candidates from n-grams of the request's own text. It changes the speed, never a "
        "deterministic answer.",
    )
    spot_check_rate: float | None = _option(
        None,
        "Share of certified tokens that are computed again and compared, from 0 to 1.",
        unset="0.01 on a CPU, 0.001 on a GPU",
    )
    load_format: LoadFormat = _option(
        "auto",
        "dummy: random weights of the model's shape, for benchmarks; MODEL is then a folder with a config.json, or "
        "a name such as llama-3.1-8b.",
    )
    chat_template: str | None = _option(
        None,
        "A file with a Jinja chat template that replaces the model's own.",
        metavar="FILE",
        unset="the model's own",
        file_chars=MAX_TEMPLATE_CHARS,
    )
    allow_special_tokens_in_content: bool = _option(
        False,
        "Special tokens that a client types in messages or tools, such as </s>, control the model. Without it "
        "they are text.",
    )
    receipt_key: str | None = _option(
        None,
        "A file with the Ed25519 private key that signs receipts, as holdfast receipt keygen writes it.",
        metavar="FILE",
        unset="receipts are sealed, not signed",
    )
    kv_share: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.model, os.PathLike):
            object.__setattr__(self, "model", os.fspath(self.model))
        if not isinstance(self.model, str | None):
            raise ConfigError(f"model must be a path or a name, not {type(self.model).__name__}")
        for name in ("device", "dtype"):  # torch.device and torch.dtype, too
            object.__setattr__(self, name, str(getattr(self, name)).removeprefix("torch."))
        if not re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", self.device):
            raise ConfigError(f"device must be auto, cpu, cuda or cuda:N, not {self.device!r}")
        if self.dtype != "auto" and self.dtype not in DTYPES:
            raise ConfigError(f"dtype must be auto or one of {', '.join(DTYPES)}, not {self.dtype!r}")
        check_choices(self)
        if not isinstance(self.deterministic, bool):
            raise ConfigError(f"deterministic must be true or false, not {self.deterministic!r}")
        if self.deterministic and self.determinism == "off":
            raise ConfigError("deterministic needs determinism auto or verify; it is off")
        if not isinstance(self.portable, bool):
            raise ConfigError(f"portable must be true or false, not {self.portable!r}")
        if self.portable and self.kernels in ("torch", "triton"):
            raise ConfigError(
                f"portable is a recipe of the C kernels, and kernels is {self.kernels}; use kernels c or auto"
            )
        parse_seed(self.default_seed)
        if self.receipt_key is not None and not isinstance(self.receipt_key, str | os.PathLike):
            raise ConfigError(
                f"receipt_key must be the path of a file, not {type(self.receipt_key).__name__}"
            )
        if "PRIVATE KEY-----" in str(self.receipt_key):  # its text would be in every message about the file
            raise ConfigError("receipt_key must be the path of a file, not the key itself")
        rate = 0.0 if self.spot_check_rate is None else self.spot_check_rate
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate <= 1:
            raise ConfigError(f"spot_check_rate must be a number from 0 to 1, not {rate!r}")
        for name in ("max_num_seqs", "max_pass_tokens", "max_model_len", "num_threads"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ConfigError(f"{name} must be a whole number of at least 1, not {value!r}")
        if (self.max_num_seqs or 0) > 4096 or (self.max_pass_tokens or 0) > 65535:
            raise ConfigError("max_num_seqs can be at most 4096 and max_pass_tokens at most 65535")
        if self.kv_memory is not None:
            parse_bytes(self.kv_memory)

    @property
    def request_defaults(self) -> RequestDefaults:
        seed = parse_seed(self.default_seed)
        if self.default_seed is None and self.deterministic:
            seed = 0
        return RequestDefaults(self.deterministic, seed)

    def spot_check_rate_on(self, device_kind: str) -> float:
        """The default is lower on a GPU: it computes more tokens, and one check there costs
        hundreds of tokens.
        """
        return _SPOT_CHECK_RATES[device_kind] if self.spot_check_rate is None else self.spot_check_rate

    def batch_limits(self, device_kind: str, num_experts: int = 0) -> BatchLimits:
        """Return the configured limits. A missing one is the device's default, adapted to the other.

        Experts share the tokens of a pass, so on a GPU they need larger passes to be as fast.
        """
        usual = _BATCH_LIMITS[device_kind]
        if num_experts and device_kind == "cuda":
            usual = replace(usual, max_pass_tokens=_EXPERTS_PASS_TOKENS)
        seqs, tokens = self.max_num_seqs, self.max_pass_tokens
        if tokens is None:
            tokens = max(usual.max_pass_tokens, seqs or 0)
        return BatchLimits(min(usual.max_num_seqs, tokens) if seqs is None else seqs, tokens)


def parse_seed(value: int | str | None) -> int | None:
    """Read the default seed; None is a random one."""
    if value is None or value == "random":
        return None
    text = str(value)
    if isinstance(value, bool) or not text.isascii() or not text.isdigit() or int(text[:21]) > MAX_SEED:
        raise ConfigError(f"default_seed must be random or a number from 0 to {MAX_SEED}, not {show(value)}")
    return int(text)


def parse_bytes(value: int | str) -> int:
    """Read a size in bytes: 268435456, "256MiB", "1.5GB"."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ConfigError(f"kv_memory must be a number of bytes or a size such as 512MiB, not {value!r}")
    if isinstance(value, int):
        size = value
    else:
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmg]i?)?b?\s*", value.lower())
        if match is None:
            raise ConfigError(f"kv_memory must be a number of bytes or a size such as 512MiB, not {value!r}")
        size = int(float(match[1]) * _UNITS[match[2] or ""])
    if not 1 <= size <= 1 << 50:
        raise ConfigError(f"kv_memory must be between 1 byte and 1 PiB, not {value!r}")
    return size


def default_kv_bytes() -> int:
    """On a CPU: a quarter of the memory, at most 2 GiB.

    Pages cost no memory until they are written.
    """
    return min(main_memory_bytes() // 4, 2 << 30)


def main_memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


_GPU_RESERVE = 4 << 30  # for logits, captured graphs and the activations of a large pass


def default_gpu_kv_bytes(free: int) -> int:
    """On a GPU: 90% of the memory left after the weights, less a reserve; at least half of it."""
    return max(free * 9 // 10 - _GPU_RESERVE, free // 2)
