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
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import msgspec
import torch

from holdfast.bench.determinism import open_plain_engine
from holdfast.bench.load import BackgroundRequest, ProbeRequest, StressLoad
from holdfast.bench.stress import run_in_load
from holdfast.core.results import Result
from holdfast.core.sampling_params import SamplingParams
from holdfast.core.step_plan import TokenLogprob
from holdfast.engine.config import EngineConfig
from holdfast.engine.engine import Engine
from holdfast.engine.start.builder import build
from holdfast.models.locate import locate
from holdfast.numerics.ops import Backend
from holdfast.scheduler.policy import DeterminismMode
from holdfast.text.chat_template import ChatTemplate
from holdfast.text.tokenizer import Tokenizer
from holdfast.version import __version__
from holdfast.worker.model_runner import ModelRunner
from measure import COLOURS, machine, new_figure

QUESTION = "In two sentences: what does a holdfast do for seaweed?"
NUM_ALONE = 2  # alone twice: without neighbours nothing differs
_MAX_PROMPT_LEN, _MAX_TOKENS = 48, 64  # of a neighbour
_SHORT = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
_MAX_ROWS = 16
_GREEN, _ORANGE = COLOURS[0], COLOURS[2]
_SAME, _OTHER = "#C9DFEE", _ORANGE
_INK, _FAINT = "#222222", "#666666"
_GAP = 1.6  # rows between the two sides
_ROW_INCHES = 0.235


@dataclass(frozen=True)
class RecordedMachine:
    """Where a recording was made. device is the name of what computed."""

    device: str
    kind: str
    threads: int
    torch: str
    triton: str | None
    python: str
    holdfast: str


@dataclass(frozen=True)
class RecordedModel:
    """weights are "real" or "random"."""

    name: str
    weights: str
    dtype: str
    kernels: str


@dataclass(frozen=True)
class RecordedAnswer:
    """A distinct answer: its tokens, and how many runs gave it.

    neighbours are the numbers of other requests in these runs. first_difference is the position at
    which its tokens leave those of the first answer; logprob and logprob_bits are of the token there,
    the first_ ones of the first answer's token. logprob_sets counts the distinct bits of all its
    logprobs.
    """

    runs: int
    neighbours: list[int]
    token_ids: list[int]
    text: str | None
    logprob_sets: int
    first_difference: int | None = None
    logprob: float | None = None
    logprob_bits: str | None = None
    first_logprob: float | None = None
    first_logprob_bits: str | None = None


@dataclass(frozen=True)
class RecordedSide:
    """All answers of the runs in one mode. The first is the one given alone."""

    deterministic: bool
    mode: str
    products: str
    runs: int
    distinct: int  # in tokens or in a bit of a logprob
    rolled_back: int
    answers: list[RecordedAnswer]


@dataclass(frozen=True)
class Recording:
    """A file. Its field names are those of the JSON."""

    date: str
    machine: RecordedMachine
    model: RecordedModel
    prompt: str
    prompt_ids: list[int]
    settings: dict[str, float | int | None]
    num_alone: int
    seconds: float
    ordinary: RecordedSide
    controls: list[RecordedSide]

    @property
    def is_good(self) -> bool:
        """Whether ordinary answers differ, and the deterministic ones are one and the same."""
        return (
            self.ordinary.distinct > 1
            and all(one.distinct == 1 for one in self.controls)
            and len({tuple(one.answers[0].token_ids) for one in self.controls}) == 1
        )


def first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    """The first position at which two different answers have different tokens, or one has ended."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


@dataclass(frozen=True)
class RecordSettings:
    """What is run. After `seconds`, no new load starts."""

    runs: int = 48
    num_tokens: int = 48
    load: int = 31  # the largest number of other requests
    temperature: float = 0.0
    seed: int = 7
    seconds: float = 60.0


def record(exact: Engine, model: RecordedModel, settings: RecordSettings) -> Recording:
    """Record the answers of an engine, and of one with the same weights and the library's plain products."""
    prompt = _prompt_ids(exact.tokenizer)
    params = SamplingParams(
        max_tokens=settings.num_tokens,
        temperature=settings.temperature,
        top_p=0.95 if settings.temperature else 1.0,
        seed=settings.seed,
        ignore_eos=model.weights == "random",
        logprobs=1,
    )
    sides = _sides(exact, open_plain_engine(exact))
    started = time.monotonic()
    _run_sides(sides, ProbeRequest(prompt, params), settings)
    seconds = round(time.monotonic() - started, 1)
    ordinary, *controls = (side.recorded(text=model.weights == "real") for side in sides)
    return Recording(
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        machine=_describe_machine(exact),
        model=model,
        prompt=QUESTION,
        prompt_ids=list(prompt),
        settings={
            "max_tokens": params.max_tokens,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "seed": params.seed,
        },
        num_alone=NUM_ALONE,
        seconds=seconds,
        ordinary=ordinary,
        controls=controls,
    )


@dataclass
class _Side:
    """The runs of one mode so far."""

    engine: Engine
    mode: DeterminismMode
    products: str
    results: list[tuple[int, Result]] = field(default_factory=list)  # with the number of neighbours

    @property
    def deterministic(self) -> bool:
        return self.mode != "off"

    def run(self, load: StressLoad, probe: ProbeRequest) -> None:
        schedule = replace(
            self.engine.scheduler.config, determinism=self.mode, prefix_cache=False, speculation="off"
        )
        load = replace(load, schedule=schedule, num_pages=self.engine.scheduler.pool.num_pages)
        params = replace(probe.params, deterministic=self.deterministic)
        run = run_in_load(self.engine, load, ProbeRequest(probe.prompt, params))
        self.results.append((len(load.background), run.result))

    def recorded(self, *, text: bool) -> RecordedSide:
        groups: dict[tuple[int, ...], list[tuple[int, Result]]] = {}
        for one in self.results:
            groups.setdefault(one[1].token_ids, []).append(one)
        first = self.results[0][1]
        answers = [_answer(members, first, text=text) for members in groups.values()]
        common = sorted(answers[1:], key=lambda one: -one.runs)
        return RecordedSide(
            deterministic=self.deterministic,
            mode=self.mode,
            products=self.products,
            runs=len(self.results),
            distinct=sum(one.logprob_sets for one in answers),
            rolled_back=sum(result.stats.rolled_back for _, result in self.results),
            answers=[answers[0], *common],
        )


def _sides(exact: Engine, plain: Engine) -> list[_Side]:
    """The ordinary runs first, then the controls."""
    certified = "certified" if _backend(exact).device.type == "cuda" else "library"
    return [
        _Side(plain, "off", "library"),
        _Side(plain, "verify", "library"),
        _Side(exact, "auto", certified),
    ]


def _run_sides(sides: Sequence[_Side], probe: ProbeRequest, settings: RecordSettings) -> None:
    """Run every load in all modes before the next load."""
    deadline = time.monotonic() + settings.seconds
    for number in range(settings.runs):
        if number > NUM_ALONE and time.monotonic() > deadline:
            print(f"stopped after {number} of {settings.runs} loads: {settings.seconds:g} s are over")
            return
        load = _load(number, settings.load, sides[0].engine)
        for side in sides:
            side.run(load, probe)
        if number % 8 == 7:
            print(f"{number + 1} of {settings.runs} loads")


def _load(number: int, largest: int, engine: Engine) -> StressLoad:
    """Load number 0 and 1 are empty. All others are random, with one neighbour or more."""
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


def _answer(members: Sequence[tuple[int, Result]], first: Result, *, text: bool) -> RecordedAnswer:
    result = members[0][1]
    answer = RecordedAnswer(
        runs=len(members),
        neighbours=[count for count, _ in members],
        token_ids=list(result.token_ids),
        text=result.text if text else None,
        logprob_sets=len({_all_bits(one.logprobs or ()) for _, one in members}),
    )
    if result.token_ids == first.token_ids:
        return answer
    at = first_difference(first.token_ids, result.token_ids)
    here, there = _logprob_at(result, at), _logprob_at(first, at)
    return replace(
        answer,
        first_difference=at,
        logprob=here,
        logprob_bits=None if here is None else _bits(here),
        first_logprob=there,
        first_logprob_bits=None if there is None else _bits(there),
    )


def _logprob_at(result: Result, at: int) -> float | None:
    logprobs = result.logprobs or ()
    return logprobs[at].logprob if at < len(logprobs) else None


def _bits(value: float) -> str:
    return struct.pack(">f", value).hex()


def _all_bits(logprobs: Sequence[TokenLogprob]) -> bytes:
    return b"".join(struct.pack("<f", one.logprob) for one in logprobs)


def _prompt_ids(tokenizer: Tokenizer) -> tuple[int, ...]:
    """The question through the chat template, where the model has one."""
    if tokenizer.chat_template is None:
        return tuple(tokenizer.encode(QUESTION))
    text = ChatTemplate.of(tokenizer).render([{"role": "user", "content": QUESTION}])
    return tuple(tokenizer.encode(text, add_special_tokens=False))


def _backend(engine: Engine) -> Backend:
    return cast(ModelRunner, engine.runner)._decoder.backend


def _describe_model(config: EngineConfig, engine: Engine) -> RecordedModel:
    recipe = _backend(engine).recipe
    random_weights = config.load_format == "dummy"
    return RecordedModel(
        name=str(config.model) if random_weights else locate(config.model).name,
        weights="random" if random_weights else "real",
        dtype=_SHORT.get(recipe.dtype, recipe.dtype),
        kernels=recipe.path,
    )


def _describe_machine(engine: Engine) -> RecordedMachine:
    device = _backend(engine).device
    return RecordedMachine(
        device=machine(),
        kind=device.type,
        threads=torch.get_num_threads(),
        torch=torch.__version__,
        triton=importlib.metadata.version("triton") if device.type == "cuda" else None,
        python=platform.python_version(),
        holdfast=__version__,
    )


def plot_recording(recording: Recording, path: Path) -> None:
    """Draw the file. The path's suffix is the format."""
    ordinary, controls = recording.ordinary, recording.controls
    shown = ordinary.answers[:_MAX_ROWS]
    num_rows = len(shown) + (len(ordinary.answers) > _MAX_ROWS) + _GAP + len(controls)
    figure = new_figure(1.75 + num_rows * _ROW_INCHES)
    panel = figure.add_axes((0.13, 0.62 / figure.get_figheight(), 0.78, 1 - 1.55 / figure.get_figheight()))
    length = max(len(one.token_ids) for one in (*shown, *(side.answers[0] for side in controls)))
    for row, answer in enumerate(shown):
        _draw_row(panel, row, answer, shown[0], ordinary)
    row = len(shown)
    if len(ordinary.answers) > _MAX_ROWS:
        rest = ordinary.answers[_MAX_ROWS:]
        runs = sum(one.runs for one in rest)
        panel.text(0, row + 0.5, f"and {len(rest)} more answers in {runs} runs", va="center", fontsize=8.5)
        row += 1
    for number, side in enumerate(controls):
        _draw_control(panel, row + _GAP + number, side)
    panel.text(0, row + _GAP - 0.35, _control_title(controls), fontsize=9.5, weight="bold", color=_INK)
    panel.set_xlim(0, length)
    panel.set_ylim(num_rows, 0)
    panel.set_axis_off()
    _write_titles(figure, recording, length)
    figure.savefig(path)


def _draw_row(
    panel: Any, row: float, answer: RecordedAnswer, first: RecordedAnswer, side: RecordedSide
) -> None:
    at = len(answer.token_ids) if answer.first_difference is None else answer.first_difference
    colours = [_SAME] * at + [_OTHER] * (len(answer.token_ids) - at)
    _draw_cells(panel, row, colours)
    parted = "alone" if answer is first else f"from token {at}"
    panel.text(-0.4, row + 0.5, parted, ha="right", va="center", fontsize=8.5, color=_INK)
    _write_count(panel, row, answer.runs, side.runs)


def _draw_control(panel: Any, row: float, side: RecordedSide) -> None:
    """Every run of a control has the same tokens. If not, each answer would be a row of its own."""
    for answer in side.answers[:1]:
        _draw_cells(panel, row, [_GREEN] * len(answer.token_ids))
        panel.text(-0.4, row + 0.5, f"mode {side.mode}", ha="right", va="center", fontsize=8.5, color=_INK)
        _write_count(panel, row, answer.runs, side.runs)


def _draw_cells(panel: Any, row: float, colours: Sequence[str]) -> None:
    panel.barh(
        [row + 0.5] * len(colours),
        [0.9] * len(colours),
        left=[place + 0.05 for place in range(len(colours))],
        height=0.78,
        color=list(colours),
    )


def _write_count(panel: Any, row: float, runs: int, total: int) -> None:
    panel.annotate(
        f"{runs} of {total}",
        (1.0, row + 0.5),
        xycoords=("axes fraction", "data"),
        xytext=(5, 0),
        textcoords="offset points",
        va="center",
        fontsize=8.5,
        color=_INK,
    )


def _control_title(controls: Sequence[RecordedSide]) -> str:
    distinct = max(one.distinct for one in controls)
    found = "one answer, to the last bit of every logprob" if distinct == 1 else f"{distinct} answers"
    return f"The same loads, deterministic: {found}"


def _write_titles(figure: Any, recording: Recording, length: int) -> None:
    height, ordinary = figure.get_figheight(), recording.ordinary
    settings = recording.settings
    how = (
        "temperature 0"
        if not settings["temperature"]
        else f"temperature {settings['temperature']:g}, one seed"
    )
    title = f"One prompt, {how}, {ordinary.runs} times: {len(ordinary.answers)} different answers"
    figure.text(0.13, 1 - 0.3 / height, title, fontsize=12.5, weight="bold", color=_INK)
    text = (
        f"Alone and among 1 to {_most(ordinary)} other requests; same weights, kernels and settings. "
        f"{length} tokens, left to right."
    )
    figure.text(0.13, 1 - 0.56 / height, text, fontsize=9, color=_FAINT)
    machine, model = recording.machine, recording.model
    weights = " shape, random weights" if model.weights == "random" else ""
    versions = f"torch {machine.torch}" + (f", triton {machine.triton}" if machine.triton else "")
    made = f"{machine.device}, {model.name}{weights}, {model.dtype}, {versions}, {recording.date}"
    figure.text(0.13, 0.14 / height, made, fontsize=8.5, color=_FAINT)
    entries = [("as alone", _SAME), ("other tokens", _OTHER), ("deterministic", _GREEN)]
    _draw_key(figure, entries, 0.36 / height)


def _draw_key(figure: Any, entries: Sequence[tuple[str, str]], bottom: float) -> None:
    for number, (label, colour) in enumerate(entries):
        left = 0.13 + 0.14 * number
        figure.text(left, bottom, "■", fontsize=10, color=colour)
        figure.text(left + 0.018, bottom, label, fontsize=8.5, color=_FAINT)


def _most(side: RecordedSide) -> int:
    return max(count for one in side.answers for count in one.neighbours)


def show(recording: Recording) -> None:
    for side in (recording.ordinary, *recording.controls):
        kind = "deterministic" if side.deterministic else "ordinary"
        print(
            f"{kind} ({side.mode}): {side.runs} runs, {len(side.answers)} answers, {side.distinct} to the bit"
        )
        for one in side.answers[:8]:
            at = "alone" if one.first_difference is None else f"other from token {one.first_difference}"
            print(f"    {one.runs} runs beside {min(one.neighbours)} to {max(one.neighbours)} others: {at}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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
        recording = msgspec.json.decode(given.read.read_bytes(), type=Recording)
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
        engine = build(config)
        settings = RecordSettings(
            given.runs, given.num_tokens, given.load, given.temperature, seconds=given.seconds
        )
        recording = record(engine, _describe_model(config, engine), settings)
    show(recording)
    if given.save is not None:
        given.save.write_text(json.dumps(asdict(recording), indent=1) + "\n")
    if given.plot is not None:
        plot_recording(recording, given.plot)
    sys.exit(0 if recording.is_good else 1)


if __name__ == "__main__":
    main()
