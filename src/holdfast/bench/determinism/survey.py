"""The needle over many cells: each feature and some combinations, on several models, kernels and dtypes; and some without
the guarantee.

With the guarantee every cell must give one answer. Without it, on the library's kernels and a model made of near ties,
there must be several: those cells show that the loads do prick. A cell that cannot run here is left out, and says so.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F

from holdfast.bench.determinism.features import Feature, combine, find_features
from holdfast.bench.determinism.stress import Tally, prick
from holdfast.bench.determinism.stress_load import Scale
from holdfast.bench.tiny import tiny_engine
from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.config import EngineConfig
from holdfast.engine.engine import Engine
from holdfast.errors import ConfigError, InvalidRequest
from holdfast.numerics.recipe import KernelBackend
from holdfast.scheduler.policy import DeterminismMode

Tell = Callable[[str], None]
Verdict = Literal["good", "bad", "left out"]

PROMPT = "The tide went out and left the rocks bare, and on every rock"
TINY: tuple[tuple[KernelBackend, str], ...] = (
    ("c", "fp32"),
    ("c", "bf16"),
    ("torch", "fp32"),
    ("torch", "bf16"),
)
NUM_COMBINATIONS = 6
MIN_RUNS_OFF = 8  # few runs can miss a difference that is there
_ASKED_OFF = ("greedy", "repetition penalty", "min tokens", "allowed tokens", "logprobs")
_SCALE = Scale(max_neighbours=8, max_prompt=48, max_tokens=12)
_LARGE_SCALE = Scale(max_neighbours=4, max_prompt=40, max_tokens=8)  # of a model that takes its time
_SHORT = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


@dataclass(frozen=True)
class Cell:
    """One thing asked of one engine. Without the guarantee the request is an ordinary one."""

    feature: str
    model: str
    kernels: str
    dtype: str
    guarantee: bool = True

    @property
    def modes(self) -> tuple[DeterminismMode, ...]:
        return ("auto", "verify") if self.guarantee else ("off",)

    @property
    def name(self) -> str:
        off = "" if self.guarantee else ", guarantee off"
        return f"{self.feature} ({self.model}, {self.kernels}, {self.dtype}{off})"


@dataclass(frozen=True)
class Finding:
    """What a cell gave; tally is None where it could not run, and the remark says why."""

    cell: Cell
    tally: Tally | None
    verdict: Verdict
    remark: str = ""


@dataclass(frozen=True)
class Loads:
    """How many random loads a cell gets, and from which seed."""

    num_runs: int
    seed: int
    tell: Tell


def survey(engine: Engine, name: str, num_threads: int | None, loads: Loads) -> Iterator[Finding]:
    """The chosen model first, then the built-in tiny ones."""
    kernels, dtype = _recipe(engine)
    yield from Ground(engine, Cell("", name, kernels, dtype), _LARGE_SCALE, loads).survey()
    for tiny_kernels, tiny_dtype in TINY:
        yield from _survey_tiny(tiny_kernels, tiny_dtype, num_threads, loads)


def judge(cell: Cell, tally: Tally) -> tuple[Verdict, str]:
    """One answer with the guarantee, and no certificate that turned out wrong; without it anything goes."""
    if tally.num_revocations:
        return "bad", "a certified pass was not canonical"
    if cell.guarantee and tally.num_distinct != 1:
        return "bad", "must be one"
    return "good", ""


def judge_pricks(findings: Sequence[Finding], kernels_disagree: Callable[[], bool]) -> list[Finding]:
    """Cells without the guarantee: one of them must have given several answers, unless this CPU's kernels cannot differ."""
    if any(one.tally is not None and one.tally.num_distinct > 1 for one in findings):
        return list(findings)
    if not kernels_disagree():
        remark = "one bit class only: this CPU's fp32 product is the same for any number of rows"
        return [replace(one, remark=remark) for one in findings]
    remark = "the kernels differ, the needle did not notice"
    return [replace(one, verdict="bad", remark=remark) for one in findings]


def products_disagree() -> bool:
    """Whether this CPU's fp32 product gives a row other bits among few rows than among 16."""
    generator = torch.Generator().manual_seed(0)
    for width, outputs in ((64, 176), (176, 64), (64, 512)):
        x = torch.randn(16, width, generator=generator)  # (rows, width)
        w = torch.randn(outputs, width, generator=generator)  # (outputs, width)
        if any(not torch.equal(F.linear(x[:rows], w)[0], F.linear(x, w)[0]) for rows in (1, 2, 4, 8)):
            return True
    return False


class Ground:
    """One engine, and what is asked of it. Neighbours ask for the same things as the needle."""

    def __init__(self, engine: Engine, like: Cell, scale: Scale, loads: Loads) -> None:
        self._engine = engine
        self._like = like
        self._scale = scale
        self._loads = loads
        rng = random.Random(f"{loads.seed}, {like.name}")
        single = find_features(engine, engine.tokenizer.encode(PROMPT))
        combined = tuple(combine(rng, single) for _ in range(NUM_COMBINATIONS))
        self._features = (*single, *combined)
        self._others = [params for one in self._features if self._may_ask(params := one.needle().params)]

    def survey(self) -> Iterator[Finding]:
        """Every feature, then combinations, with the guarantee."""
        like, tell = self._like, self._loads.tell
        for number, feature in enumerate(self._features):
            if number % 8 == 0:
                tell(
                    f"{like.model}, {like.kernels}, {like.dtype}: {number} of {len(self._features)} cells done"
                )
            yield self._prick(replace(like, feature=feature.name), feature, number)

    def survey_off(self) -> list[Finding]:
        """Some features without the guarantee."""
        off = replace(self._like, guarantee=False)
        self._loads.tell(f"{off.model}, {off.kernels}, {off.dtype}: guarantee off")
        found = [
            self._prick(replace(off, feature=feature.name), feature, number)
            for number, feature in enumerate(self._features)
            if feature.name in _ASKED_OFF
        ]
        return judge_pricks(found, products_disagree)

    def _prick(self, cell: Cell, feature: Feature, number: int) -> Finding:
        """Each cell has loads of its own."""
        num_runs = self._loads.num_runs if cell.guarantee else max(self._loads.num_runs, MIN_RUNS_OFF)
        needle = feature.needle(deterministic=cell.guarantee)
        seed = 1000 * self._loads.seed + number
        try:
            tally = prick(
                self._engine, needle, cell.modes, num_runs, seed=seed, scale=self._scale, others=self._others
            )
        except InvalidRequest as error:
            return Finding(cell, None, "left out", str(error))
        return Finding(cell, tally, *judge(cell, tally))

    def _may_ask(self, params: SamplingParams) -> bool:
        """Some models cannot follow a form."""
        try:
            self._engine.prepare([0], params)
        except InvalidRequest:
            return False
        return True


def _survey_tiny(
    kernels: KernelBackend, dtype: str, num_threads: int | None, loads: Loads
) -> Iterator[Finding]:
    """Random weights; in fp32 every token has a near twin. There the library's kernels are also asked without guarantee."""
    twins = dtype == "fp32"
    like = Cell("all", "twins" if twins else "tiny", kernels, dtype)
    config = EngineConfig(
        kernels=kernels, dtype=dtype, max_num_seqs=32, kv_memory="64MiB", num_threads=num_threads
    )
    try:
        engine = tiny_engine(config, twins=twins)
    except ConfigError as error:
        if kernels != "c":
            raise
        yield Finding(like, None, "left out", str(error))
        return
    ground = Ground(engine, like, _SCALE, loads)
    yield from ground.survey()
    if kernels == "torch" and twins:
        yield from ground.survey_off()


def _recipe(engine: Engine) -> tuple[str, str]:
    """The backend and dtype an engine's certificate was made for."""
    recipe = engine.certificate.subject["recipe"] if engine.certificate is not None else {}
    assert isinstance(recipe, dict)
    dtype = str(recipe.get("dtype", "any"))
    return str(recipe.get("path", "any")), _SHORT.get(dtype, dtype)
