"""How long a new process takes to its first deterministic token.

    python -m holdfast.bench.gpu.start MODEL DTYPE

The parent counts from the start of the process, so imports count. The first start has empty caches
(certificates, recipes, compiled kernels), the second finds those of the first.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from holdfast.bench.gpu.settings import TINY

_TIMEOUT_SECONDS = 180


def measure_starts(model: str, dtype: str) -> dict[str, dict[str, float]]:
    """Seconds of the first and the second start, by stage."""
    with tempfile.TemporaryDirectory() as folder:
        caches = {
            "HOLDFAST_CACHE_DIR": str(Path(folder, "holdfast")),
            "TRITON_CACHE_DIR": str(Path(folder, "triton")),
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        if model == TINY:
            model = str(_write_tiny(Path(folder, "model")))
        return {name: _start(model, dtype, caches) for name in ("first", "second")}


def _write_tiny(folder: Path) -> Path:
    from holdfast.bench.tiny import tiny_fields

    folder.mkdir()
    folder.joinpath("config.json").write_text(json.dumps(tiny_fields()))
    return folder


def _start(model: str, dtype: str, environment: dict[str, str]) -> dict[str, float]:
    started = time.perf_counter()
    command = [sys.executable, "-m", "holdfast.bench.gpu.start", model, dtype]
    with subprocess.Popen(
        command, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            output, errors = process.communicate(timeout=_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    if process.returncode:
        raise RuntimeError(f"the process ended with {process.returncode}: {errors[-500:]}")
    stages: dict[str, float] = json.loads(output.splitlines()[-1])
    whole = time.perf_counter() - started
    return {"first_token": whole - stages.pop("after_token"), **stages}


def main(model: str, dtype: str) -> None:
    """Build an engine of random weights, generate one token, print the seconds of each stage."""
    started = time.perf_counter()
    from holdfast import LLM, SamplingParams

    imported = time.perf_counter()
    llm = LLM(model, load_format="dummy", dtype=dtype)
    built = time.perf_counter()
    result = llm.generate([[1, 2, 3]], SamplingParams(max_tokens=1, temperature=0, deterministic=True))[0]
    answered = time.perf_counter()
    assert result.error is None and result.determinism != "none"
    stages = {"import": imported - started, "build": built - imported, "token": answered - built}
    print(json.dumps({**stages, "after_token": time.perf_counter() - answered}), flush=True)
    os._exit(0)  # what follows is not part of a start


if __name__ == "__main__":
    main(*sys.argv[1:])
