"""Records the problem: one prompt, alone and inside loads, with the guarantee off and with it on.

All runs of one recording have the same weights, kernels, schedule and settings. Only the other
requests differ, and with them the batch sizes. Ordinary answers may then differ, because the sums in
a product of another batch size have another order. The same loads with a deterministic probe are
the control: one answer.

On a GPU the ordinary runs use the library's plain products, as an engine with determinism off does.
The control verifies these very products; a second control runs the certified ones.
"""

import datetime
import importlib.metadata
import platform
import random
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import torch

from holdfast.bench.determinism.engine_pair import EnginePair, open_plain_engine
from holdfast.bench.determinism.recording import (
    RecordedAnswer,
    RecordedMachine,
    RecordedModel,
    RecordedSide,
    Recording,
    first_difference,
)
from holdfast.bench.determinism.stress import run_in_load
from holdfast.bench.determinism.stress_load import BackgroundRequest, ProbeRequest, StressLoad
from holdfast.bench.machine import machine_name
from holdfast.core.results import Result
from holdfast.core.sampling_params import SamplingParams
from holdfast.core.step_plan import TokenLogprob
from holdfast.engine.builder import build
from holdfast.engine.config import EngineConfig
from holdfast.engine.engine import Engine
from holdfast.engine.status import ShowProgress
from holdfast.models.locate import locate
from holdfast.numerics.ops import Backend
from holdfast.scheduler.policy import DeterminismMode
from holdfast.text.chat_template import ChatTemplate
from holdfast.text.tokenizer import Tokenizer
from holdfast.version import __version__
from holdfast.worker.device import device_name
from holdfast.worker.model_runner import ModelRunner

QUESTION = "In two sentences: what does a holdfast do for seaweed?"
NUM_ALONE = 2  # alone twice: without neighbours nothing differs
_MAX_PROMPT_LEN, _MAX_TOKENS = 48, 64  # of a neighbour
_SHORT = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


@dataclass(frozen=True)
class RecordSettings:
    """What is run. After `seconds`, no new load starts."""

    runs: int = 48
    num_tokens: int = 48
    load: int = 31  # the largest number of other requests
    temperature: float = 0.0
    seed: int = 7
    seconds: float = 60.0
    log: Callable[[str], None] = field(default=lambda text: None)


def open_recorded(config: EngineConfig, show: ShowProgress | None = None) -> tuple[EnginePair, RecordedModel]:
    """Open the engines of a recording: one as configured, one with the library's plain products."""
    exact = build(config, show)
    return EnginePair(exact, open_plain_engine(exact, show)), _describe_model(config, exact)


def record_with(pair: EnginePair, model: RecordedModel, settings: RecordSettings) -> Recording:
    """Record the answers of two engines with the same weights."""
    exact = pair.exact
    prompt = _prompt_ids(exact.tokenizer)
    params = SamplingParams(
        max_tokens=settings.num_tokens,
        temperature=settings.temperature,
        top_p=0.95 if settings.temperature else 1.0,
        seed=settings.seed,
        ignore_eos=model.weights == "random",
        logprobs=1,
    )
    sides = _sides(pair)
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


def _sides(pair: EnginePair) -> list[_Side]:
    """The ordinary runs first, then the controls."""
    certified = "certified" if _backend(pair.exact).device.type == "cuda" else "library"
    return [
        _Side(pair.plain, "off", "library"),
        _Side(pair.plain, "verify", "library"),
        _Side(pair.exact, "auto", certified),
    ]


def _run_sides(sides: Sequence[_Side], probe: ProbeRequest, settings: RecordSettings) -> None:
    """Run every load in all modes before the next load."""
    deadline = time.monotonic() + settings.seconds
    for number in range(settings.runs):
        if number > NUM_ALONE and time.monotonic() > deadline:
            settings.log(f"stopped after {number} of {settings.runs} loads: {settings.seconds:g} s are over")
            return
        load = _load(number, settings.load, sides[0].engine)
        for side in sides:
            side.run(load, probe)
        if number % 8 == 7:
            settings.log(f"{number + 1} of {settings.runs} loads")


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
        device=device_name(device) if device.type == "cuda" else machine_name(),
        kind=device.type,
        threads=torch.get_num_threads(),
        torch=torch.__version__,
        triton=importlib.metadata.version("triton") if device.type == "cuda" else None,
        python=platform.python_version(),
        holdfast=__version__,
    )
