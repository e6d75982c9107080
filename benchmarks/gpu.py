"""What a user of a GPU gets: batches of requests through `LLM.generate`, in variants, and the first use.

    python benchmarks/gpu.py --out docs/data
    python benchmarks/gpu.py --only uniform,receipts,mixed     # some cells; a wrong name lists all
    python benchmarks/gpu.py --only start,uniform              # first use, and 1 to 257 requests at once

A cell is a batch of requests. It runs in its variants right after each other, because GPUs of one kind differ:
compare ratios, not tok/s. Engines are new processes (`engines.py`) in which nothing is prepared, and the
weights are random. A part or cell that fails is noted, and the next one runs. Exits with 1 if one failed or
a deterministic answer is not certified.

gpu_step.py says where the time of a step goes, gpu_certificate.py which GEMMs are certified and what they cost.
"""

import itertools
import math
import random
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from engines import TINY_SHAPES, EngineProcess, Figures, Job, llm_options, shape_config
from holdfast.engine.config import dtype_name
from holdfast.worker.kv_store import page_bytes
from measure import Bench, Row, new_parser, table

PARTS = ("start", "cells")
_RESERVE = 12 << 30  # of each process: its CUDA context, logits, captured graphs and activations
_PAGE_SPARE = 128  # positions of a request's last page
_TINY_DIVISOR, _TINY_STREAMS = 128, 8  # of the lengths and requests of all cells, for a CPU


@dataclass(frozen=True)
class Variant:
    """One way to run the same requests: in a process with this `determinism`, deterministic or not."""

    name: str
    mode: str
    deterministic: bool


DETERMINISTIC = Variant("deterministic", "auto", True)
ORDINARY = Variant("ordinary", "auto", False)
OFF = Variant("off", "off", False)  # the guarantee off, and the library's plain products
VERIFY = Variant("verify", "verify", True)
VARIANTS = (DETERMINISTIC, ORDINARY, OFF, VERIFY)


@dataclass(frozen=True)
class Cell:
    """streams requests of prompt_len tokens in and num_tokens out. The other fields are those of `Job`;
    kind may be "mixed", too: the two lengths are then the largest ones of log-normal distributions."""

    name: str
    title: str
    streams: int
    prompt_len: int = 512
    num_tokens: int = 256
    variants: tuple[Variant, ...] = (DETERMINISTIC, OFF)
    kind: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    seeded: bool = False
    shared_len: int = 0
    times_prefill: bool = False

    def lengths(self) -> tuple[list[int], list[int]]:
        """Of all prompts and of all answers: the same every time."""
        if self.kind != "mixed":
            return [self.prompt_len] * self.streams, [self.num_tokens] * self.streams
        prompts = _draw_lengths(random.Random(1), self.streams, self.prompt_len / 8, 1.0, 4, self.prompt_len)
        answers = _draw_lengths(
            random.Random(2), self.streams, self.num_tokens / 4.8, 0.9, 4, self.num_tokens
        )
        return prompts, answers

    @property
    def num_positions(self) -> int:
        """The tokens that the KV cache holds when all requests run at once."""
        prompts, answers = self.lengths()
        return sum(prompts) + sum(answers) - (self.streams - 1) * self.shared_len

    def scaled(self, divisor: int, max_streams: int) -> "Cell":
        """The same with shorter lengths and fewer requests, for CPUs."""
        prompt_len = max(4, self.prompt_len // divisor)
        return replace(
            self,
            streams=min(self.streams, max_streams),
            prompt_len=prompt_len,
            num_tokens=min(self.num_tokens, max(4, self.num_tokens // divisor)),
            shared_len=self.shared_len // divisor,
        )

    def job(self, variant: Variant, number: int, vocab_size: int) -> Job:
        prompts, answers = self.lengths()
        return Job(
            number,
            vocab_size,
            prompts,
            answers,
            variant.deterministic,
            self.shared_len,
            self.params,
            self.seeded,
            self.kind,
            self.times_prefill,
        )


_SAMPLED = {"temperature": 0.8, "top_p": 0.95}
_THREE, _VERIFIED = (DETERMINISTIC, ORDINARY, OFF), (VERIFY, OFF)

CELLS: Mapping[str, Cell] = {
    cell.name: cell
    for cell in (
        *(
            Cell(f"uniform-{count}", f"{count} x 512/256", count, variants=_THREE, times_prefill=True)
            for count in (1, 8, 32, 33, 128, 256, 257)
        ),
        *(
            Cell(f"prefill-{count}", f"{count} x 512/1, prompt tok/s", count, num_tokens=1, variants=_THREE)
            for count in (8, 64)
        ),
        Cell("prefill-4k", "8 x 4096/1, prompt tok/s", 8, 4096, 1),
        Cell("receipts", "256, every receipt read", 256, variants=(DETERMINISTIC,), kind="receipts"),
        Cell("mixed", "400 of mixed lengths", 400, 2048, 768, kind="mixed"),
        Cell("shared", "200 x (2,000 shared + 60)/120", 200, 2060, 120, shared_len=2000),
        Cell("sampled", "128, sampled", 128, params=_SAMPLED),
        Cell("seeded", "128, sampled, a seed each", 128, params=_SAMPLED, seeded=True),
        Cell(
            "penalty",
            "128, sampled, repetition penalty 1.1, a seed each",
            128,
            params={**_SAMPLED, "repetition_penalty": 1.1},
            seeded=True,
        ),
        Cell("logprobs", "128, 5 top logprobs", 128, params={"logprobs": 5}),
        Cell("json", "56 beside 8 with a JSON schema", 64, kind="json"),
        Cell("long-8k", "16 x 8192/256", 16, 8192, 256, times_prefill=True),
        Cell("long-30k", "4 x 30000/64", 4, 30_000, 64, times_prefill=True),
        Cell("long-100k", "1 x 100000/64", 1, 100_000, 64, times_prefill=True),
        *(
            Cell(f"verify-{count}", f"{count} x 512/256", count, variants=_VERIFIED)
            for count in (1, 32, 128, 256)
        ),
        Cell("verify-long", "64 x 1024/1024", 64, 1024, 1024, variants=_VERIFIED),
    )
}


def _draw_lengths(
    rng: random.Random, count: int, median: float, sigma: float, low: int, high: int
) -> list[int]:
    """Draw log-normal lengths in tokens, clipped to low .. high. sigma is that of the logarithm."""
    return [min(high, max(low, round(median * math.exp(rng.gauss(0.0, sigma))))) for _ in range(count)]


@dataclass(frozen=True)
class Settings:
    """model: a shape of random weights. options: of its `LLM`s, as `llm_options` gives them."""

    model: str
    dtype: str | None
    rounds: int
    options: Mapping[str, Any]

    def cell(self, name: str) -> Cell:
        cell = CELLS[name]
        return cell.scaled(_TINY_DIVISOR, _TINY_STREAMS) if self.model in TINY_SHAPES else cell


def _run_starts(bench: Bench, settings: Settings) -> None:
    """The first start has empty caches (certificates, recipes, compiled kernels), the second finds those
    of the first. Weights take as long as the user's disk, so `without_weights` is the rest."""
    single, batch = replace(settings.cell("prefill-8"), streams=1), settings.cell("uniform-32")
    vocab_size = shape_config(settings.model).vocab_size
    for variant in (DETERMINISTIC, OFF):
        with tempfile.TemporaryDirectory() as folder:
            caches = {f"{name}_CACHE_DIR": str(Path(folder, name)) for name in ("HOLDFAST", "TRITON")}
            for start in ("first", "second"):
                if bench.is_over("start"):
                    return
                fields = {"part": "start", "model": settings.model, "variant": variant.name, "start": start}
                options = {**settings.options, "determinism": variant.mode}
                with bench.part(**fields), EngineProcess(options, caches) as process:
                    process.run(single.job(variant, 1, vocab_size))
                    seconds, weights = process.seconds, process.start_up_seconds["weights"]
                    figures = process.run(batch.job(variant, 2, vocab_size))
                    bench.row(
                        **fields,
                        first_token_seconds=seconds,
                        weights_seconds=weights,
                        without_weights=seconds - weights,
                        first_batch_speed=figures["speed"],
                    )


def _run_cells(bench: Bench, settings: Settings, names: Sequence[str]) -> None:
    """Cells that verify come last, so that at most two engines hold their weights at once."""
    cells = [settings.cell(name) for name in names]
    longest = shape_config(settings.model).max_position_embeddings
    for verifies in (False, True):
        some = [
            cell
            for cell in cells
            if (VERIFY in cell.variants) is verifies and cell.prompt_len + cell.num_tokens <= longest
        ]
        modes = list(dict.fromkeys(variant.mode for cell in some for variant in cell.variants))
        for group, kv_memory in _groups(settings, modes, some):
            if bench.is_over("cells"):
                return
            with ExitStack() as opened:
                processes: dict[str, EngineProcess] = {}
                for mode in group:
                    fields = {"part": "open", "model": settings.model, "determinism": mode}
                    options = {**settings.options, "determinism": mode, **kv_memory}
                    with bench.part(**fields):
                        processes[mode] = process = opened.enter_context(EngineProcess(options))
                        bench.row(**fields, seconds=process.seconds, **kv_memory)
                _run_rounds(bench, settings, some, processes)


def _groups(
    settings: Settings, modes: Sequence[str], cells: Sequence[Cell]
) -> list[tuple[Sequence[str], dict[str, int]]]:
    """The engines that hold their weights at the same time, with the option kv_memory of each.

    If all of them leave too little memory for a cell, they run one after the other, with the default.
    """
    if len(modes) < 2 or not torch.cuda.is_available():
        return [(modes, {})] if modes else []
    config = shape_config(settings.model)
    dtype = getattr(torch, dtype_name(settings.dtype or "auto", config.torch_dtype))
    free, _ = torch.cuda.mem_get_info()
    share = int(0.97 * free / len(modes)) - config.num_parameters * dtype.itemsize - _RESERVE
    positions = max(cell.num_positions + cell.streams * _PAGE_SPARE for cell in cells)
    if share >= positions * page_bytes(config, dtype, 1):
        return [(modes, {"kv_memory": share})]
    return [([mode], {}) for mode in modes]


def _run_rounds(
    bench: Bench, settings: Settings, cells: Sequence[Cell], processes: dict[str, EngineProcess]
) -> None:
    """Round after round. The first one includes what happens on first use only."""
    vocab_size, numbers = shape_config(settings.model).vocab_size, itertools.count()
    for number in range(settings.rounds):
        for cell in cells:
            for variant in cell.variants:
                if variant.mode not in processes:
                    continue
                if bench.is_over("cells"):
                    return
                fields: Row = {"part": "cells", "model": settings.model, "cell": cell.name}
                fields |= {"title": cell.title, "variant": variant.name, "round": number + 1}
                with bench.part(**fields):
                    figures = processes[variant.mode].run(cell.job(variant, next(numbers), vocab_size))
                    bench.row(**fields, **figures, error=_missing_guarantee(variant, figures))


def _missing_guarantee(variant: Variant, figures: Figures) -> str | None:
    """What is wrong if not every deterministic answer is certified, or, in `verify`, verified."""
    if not variant.deterministic:
        return None
    kept = figures.get("certified", 0) + (figures.get("verified", 0) if variant is VERIFY else 0)
    missing = int(figures["answers"] - kept)
    return f"{missing} of {int(figures['answers'])} answers are not certified" if missing else None


def best_speeds(rows: Sequence[Row]) -> list[Row]:
    """Return a row for each cell: the best speed of each variant, and the deterministic one's over `off`'s."""
    found: dict[str, Row] = {}
    for row in rows:
        if row["part"] == "cells" and "speed" in row:
            own = found.setdefault(row["cell"], {"cell": row["cell"], "requests": row["title"]})
            own[row["variant"]] = max(row["speed"], own.get(row["variant"], 0.0))
    for own in found.values():
        kept = own.get(DETERMINISTIC.name, own.get(VERIFY.name))
        if kept is not None and OFF.name in own:
            own["/ off"] = kept / own[OFF.name]
    return list(found.values())


def parse_names(only: str | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the parts and the cells that a list such as "start,uniform,mixed" names, in their own order.

    A name stands for all cells that begin with it: `long` for long-8k, long-30k and long-100k.
    """
    if only is None:
        return PARTS, tuple(CELLS)
    given = {name.strip() for name in only.split(",") if name.strip()}
    found = {name: [cell for cell in CELLS if f"{cell}-".startswith(f"{name}-")] for name in given}
    unknown = [name for name in given if name not in PARTS and not found[name]]
    if unknown or not given:
        sys.exit(
            f"no part {', '.join(sorted(unknown)) or 'was named'}; the parts are {', '.join(PARTS)}; "
            f"the cells are {', '.join(CELLS)}"
        )
    chosen = {cell for cells in found.values() for cell in cells}
    cells = tuple(name for name in CELLS if name in chosen) or tuple(CELLS)
    return tuple(part for part in PARTS if part in given or (part == "cells" and chosen)), cells


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--model", default="llama-3.1-8b", help="shape of the random weights; tiny for a CPU")
    parser.add_argument("--only", metavar="NAMES", help="parts (start, cells) and cells; default all")
    parser.add_argument("--out", type=Path, help="folder for bench-gpu.json, written after every figure")
    parser.add_argument("--rounds", type=int, default=2, help="the first is the first use, the best counts")
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no measurement after this time")
    parser.add_argument("--dtype", help="bf16, fp16 or fp32; default: of the shape")
    given = parser.parse_args()
    parts, cells = parse_names(given.only)
    bench = Bench("bench-gpu", given.out, given.minutes)
    with llm_options(given.model, given.dtype) as options:
        settings = Settings(given.model, given.dtype, given.rounds, options)
        for part in parts:
            if not bench.is_over(part):
                with bench.part(part=part):
                    _run_starts(bench, settings) if part == "start" else _run_cells(bench, settings, cells)
    print(f"Best round, tok/s\n\n{table(best_speeds(bench.rows))}\n")
    bench.finish()


if __name__ == "__main__":
    main()
