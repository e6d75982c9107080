"""The cost of one `holdfast generate`: seconds to its first byte of output, and its peak resident
memory; and the time of `import torch`, most of which every command needs.

The real command runs in its own processes. The first start ever has an empty cache. A first run
warms the disk cache. Of the others, the shortest time and the largest memory count.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.engine.builder import torch_dtype
from holdfast.engine.config import EngineConfig, parse_bytes
from holdfast.errors import EngineStopped
from holdfast.models.checkpoint import Checkpoint, open_checkpoint
from holdfast.models.gguf.checkpoint import GgufCheckpoint
from holdfast.models.locate import locate

KV_MEMORY = "256MiB"
NUM_TRIES = 3
ALLOWED_SECONDS = 1.0  # in addition to `import torch`
ALLOWED_FIRST_SECONDS = 4.0  # the same, for the first start ever
ALLOWED_BYTES = 300_000_000  # in addition to weights: 400 MB for the default model as it is
_IMPORT_TORCH = [sys.executable, "-c", "import torch"]

_LAUNCHER = Path(__file__).with_name("launcher.py")


@dataclass(frozen=True)
class CommandCost:
    """One command, measured from outside.

    The KV budget is not part of the limit: a page is resident once it is written, and one stream
    writes few.
    """

    first_byte_seconds: float
    peak_resident_bytes: float
    weights_bytes: float
    kv_budget_bytes: float
    import_torch_seconds: float = 0.0
    first_start_seconds: float = 0.0  # to the first byte, without any cache

    @property
    def allowed_bytes(self) -> float:
        return self.weights_bytes + ALLOWED_BYTES


@dataclass(frozen=True)
class PeerCost:
    """One command of another engine, measured alike."""

    first_byte_seconds: float
    peak_resident_bytes: float


def command_line(model: str | None, dtype: str, num_threads: int | None) -> list[str]:
    """`holdfast generate` with fixed options."""
    command = [sys.executable, "-m", "holdfast", "generate", "Why is the sea salt?"]
    command += ["--max-tokens", "8", "--deterministic", "--seed", "7", "--kv-memory", KV_MEMORY]
    command += ["--dtype", dtype]
    command += ["--model", model] if model is not None else []
    return command + (["--num-threads", str(num_threads)] if num_threads is not None else [])


def measure(
    model: str | None, dtype: str, num_threads: int | None, log: Callable[[str], None]
) -> CommandCost:
    """Run the command once to warm up and NUM_TRIES times to measure."""
    command = command_line(model, dtype, num_threads)
    cost = _best_of_tries("holdfast generate", command, log)
    return CommandCost(
        first_byte_seconds=cost.first_byte_seconds,
        peak_resident_bytes=cost.peak_resident_bytes,
        weights_bytes=weights_bytes(open_checkpoint(locate(model).path), dtype),
        kv_budget_bytes=parse_bytes(KV_MEMORY),
    )


def measure_first_start(
    model: str | None, dtype: str, num_threads: int | None, log: Callable[[str], None]
) -> tuple[float, float]:
    """Seconds of `import torch`, and of the command's first start ever, to its first byte."""
    log("holdfast generate: the first start")
    with tempfile.TemporaryDirectory() as empty:
        command = command_line(model, dtype, num_threads)
        first_start, _ = _launch(command, {"HOLDFAST_CACHE_DIR": empty})
    return min(_launch(_IMPORT_TORCH)[0] for _ in range(NUM_TRIES)), first_start


def measure_peer(command: list[str], log: Callable[[str], None]) -> PeerCost:
    """The same for a command of another engine."""
    return _best_of_tries(Path(command[0]).name, command, log)


def _best_of_tries(name: str, command: list[str], log: Callable[[str], None]) -> PeerCost:
    log(f"{name}: warming up")
    _launch(command)
    tries = []
    for number in range(NUM_TRIES):
        log(f"{name}: {number + 1} of {NUM_TRIES}")
        tries.append(_launch(command))
    return PeerCost(min(seconds for seconds, _ in tries), max(peak for _, peak in tries))


def weights_bytes(checkpoint: Checkpoint, dtype: str) -> int:
    """The size of all weights as the engine holds them. Tied embeddings count once."""
    if dtype == "auto" and isinstance(checkpoint, GgufCheckpoint) and checkpoint.block_formats():
        return checkpoint.path.stat().st_size
    itemsize = torch_dtype(EngineConfig(dtype=dtype), checkpoint.config.torch_dtype).itemsize
    return itemsize * sum(math.prod(checkpoint.shape(name)) for name in checkpoint.names())


def _launch(command: list[str], environment: Mapping[str, str] | None = None) -> tuple[float, int]:
    """Seconds to the first byte, or to the end without one, and peak resident bytes."""
    launcher = [sys.executable, "-I", str(_LAUNCHER), *command]
    variables = {**os.environ, **(environment or {})}
    done = subprocess.run(launcher, capture_output=True, text=True, check=True, env=variables)
    found = json.loads(done.stdout)
    if found["returncode"] != 0:
        raise EngineStopped(
            f"the measured command failed with {found['returncode']}: {' '.join(command)}: {found['stderr']}"
        )
    return float(found["first_byte_seconds"]), int(found["peak_resident_bytes"])
