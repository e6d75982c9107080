"""CPU seconds of models with recurrent state beside a dense Llama of as many bytes, on one thread.

    python benchmarks/cpu_recurrent.py FOLDER --out docs/data
    python benchmarks/cpu_recurrent.py FOLDER --llama-cpp PROGRAM      # beside llama.cpp on the same files

The models are GGUF files with random weights, in Q8_0 and in bf16, which are written to FOLDER. LFM2-350M is whole; of
Qwen3.5-0.8B it is a third of the layers, with a vocabulary of 65,536.

All of them run in turn, round after round, in one process, and the least CPU time of each counts: on a machine that
others use, it varies less than the time of day. Requests are ordinary; with a certificate deterministic ones run the
same passes. PROGRAM is benchmarks/llama_cpp_cpu.cpp, which does the same with llama.cpp's library in a process of its
own. It samples nothing.
"""

import importlib
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.bench.speed import STREAMS, engine_runs
from holdfast.engine.config import EngineConfig
from holdfast.engine.engine import Engine
from holdfast.engine.start.builder import assemble
from holdfast.engine.start.preflight import OpenedModel
from holdfast.models.checkpoint import open_checkpoint
from measure import Bench, Row, new_parser

ROOT = Path(__file__).parent.parent
TITLES = {"lfm2": "LFM2-350M", "qwen3_5_text": "Qwen3.5-0.8B, a third of it"}
DENSE, OURS, LLAMA_CPP = "a dense Llama", "Holdfast", "llama.cpp"
PREFILL, PROMPT, STEPS = 512, 8, 8
FORMATS = {"Q8_0": "auto", "BF16": "bf16"}  # of files, and the dtype that they are computed in
_SHARED: dict[str, Any] = {"vocab_size": 65536, "hidden_size": 1024, "max_position_embeddings": 2048}
_TIED: dict[str, Any] = {"tie_word_embeddings": True, "num_attention_heads": 16, "num_key_value_heads": 8}
# Each pair has the same sizes of vocabulary, hidden states and MLP, and as many weights up to 3 %.
PAIRS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "lfm2": (
        {
            "num_hidden_layers": 16,
            "layer_types": ["full_attention" if n in (2, 5, 8, 10, 12, 14) else "conv" for n in range(16)],
            "intermediate_size": 6656,
        },
        {"num_hidden_layers": 17, "intermediate_size": 4608},
    ),
    "qwen3_5_text": (
        {
            "num_hidden_layers": 8,
            "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 2,
            "intermediate_size": 3584,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 16,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
        },
        {"num_hidden_layers": 12, "intermediate_size": 3584},
    ),
}


def write_models(folder: Path, only: Sequence[str] = ()) -> dict[str, Path]:
    """Write the files that are not there yet. Return them by family, part and format. only: words of a name."""
    import torch

    sys.path.insert(0, str(ROOT / "tests"))
    tiny, gguf_writer = (importlib.import_module(name) for name in ("support.tiny", "models.gguf_writer"))
    torch.set_default_dtype(torch.bfloat16)
    found = {}
    for family, pair in PAIRS.items():
        for part, fields in zip((family, "llama"), pair, strict=True):
            for form in FORMATS:
                name, path = f"{family} {part} {form}", folder / f"{family}-{part}-{form}.gguf"
                if not set(only) <= {family, form}:
                    continue
                found[name] = path
                if not path.exists():
                    model = tiny.random_model(part, std=0.02, **(_SHARED | _TIED | fields))
                    no_words = {"tokenizer.ggml.model": "no_vocab"}
                    gguf_writer.write_gguf(path, model, form, metadata=no_words)
    torch.set_default_dtype(torch.float32)
    return found


def open_engine(path: Path, dtype: str) -> Engine:
    checkpoint = open_checkpoint(path)
    config = EngineConfig(
        certification="background",
        device="cpu",
        dtype=dtype,
        num_threads=1,
        max_num_seqs=max(STREAMS),
        kv_memory="512MiB",
    )
    return assemble(OpenedModel(config, checkpoint.config), checkpoint)


def measure_engine(engine: Engine) -> dict[str, float]:
    """Return the CPU seconds of each cell."""
    run, rng = engine_runs(engine)["ordinary"], random.Random(0)

    def seconds(streams: int, length: int, num_tokens: int) -> float:
        prompts = [rng.choices(range(100, 40_000), k=length) for _ in range(streams)]
        started = time.process_time()
        run(prompts, num_tokens)
        return time.process_time() - started

    found = {f"prefill {PREFILL}": seconds(1, PREFILL, 1)}
    for streams in STREAMS:
        first = min(seconds(streams, PROMPT, 1) for _ in range(2))
        found[f"{streams} stream{'s' * (streams > 1)}"] = seconds(streams, PROMPT, 1 + STEPS) - first
    return found


def measure_llama_cpp(program: str, path: Path) -> dict[str, float]:
    cells = [PREFILL, PROMPT, STEPS, *STREAMS]
    done = subprocess.run([program, path, *map(str, cells)], capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def least(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {cell: min(one[cell] for one in rounds) for cell in rounds[0]}


def ratios(seconds: Sequence[Row]) -> Iterator[Row]:
    """Yield the speed of each model beside a dense Llama, as if that had as many bytes, and beside llama.cpp."""
    by_name = {(row["model"], row["part of"], row["format"], row["by"]): row for row in seconds}
    for (model, pair, form, by), row in by_name.items():
        cells = [cell for cell in row if cell.startswith("prefill") or cell.endswith(("stream", "streams"))]
        dense = by_name[DENSE, pair, form, by]
        if model != DENSE:
            size = row["megabytes"] / dense["megabytes"]
            beside = f"{DENSE} of as many bytes" + ("" if by == OURS else f", both with {by}")
            found = {cell: dense[cell] * size / row[cell] for cell in cells}
            yield {"model": model, "format": form, "beside": beside, **found}
        if by == LLAMA_CPP:
            own = by_name[model, pair, form, OURS]
            name = model if model != DENSE else f"{model} beside {pair}"
            found = {cell: row[cell] / own[cell] for cell in cells}
            yield {"model": name, "format": form, "beside": by, **found}


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("folder", type=Path, help="for the models")
    parser.add_argument("--rounds", type=int, default=3, help="the least time counts")
    parser.add_argument("--llama-cpp", help="program that measures llama.cpp")
    parser.add_argument("--only", nargs="*", default=(), help="a family, a format, or both")
    parser.add_argument("--out", type=Path, help="folder for cpu-recurrent.json")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    bench = Bench("cpu-recurrent", given.out)
    models = write_models(given.folder, given.only)
    engines = {name: open_engine(path, FORMATS[name.split()[-1]]) for name, path in models.items()}
    times: dict[tuple[str, str], list[dict[str, float]]] = {}
    for number in range(given.rounds):
        bench.log(f"round {number + 1} of {given.rounds}")
        for name, engine in engines.items():
            times.setdefault((name, OURS), []).append(measure_engine(engine))
            if given.llama_cpp:
                found = measure_llama_cpp(given.llama_cpp, models[name])
                times.setdefault((name, LLAMA_CPP), []).append(found)
    for (name, by), rounds in times.items():
        family, part, form = name.split()
        of = {
            "model": DENSE if part == "llama" else TITLES[family],
            "part of": TITLES[family],
            "format": form,
        }
        megabytes = models[name].stat().st_size / 1e6
        bench.row(part="cpu seconds", **of, by=by, megabytes=megabytes, **least(rounds))
    for row in list(ratios(bench.rows)):
        bench.row(part="ratio", **row)
    bench.finish()


if __name__ == "__main__":
    main()
