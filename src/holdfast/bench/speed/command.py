"""The cost of one `holdfast generate`: seconds to its first byte of output, and its peak resident
memory.

The real command runs in its own processes. A first run warms the disk cache and stores the
certificate. Of the others, the shortest time and the largest memory count.
"""

import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from holdfast.engine.builder import torch_dtype
from holdfast.engine.config import EngineConfig, parse_bytes
from holdfast.errors import EngineStopped
from holdfast.models.checkpoint import Checkpoint, open_checkpoint
from holdfast.models.locate import locate

KV_MEMORY = "256MiB"
NUM_TRIES = 3
ALLOWED_SECONDS = 4.0
ALLOWED_BYTES = 600_000_000  # in addition to weights and KV budget

_LAUNCHER = Path(__file__).with_name("launcher.py")


@dataclass(frozen=True)
class CommandCost:
    """One command, measured from outside.

    The KV budget is an upper limit: a page is resident once it is written.
    """

    first_byte_seconds: float
    peak_resident_bytes: float
    weights_bytes: float
    kv_budget_bytes: float

    @property
    def allowed_bytes(self) -> float:
        return self.weights_bytes + self.kv_budget_bytes + ALLOWED_BYTES


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
    log("holdfast generate: warming up")
    _launch(command)
    tries = []
    for number in range(NUM_TRIES):
        log(f"holdfast generate: {number + 1} of {NUM_TRIES}")
        tries.append(_launch(command))
    return CommandCost(
        first_byte_seconds=min(seconds for seconds, _ in tries),
        peak_resident_bytes=max(peak for _, peak in tries),
        weights_bytes=weights_bytes(open_checkpoint(locate(model).path), dtype),
        kv_budget_bytes=parse_bytes(KV_MEMORY),
    )


def weights_bytes(checkpoint: Checkpoint, dtype: str) -> int:
    """The size of all weights in the dtype of the engine. Tied embeddings count once."""
    itemsize = torch_dtype(EngineConfig(dtype=dtype), checkpoint.config.torch_dtype).itemsize
    return itemsize * sum(math.prod(checkpoint.shape(name)) for name in checkpoint.names())


def _launch(command: list[str]) -> tuple[float, int]:
    """Seconds to the first byte, and peak resident bytes."""
    launcher = [sys.executable, "-I", str(_LAUNCHER), *command]
    done = subprocess.run(launcher, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    if found["returncode"] != 0:
        raise EngineStopped(
            f"the measured command failed with {found['returncode']}: {' '.join(command)}: {found['stderr']}"
        )
    return float(found["first_byte_seconds"]), int(found["peak_resident_bytes"])
