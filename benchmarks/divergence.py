"""Record the problem: one prompt, alone and inside loads, with the guarantee off and with it on.

    python benchmarks/divergence.py qwen2.5-1.5b --load-format dummy --runs 50 --save FILE.json     # on a GPU
    python benchmarks/divergence.py --kernels torch --save FILE.json --plot FILE.png                # on a CPU
    python benchmarks/divergence.py --read src/holdfast/recordings/h200-qwen2.5-1.5b.json --plot docs/divergence.png

All runs of one recording have the same weights, kernels, schedule and settings. Only the other requests differ, and
with them the batch sizes. Ordinary answers may then differ, because the sums in a product of another batch size have
another order. The same loads with a deterministic probe are the control: one answer.

On a GPU the ordinary runs use the library's plain products, as an engine with determinism off does. The control
verifies these very products; a second control runs the certified ones. Exits with 1 unless the ordinary answers
differ and the deterministic ones do not. On CPUs use --kernels torch: the answers of the C kernels do not depend on
the load. The demo and the inspector show the files in src/holdfast/recordings.
"""

import argparse
import datetime
import importlib.metadata
import json
import platform
import random
import struct
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch

from holdfast.bench.determinism import open_plain_engine
from holdfast.bench.load import BackgroundRequest, ProbeRequest, StressLoad
from holdfast.bench.stress import run_in_load
from holdfast.core.results import Result
from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.config import EngineConfig
from holdfast.engine.engine import Engine
from holdfast.engine.start.builder import build
from holdfast.models.locate import locate
from holdfast.scheduler.policy import DeterminismMode
from holdfast.text.chat_template import ChatTemplate
from holdfast.version import __version__
from holdfast.worker.model_runner import ModelRunner
from measure import COLOURS, Row, machine, new_figure, new_parser

QUESTION = "In two sentences: what does a holdfast do for seaweed?"
NUM_ALONE = 2  # alone twice: without neighbours nothing differs
_MAX_PROMPT_LEN, _MAX_TOKENS = 48, 64  # of a neighbour
_SHORT = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
_MAX_ROWS = 16  # of the picture
_GREEN, _ORANGE, _BLUE = COLOURS[0], COLOURS[2], "#C9DFEE"
_INK, _FAINT = "#222222", "#666666"
_GAP = 1.6  # rows between the two sides
_ROW_INCHES = 0.235
Runs = list[tuple[int, Result]]  # with the number of neighbours


def record(engine: Engine, config: EngineConfig, given: argparse.Namespace) -> Row:
    """Record the answers of an engine, and of one with the same weights and the library's plain products."""
    plain, is_random = open_plain_engine(engine), config.load_format == "dummy"
    backend = cast(ModelRunner, engine.runner)._decoder.backend
    recipe, device = backend.recipe, backend.device
    params = SamplingParams(
        max_tokens=given.num_tokens,
        temperature=given.temperature,
        top_p=0.95 if given.temperature else 1.0,
        seed=7,
        ignore_eos=is_random,
        logprobs=1,
    )
    prompt = _prompt_ids(engine)
    certified = "certified" if device.type == "cuda" else "library"
    sides: list[tuple[Engine, DeterminismMode, str, Runs]] = [
        (plain, "off", "library", []),
        (plain, "verify", "library", []),
        (engine, "auto", certified, []),
    ]
    started = time.monotonic()
    for number in range(given.runs):  # every load in all modes before the next load
        if number > NUM_ALONE and time.monotonic() - started > given.seconds:
            print(f"stopped after {number} of {given.runs} loads: {given.seconds:g} s are over")
            break
        load = _load(number, given.load, plain)
        for side, mode, _, runs in sides:
            probe = ProbeRequest(prompt, replace(params, deterministic=mode != "off"))
            runs.append((len(load.background), _run(side, mode, load, probe)))
        if number % 8 == 7:
            print(f"{number + 1} of {given.runs} loads")
    ordinary, *controls = (
        _side(mode, products, runs, with_text=not is_random) for _, mode, products, runs in sides
    )
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": {
            "device": machine(),
            "kind": device.type,
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "triton": importlib.metadata.version("triton") if device.type == "cuda" else None,
            "python": platform.python_version(),
            "holdfast": __version__,
        },
        "model": {
            "name": str(config.model) if is_random else locate(config.model).name,
            "weights": "random" if is_random else "real",
            "dtype": _SHORT.get(recipe.dtype, recipe.dtype),
            "kernels": recipe.path,
        },
        "prompt": QUESTION,
        "prompt_ids": list(prompt),
        "settings": {name: getattr(params, name) for name in ("max_tokens", "temperature", "top_p", "seed")},
        "num_alone": NUM_ALONE,
        "seconds": round(time.monotonic() - started, 1),
        "ordinary": ordinary,
        "controls": controls,
    }


def is_good(recording: Row) -> bool:
    """Return whether ordinary answers differ, and the deterministic ones are one and the same."""
    controls = recording["controls"]
    same = len({tuple(one["answers"][0]["token_ids"]) for one in controls}) == 1
    return recording["ordinary"]["distinct"] > 1 and all(one["distinct"] == 1 for one in controls) and same


def _prompt_ids(engine: Engine) -> tuple[int, ...]:
    """Return the question through the chat template, if the model has one."""
    tokenizer = engine.tokenizer
    if tokenizer.chat_template is None:
        return tuple(tokenizer.encode(QUESTION))
    text = ChatTemplate.of(tokenizer).render([{"role": "user", "content": QUESTION}])
    return tuple(tokenizer.encode(text, add_special_tokens=False))


def _load(number: int, largest: int, engine: Engine) -> StressLoad:
    """Draw a load. Number 0 and 1 are empty, all others have one neighbour or more."""
    rng = random.Random(number)
    limit = min(largest, engine.scheduler.config.max_num_seqs - 1)
    vocab = min(engine.tokenizer.vocab_size, engine.limits.vocab_size, 400)
    count = 0 if number < NUM_ALONE else rng.randint(1, limit)
    return StressLoad(
        tuple(_neighbour(rng, vocab) for _ in range(count)),
        arrival_step=2 if count else 0,  # the load runs already when the probe arrives
        warmup_len=0,
        schedule=engine.scheduler.config,
        num_pages=engine.scheduler.pool.num_pages,
    )


def _neighbour(rng: random.Random, vocab: int) -> BackgroundRequest:
    prompt = tuple(rng.randrange(2, vocab) for _ in range(rng.randint(1, _MAX_PROMPT_LEN)))
    params = SamplingParams(
        max_tokens=rng.randint(4, _MAX_TOKENS),
        temperature=0.7,
        seed=rng.randrange(1 << 32),
        ignore_eos=True,
        deterministic=False,
    )
    return BackgroundRequest(prompt, params, arrival_step=rng.randint(0, 12))


def _run(engine: Engine, mode: DeterminismMode, load: StressLoad, probe: ProbeRequest) -> Result:
    schedule = replace(engine.scheduler.config, determinism=mode, prefix_cache=False, speculation="off")
    load = replace(load, schedule=schedule, num_pages=engine.scheduler.pool.num_pages)
    return run_in_load(engine, load, probe).result


def _side(mode: DeterminismMode, products: str, runs: Runs, *, with_text: bool) -> Row:
    """Describe all answers in one mode. The first is the one given alone.

    distinct: in tokens or in a bit of a logprob.
    """
    groups: dict[tuple[int, ...], Runs] = {}
    for one in runs:
        groups.setdefault(one[1].token_ids, []).append(one)
    answers = [_answer(members, runs[0][1], with_text) for members in groups.values()]
    return {
        "deterministic": mode != "off",
        "mode": mode,
        "products": products,
        "runs": len(runs),
        "distinct": sum(one["logprob_sets"] for one in answers),
        "rolled_back": sum(result.stats.rolled_back for _, result in runs),
        "answers": [answers[0], *sorted(answers[1:], key=lambda one: -one["runs"])],
    }


def _answer(members: Runs, first: Result, with_text: bool) -> Row:
    """Describe a distinct answer.

    first_difference: where its tokens leave those of the first answer. logprob, logprob_bits: of the token there;
    first_logprob, first_logprob_bits: of the first answer's token. logprob_sets: how many distinct bits all its
    logprobs have.
    """
    result = members[0][1]
    bits = {
        struct.pack(f"<{len(one.token_ids)}f", *(each.logprob for each in one.logprobs or ()))
        for _, one in members
    }
    differs = result.token_ids != first.token_ids
    at = _first_difference(first.token_ids, result.token_ids) if differs else None
    here, there = (None if at is None else _logprob_at(one, at) for one in (result, first))
    return {
        "runs": len(members),
        "neighbours": [count for count, _ in members],
        "token_ids": list(result.token_ids),
        "text": result.text if with_text else None,
        "logprob_sets": len(bits),
        "first_difference": at,
        "logprob": here,
        "logprob_bits": _bits(here),
        "first_logprob": there,
        "first_logprob_bits": _bits(there),
    }


def _first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _logprob_at(result: Result, at: int) -> float | None:
    logprobs = result.logprobs or ()
    return logprobs[at].logprob if at < len(logprobs) else None


def _bits(value: float | None) -> str | None:
    return None if value is None else struct.pack(">f", value).hex()


def plot_recording(recording: Row, path: Path) -> None:
    """Draw the file. The path's suffix is the format."""
    ordinary, controls = recording["ordinary"], recording["controls"]
    shown, rest = ordinary["answers"][:_MAX_ROWS], ordinary["answers"][_MAX_ROWS:]
    num_rows = len(shown) + bool(rest) + _GAP + len(controls)
    figure = new_figure(1.75 + num_rows * _ROW_INCHES)
    height = figure.get_figheight()
    panel = figure.add_axes((0.13, 0.62 / height, 0.78, 1 - 1.55 / height))
    for row, one in enumerate(shown):
        at = len(one["token_ids"]) if one["first_difference"] is None else one["first_difference"]
        colours = [_BLUE] * at + [_ORANGE] * (len(one["token_ids"]) - at)
        _draw_row(panel, row, colours, "alone" if one is shown[0] else f"from token {at}", one, ordinary)
    if rest:
        said = f"and {len(rest)} more answers in {sum(one['runs'] for one in rest)} runs"
        panel.text(0, len(shown) + 0.5, said, va="center", fontsize=8.5)
    first = len(shown) + bool(rest) + _GAP
    for number, side in enumerate(controls):  # every run of a control has the same tokens
        one = side["answers"][0]
        _draw_row(panel, first + number, [_GREEN] * len(one["token_ids"]), f"mode {side['mode']}", one, side)
    distinct = max(one["distinct"] for one in controls)
    found = "one answer, to the last bit of every logprob" if distinct == 1 else f"{distinct} answers"
    said = f"The same loads, deterministic: {found}"
    panel.text(0, first - 0.35, said, fontsize=9.5, weight="bold", color=_INK)
    length = max(len(one["token_ids"]) for one in (*shown, *(side["answers"][0] for side in controls)))
    panel.set_xlim(0, length)
    panel.set_ylim(num_rows, 0)
    panel.set_axis_off()
    _write_titles(figure, recording, length)
    figure.savefig(path)


def _draw_row(panel: Any, row: float, colours: Sequence[str], label: str, answer: Row, side: Row) -> None:
    places = [place + 0.05 for place in range(len(colours))]
    count = len(colours)
    panel.barh([row + 0.5] * count, [0.9] * count, left=places, height=0.78, color=list(colours))
    panel.text(-0.4, row + 0.5, label, ha="right", va="center", fontsize=8.5, color=_INK)
    panel.annotate(
        f"{answer['runs']} of {side['runs']}",
        (1.0, row + 0.5),
        xycoords=("axes fraction", "data"),
        xytext=(5, 0),
        textcoords="offset points",
        va="center",
        fontsize=8.5,
        color=_INK,
    )


def _write_titles(figure: Any, recording: Row, length: int) -> None:
    height, ordinary, temperature = (
        figure.get_figheight(),
        recording["ordinary"],
        recording["settings"]["temperature"],
    )
    how = f"temperature {temperature:g}, one seed" if temperature else "temperature 0"
    title = f"One prompt, {how}, {ordinary['runs']} times: {len(ordinary['answers'])} different answers"
    figure.text(0.13, 1 - 0.3 / height, title, fontsize=12.5, weight="bold", color=_INK)
    most = max(count for one in ordinary["answers"] for count in one["neighbours"])
    text = (
        f"Alone and among 1 to {most} other requests; same weights, kernels and settings. "
        f"{length} tokens, left to right."
    )
    figure.text(0.13, 1 - 0.56 / height, text, fontsize=9, color=_FAINT)
    where, model = recording["machine"], recording["model"]
    weights = " shape, random weights" if model["weights"] == "random" else ""
    versions = f"torch {where['torch']}" + (f", triton {where['triton']}" if where["triton"] else "")
    made = f"{where['device']}, {model['name']}{weights}, {model['dtype']}, {versions}, {recording['date']}"
    figure.text(0.13, 0.14 / height, made, fontsize=8.5, color=_FAINT)
    entries = (("as alone", _BLUE), ("other tokens", _ORANGE), ("deterministic", _GREEN))
    for number, (label, colour) in enumerate(entries):
        left = 0.13 + 0.14 * number
        figure.text(left, 0.36 / height, "■", fontsize=10, color=colour)
        figure.text(left + 0.018, 0.36 / height, label, fontsize=8.5, color=_FAINT)


def show(recording: Row) -> None:
    for side in (recording["ordinary"], *recording["controls"]):
        kind, answers = "deterministic" if side["deterministic"] else "ordinary", side["answers"]
        counts = f"{side['runs']} runs, {len(answers)} answers, {side['distinct']} to the bit"
        print(f"{kind} ({side['mode']}): {counts}")
        for one in answers[:8]:
            at = one["first_difference"]
            said = "alone" if at is None else f"other from token {at}"
            beside = f"{min(one['neighbours'])} to {max(one['neighbours'])}"
            print(f"    {one['runs']} runs beside {beside} others: {said}")


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("model", nargs="?", help="default: the default model")
    parser.add_argument("--runs", type=int, default=48, help="in each mode; the first two have no load")
    parser.add_argument("--num-tokens", type=int, default=48, help="longest answer")
    parser.add_argument("--load", type=int, default=31, help="largest number of other requests")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seconds", type=float, default=60.0, help="begin no new load after this time")
    parser.add_argument("--load-format", default="auto")
    parser.add_argument("--kernels", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--num-threads", type=int)
    parser.add_argument("--max-model-len", type=int, default=1024)
    parser.add_argument("--read", type=Path, help="show this recording instead of making one")
    parser.add_argument("--save", type=Path, help="write the recording to this file, as JSON")
    parser.add_argument("--plot", type=Path, help="draw the recording")
    given = parser.parse_args()
    if given.read is not None:
        recording = json.loads(given.read.read_text())
    else:
        config = EngineConfig(
            given.model,
            load_format=given.load_format,
            kernels=given.kernels,
            dtype=given.dtype,
            num_threads=given.num_threads,
            certification="startup",
            max_num_seqs=32,  # enough for 32 short requests; fewer batch sizes to capture and certify
            max_pass_tokens=128,
            max_model_len=given.max_model_len,
        )
        recording = record(build(config), config, given)
    show(recording)
    if given.save is not None:
        given.save.write_text(json.dumps(recording, indent=1) + "\n")
    if given.plot is not None:
        plot_recording(recording, given.plot)
    sys.exit(0 if is_good(recording) else 1)


if __name__ == "__main__":
    main()
