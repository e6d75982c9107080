"""Speed on a CPU beside another engine on the same weights, and the cost of one `holdfast generate`.

    python benchmarks/cpu_peers.py --out docs/data                                    # beside Hugging Face generate
    python benchmarks/cpu_peers.py MODEL.gguf --peer llama.cpp --peer-dir DIR    # the GGUF file as it is
    python benchmarks/cpu_peers.py MODEL.gguf --peer llama.cpp --dtype bf16      # Holdfast dequantises it
    python benchmarks/cpu_peers.py MODEL.gguf --peer openvino --peer-dir VENV/bin # pip install openvino-genai

All variants run in turn, round after round, and the best time of each counts (holdfast.bench.speed). Hugging Face
runs in this process. llama.cpp is measured by its own `llama-batched-bench`, one process for each batch, which reads
the file anew outside of the times it prints and samples nothing; docs/build-llama-cpp.sh builds it. OpenVINO GenAI runs
in one process of its own with the Python of its environment, and gets the same token ids.

A command is timed from outside, to its first byte of output; after a first run that warms the disk cache, the
shortest time and the largest memory count. The first start ever has an empty cache.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from holdfast.bench.speed import STREAMS, Run, engine_runs, measure
from holdfast.engine.config import EngineConfig, dtype_name
from holdfast.engine.start.builder import assemble
from holdfast.engine.start.preflight import OpenedModel
from holdfast.errors import ConfigError, EngineStopped
from holdfast.models.checkpoint import Checkpoint, open_checkpoint
from holdfast.models.locate import locate
from holdfast.numerics.arrays import rounded
from holdfast.numerics.backends.torch.backend import has_native_gemm
from measure import Bench, Row, bars, new_parser

_NUM_TRIES = 3
_IMPORT_TORCH = [sys.executable, "-c", "import torch"]
_BENCH, _COMPLETION = "llama-batched-bench", "llama-completion"
_CONTEXT = 1024  # of the command; the whole context of a model would be allocated at once
_MAX_BATCH = 512  # tokens in one pass of either engine


# Runs a command and prints the time to its first byte and its peak memory. It imports nothing of Holdfast: on Linux, the
# peak memory of a child includes what its parent held at the fork, and this process holds two engines.
_LAUNCHER = """
import json, os, subprocess, sys, time
started = time.perf_counter()
child = subprocess.Popen(sys.argv[1:], bufsize=0, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
child.stdout.read(1)
seconds = time.perf_counter() - started
child.stdout.read()
_, status, usage = os.wait4(child.pid, 0)
unit = 1 if sys.platform == "darwin" else 1024
print(json.dumps([os.waitstatus_to_exitcode(status), seconds, usage.ru_maxrss * unit]))
"""


# Runs OpenVINO GenAI: for each line of prompts and number of tokens, the seconds of one greedy batch.
_OPENVINO = """
import json, sys, time
import numpy, openvino, openvino_genai as genai
model, num_threads, max_batch = sys.argv[1], *map(int, sys.argv[2:])
scheduling = genai.SchedulerConfig()
scheduling.enable_prefix_caching = False
scheduling.max_num_batched_tokens = max_batch
scheduling.cache_size = 1  # GB
pipeline = genai.LLMPipeline(model, "CPU", scheduler_config=scheduling, INFERENCE_NUM_THREADS=num_threads)
print(json.dumps(genai.__version__), flush=True)
for line in sys.stdin:
    prompts, num_tokens = json.loads(line)
    ids = numpy.array(prompts, numpy.int64)
    inputs = genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(numpy.ones_like(ids)))
    config = genai.GenerationConfig(max_new_tokens=num_tokens, ignore_eos=True, do_sample=False)
    started = time.perf_counter()
    found = pipeline.generate(inputs, config)
    seconds = time.perf_counter() - started
    assert [len(tokens) for tokens in found.tokens] == [num_tokens] * len(prompts)
    print(json.dumps(seconds), flush=True)
"""


class OpenVino:
    """OpenVINO GenAI in an environment of its own."""

    def __init__(self, folder: Path | None, model: Path, num_threads: int) -> None:
        python = sys.executable if folder is None else str(folder / "python")
        command = [python, "-c", _OPENVINO, str(model), str(num_threads), str(_MAX_BATCH)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.name = f"OpenVINO GenAI {self._read()}"

    def seconds(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> float:
        """The time of one greedy batch. All prompts have the same length."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([prompts, num_tokens]) + "\n")
        self._process.stdin.flush()
        return float(self._read())

    def _read(self) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line[0] in '"0123456789':  # not a message of the library
                return json.loads(line)
        raise EngineStopped(f"OpenVINO GenAI ended with {self._process.wait()}")


class HuggingFace:
    """A transformers Llama with the weights of an open checkpoint."""

    def __init__(self, checkpoint: Checkpoint, dtype: torch.dtype) -> None:
        import transformers

        config = checkpoint.config
        assert config.family == "llama" and config.rope_scaling is None, (
            "the comparison supports plain Llama models only"
        )
        described = transformers.LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            max_position_embeddings=config.max_position_embeddings,
            rms_norm_eps=config.rms_norm_eps,
            rope_theta=config.rope_theta,
            tie_word_embeddings=config.tie_word_embeddings,
        )
        model: Any = transformers.AutoModelForCausalLM.from_config(described, dtype=dtype)
        weights = {name: rounded(checkpoint.tensor(name), dtype) for name in checkpoint.names()}
        model.load_state_dict(weights, strict=False)
        model.tie_weights()
        model.generation_config.eos_token_id = None
        model.generation_config.pad_token_id = 0
        self._model = model.eval()

    def seconds(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> float:
        """The time of one greedy batch. All prompts have the same length."""
        ids = torch.tensor(prompts)
        started = time.perf_counter()
        with torch.inference_mode():
            out = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=num_tokens,
                min_new_tokens=num_tokens,
                do_sample=False,
            )
        assert out.shape[1] == ids.shape[1] + num_tokens
        return time.perf_counter() - started


@dataclass(frozen=True)
class LlamaCpp:
    """The programs of one build, and the file they run."""

    bench: Path
    completion: Path
    model: Path
    num_threads: int

    @property
    def name(self) -> str:
        """With the version as the program says it, such as "8123 (b21e4de)"."""
        done = subprocess.run([self.bench, "--version"], capture_output=True, text=True, check=False)
        found = re.search(r"version: (.+)", done.stdout + done.stderr)
        return f"llama.cpp {found[1].strip() if found else 'unknown'}"

    @property
    def command(self) -> list[str]:
        """A command that prints one answer and nothing else."""
        options = f"-c {_CONTEXT} -n 8 -t {self.num_threads} --temp 0 -no-cnv --no-display-prompt"
        prompt = ["-p", "Why is the sea salt?"]
        return [str(self.completion), "-m", str(self.model), *options.split(), *prompt]

    def seconds(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> float:
        """The time of the prompts, or, with more than one token, of the tokens after the first alone.

        Only the number and the length of the prompts matter: the program makes its own.
        """
        found = self._measure(len(prompts), len(prompts[0]), max(num_tokens - 1, 1))
        return found["t_pp"] if num_tokens == 1 else found["t_tg"]

    def _measure(self, streams: int, prompt_len: int, decoded: int) -> dict[str, float]:
        context = max(_MAX_BATCH, streams * (prompt_len + decoded))  # the program warms up with 16 tokens
        options = {"-npp": prompt_len, "-ntg": decoded, "-npl": streams, "-c": context}
        options |= {"-b": max(_MAX_BATCH, streams * prompt_len), "-ub": _MAX_BATCH}
        options |= {"-t": self.num_threads, "-tb": self.num_threads}
        words = [str(word) for option in options.items() for word in option]
        command = [str(self.bench), "-m", str(self.model), *words, "--output-format", "jsonl"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode != 0 or not lines:
            raise EngineStopped(f"{_BENCH} failed with {done.returncode}: {done.stderr.strip()[-600:]}")
        found: dict[str, float] = json.loads(lines[-1])
        return found


def find_llama_cpp(folder: Path | None, model: Path, num_threads: int) -> LlamaCpp:
    """The programs in this folder, or those on the search path. Raises ConfigError without them."""
    if model.suffix != ".gguf":
        raise ConfigError(f"llama.cpp reads GGUF files; {model} is none. Give a .gguf file as MODEL")
    where = None if folder is None else str(folder)
    found = [shutil.which(name, path=where) for name in (_BENCH, _COMPLETION)]
    if None in found:
        missing = [name for name, path in zip((_BENCH, _COMPLETION), found, strict=True) if path is None]
        raise ConfigError(
            f"{' and '.join(missing)} not found {'on the search path' if folder is None else f'in {folder}'}; build "
            "llama.cpp with docs/build-llama-cpp.sh and name its folder with --peer-dir"
        )
    bench, completion = (Path(path).absolute() for path in found if path is not None)
    return LlamaCpp(bench, completion, model, num_threads)


_PEERS: dict[str, tuple[str, Callable[[Path | None, Path, int], LlamaCpp | OpenVino]]] = {
    "llama.cpp": ("bench-llama-cpp", find_llama_cpp),
    "openvino": ("bench-openvino", OpenVino),
}


def launch(command: Sequence[str], environment: Mapping[str, str] | None = None) -> tuple[float, int]:
    """Return the seconds to the first byte, or to the end without one, and peak resident bytes."""
    launcher = [sys.executable, "-I", "-c", _LAUNCHER, *command]
    variables = {**os.environ, **(environment or {})}
    done = subprocess.run(launcher, capture_output=True, text=True, check=True, env=variables)
    code, seconds, peak = json.loads(done.stdout)
    if code != 0:
        raise EngineStopped(f"{' '.join(command)} ended with {code}: {done.stderr[-2000:]}")
    return seconds, peak


def run_commands(bench: Bench, generate: list[str], peer: LlamaCpp | OpenVino | None) -> None:
    """Add a row for each command: `holdfast generate`, its first start ever, and the peer's."""
    bench.row(
        part="command",
        command="import torch",
        seconds=min(launch(_IMPORT_TORCH)[0] for _ in range(_NUM_TRIES)),
    )
    with tempfile.TemporaryDirectory() as empty:
        seconds, _ = launch(generate, {"HOLDFAST_CACHE_DIR": empty})
        bench.row(part="command", command="holdfast generate, first start", first_byte_seconds=seconds)
    for name, command in {
        "holdfast generate": generate,
        **({_COMPLETION: peer.command} if isinstance(peer, LlamaCpp) else {}),
    }.items():
        launch(command)
        tries = [launch(command) for _ in range(_NUM_TRIES)]
        first_byte, peak = min(one[0] for one in tries), max(one[1] for one in tries)
        bench.row(part="command", command=name, first_byte_seconds=first_byte, peak_mb=peak / 1e6)


def run_speed(bench: Bench, given: argparse.Namespace, dtype: str, peer: LlamaCpp | OpenVino | None) -> None:
    """Add a row for each variant, and ratios."""
    located = locate(given.model)
    checkpoint = open_checkpoint(located.path)
    config = EngineConfig(
        certification="startup",
        device="cpu",
        dtype=dtype,
        num_threads=given.num_threads,
        max_num_seqs=max(STREAMS),
        kv_memory="512MiB",
    )
    engine = assemble(OpenedModel(config, checkpoint.config, checkpoint), checkpoint)
    runs: dict[str, Run] = {}
    if peer is None:
        used = getattr(torch, dtype_name(config.dtype, None))
        # Where the CPU has no instructions for this dtype, fp32 is the fastest dtype of Hugging Face.
        fastest = used if has_native_gemm(used) else torch.float32
        runs[f"Hugging Face, {fastest}"] = HuggingFace(checkpoint, fastest).seconds
    else:
        runs[peer.name] = peer.seconds
    (name,) = runs
    runs |= engine_runs(engine)
    omits_first = (name,) if isinstance(peer, LlamaCpp) else ()
    found = measure(
        runs, engine.limits.vocab_size, given.rounds, given.num_tokens, bench.log, omits_first=omits_first
    )
    fields: Row = {"model": located.name, "threads": torch.get_num_threads(), "dtype": dtype}
    for variant, cells in found.items():
        bench.row(part="speed", **fields, variant=variant, **cells)
    for variant, over in (
        ("ordinary", name),
        ("deterministic, auto", "ordinary"),
        ("deterministic, verify", "ordinary"),
    ):
        ratios = {cell: value / found[over][cell] for cell, value in found[variant].items()}
        bench.row(part="ratio", of=variant, over=over, **ratios)


def plot(bench: Bench, path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"cell": cell, "variant": row["variant"], "tok/s": row[cell]}
        for cell in next(row for row in bench.rows if row["part"] == "speed")
        if cell.startswith("prefill") or cell.endswith(("stream", "streams"))
        for row in bench.rows
        if row["part"] == "speed"
    ]
    bars(rows, path, name="cell", value="tok/s", group="variant", heading=f"tok/s, {bench.header['machine']}")


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("model", nargs="?", help="default: the default model")
    parser.add_argument("--peer", choices=["hugging-face", *_PEERS], default="hugging-face")
    parser.add_argument(
        "--peer-dir",
        type=Path,
        help="folder with llama.cpp's programs or OpenVINO's Python; default: the search path, this Python",
    )
    parser.add_argument("--rounds", type=int, default=3, help="the best time counts")
    parser.add_argument("--num-tokens", type=int, default=64, help="tokens decoded by each stream")
    parser.add_argument("--num-threads", type=int, default=2)
    parser.add_argument("--dtype", help="default: bf16; beside a GGUF file's peer as it is")
    parser.add_argument("--only", choices=["command", "speed"], help="one part")
    parser.add_argument(
        "--out", type=Path, help="folder for bench-cpu.json, bench-llama-cpp.json or bench-openvino.json"
    )
    parser.add_argument("--plot", type=Path, help="draw the speeds")
    given = parser.parse_args()
    name, open_peer = _PEERS.get(given.peer, ("bench-cpu", None))
    dtype = given.dtype or ("bf16" if open_peer is None else "auto")
    peer = (
        None if open_peer is None else open_peer(given.peer_dir, locate(given.model).path, given.num_threads)
    )
    bench = Bench(name, given.out)
    if given.only != "speed":
        generate = [sys.executable, "-m", "holdfast", "generate", "Why is the sea salt?", "--deterministic"]
        generate += ["--max-tokens", "8", "--seed", "7", "--kv-memory", "256MiB", "--dtype", dtype]
        generate += ["--num-threads", str(given.num_threads)] + (
            ["--model", given.model] if given.model else []
        )
        with bench.part(part="command"):
            run_commands(bench, generate, peer)
    if given.only != "command":
        with bench.part(part="speed"):
            run_speed(bench, given, dtype, peer)
            if given.plot is not None:
                plot(bench, given.plot)
    bench.finish()


if __name__ == "__main__":
    main()
