"""How an engine is started. An `EngineConfig` that exists is consistent; what depends on the model is settled in `build`."""

import os
import re
from dataclasses import dataclass
from typing import Literal

from holdfast.errors import ConfigError
from holdfast.numerics.recipe import KernelBackend
from holdfast.scheduler.policy import DeterminismMode, Speculation

LoadFormat = Literal["auto", "dummy"]
_CHECK_RATES = {"cpu": 0.01, "cuda": 0.001}

# What a dtype may be called, and its own name.
DTYPES = {
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
    "float16": "float16",
    "fp16": "float16",
    "float32": "float32",
    "fp32": "float32",
}

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}


@dataclass(frozen=True)
class RowLimits:
    """How many requests run at once, and how many rows a pass has at most."""

    max_num_seqs: int
    max_pass_tokens: int


_ROW_LIMITS = {"cpu": RowLimits(64, 512), "cuda": RowLimits(256, 8192)}


@dataclass(frozen=True)
class EngineConfig:
    """Settings of one engine. None of max_num_seqs, max_pass_tokens, kv_memory and speculation decides a bit of an answer;
    without them the device says how large they are.

    load_format dummy makes random weights of the model's shape: model is then a folder with a config.json, or the name of
    a published shape.

    spot_check_rate is the share of certified rows that are computed again and compared, to watch over the certificate;
    chat_template is a template's text, instead of the model's own.
    """

    model: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    determinism: DeterminismMode = "auto"
    max_num_seqs: int | None = None
    max_model_len: int | None = None
    kv_memory: int | str | None = None
    max_pass_tokens: int | None = None
    num_threads: int | None = None
    kernels: KernelBackend = "auto"
    prefix_cache: bool = True
    speculation: Speculation = "ngram"
    spot_check_rate: float | None = None
    chat_template: str | None = None
    load_format: LoadFormat = "auto"

    def __post_init__(self) -> None:
        if not re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", self.device):
            raise ConfigError(f"device must be auto, cpu, cuda or cuda:N, not {self.device!r}")
        if self.dtype != "auto" and self.dtype not in DTYPES:
            raise ConfigError(f"dtype must be auto or one of {', '.join(DTYPES)}, not {self.dtype!r}")
        if self.determinism not in ("auto", "verify", "off"):
            raise ConfigError(f"determinism must be auto, verify or off, not {self.determinism!r}")
        if self.kernels not in ("auto", "compiled", "library", "triton"):
            raise ConfigError(f"kernels must be auto, compiled, library or triton, not {self.kernels!r}")
        if self.load_format not in ("auto", "dummy"):
            raise ConfigError(f"load_format must be auto or dummy, not {self.load_format!r}")
        if self.speculation not in ("off", "ngram"):
            raise ConfigError(f"speculation must be off or ngram, not {self.speculation!r}")
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

    def check_rate(self, device_kind: str) -> float:
        """A GPU computes so many rows that a smaller share of them says as much, and a check there is hundreds of rows."""
        return _CHECK_RATES[device_kind] if self.spot_check_rate is None else self.spot_check_rate

    def row_limits(self, device_kind: str) -> RowLimits:
        """As asked for; what is not is the device's, as far as it fits the other."""
        usual = _ROW_LIMITS[device_kind]
        seqs, rows = self.max_num_seqs, self.max_pass_tokens
        if rows is None:
            rows = max(usual.max_pass_tokens, seqs or 0)
        return RowLimits(min(usual.max_num_seqs, rows) if seqs is None else seqs, rows)


def parse_bytes(value: int | str) -> int:
    """A size in bytes: 268435456, "256MiB", "1.5GB"."""
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
    """On a CPU: a quarter of the machine's memory, at most 2 GiB; pages cost nothing until they are written."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(total // 4, 2 << 30)


_GPU_RESERVE = 4 << 30  # for logits, captured graphs and what a large pass needs beside the KV


def default_gpu_kv_bytes(free: int) -> int:
    """On a GPU: of what is free behind the weights nine tenths, less a reserve; on a small one a half."""
    return max(free * 9 // 10 - _GPU_RESERVE, free // 2)
