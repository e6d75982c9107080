"""The stress test matrix: every feature and some combinations, on several models, kernels and
dtypes.

With the guarantee, every cell must give one result. Some cells run without it, on library kernels
and a model made of near ties. One of them must give several results: this shows that the loads can
reveal a difference. A cell that cannot run on this machine is skipped with a reason.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F

from holdfast.bench.determinism.features import Feature, combine, find_features
from holdfast.bench.determinism.stress import StressSummary, stress_test
from holdfast.bench.determinism.stress_load import LoadScale
from holdfast.bench.tiny import tiny_engine
from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.config import EngineConfig
from holdfast.engine.engine import Engine
from holdfast.errors import ConfigError, InvalidRequest
from holdfast.numerics.recipe import KernelBackend
from holdfast.scheduler.policy import DeterminismMode

CellStatus = Literal["passed", "failed", "skipped"]

PROMPT = "The tide went out and left the rocks bare, and on every rock"
TINY: tuple[tuple[KernelBackend, str], ...] = (
    ("c", "fp32"),
    ("c", "bf16"),
    ("torch", "fp32"),
    ("torch", "bf16"),
)
NUM_COMBINATIONS = 6
MIN_RUNS_OFF = 8  # fewer runs may miss a difference
_FEATURES_OFF = ("greedy", "repetition penalty", "min tokens", "allowed tokens", "logprobs")
_SCALE = LoadScale(max_background=8, max_prompt_len=48, max_tokens=12)
_LARGE_MODEL_SCALE = LoadScale(max_background=4, max_prompt_len=40, max_tokens=8)
_SHORT = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


@dataclass(frozen=True)
class MatrixCell:
    """One feature on one engine. Without the guarantee, the probe is an ordinary request."""

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
class CellResult:
    """The result of a cell. summary is None where the cell could not run; remark says why."""

    cell: MatrixCell
    summary: StressSummary | None
    status: CellStatus
    remark: str = ""


@dataclass(frozen=True)
class StressSettings:
    """The number of random loads of each cell, their seed, and where progress is reported.

    first_run is the number of the first load: two parts of a long run differ in it.
    """

    num_runs: int
    seed: int
    log: Callable[[str], None]
    first_run: int = 0


def run_matrix(
    engine: Engine,
    name: str,
    num_threads: int | None,
    settings: StressSettings,
    model_runs: int | None = None,
) -> Iterator[CellResult]:
    """All cells of the given model, then those of the built-in tiny models.

    model_runs is the number of runs of the given model's cells, if it is another one.
    """
    num_runs = settings.num_runs if model_runs is None else model_runs
    if num_runs:
        yield from run_model(engine, name, replace(settings, num_runs=num_runs))
    for tiny_kernels, tiny_dtype in TINY:
        yield from run_tiny(tiny_kernels, tiny_dtype, num_threads, settings)


def run_model(engine: Engine, name: str, settings: StressSettings) -> Iterator[CellResult]:
    """All cells of the given model."""
    kernels, dtype = _recipe(engine)
    cell = MatrixCell("", name, kernels, dtype)
    yield from EngineMatrix(engine, cell, _LARGE_MODEL_SCALE, settings).run()


def judge(cell: MatrixCell, summary: StressSummary) -> tuple[CellStatus, str]:
    """With the guarantee: one result, no revoked certificate.

    Without it, any number of results passes.
    """
    if summary.num_revocations:
        return "failed", "a certified pass was not canonical"
    if cell.guarantee and summary.num_distinct != 1:
        return "failed", "must be one"
    return "passed", ""


def judge_without_guarantee(
    results: Sequence[CellResult], kernels_disagree: Callable[[], bool]
) -> list[CellResult]:
    """One cell without the guarantee must have several results, unless the kernels of this CPU
    cannot differ.
    """
    if any(one.summary is not None and one.summary.num_distinct > 1 for one in results):
        return list(results)
    if not kernels_disagree():
        remark = "one bit class only: this CPU's fp32 product is the same for any number of rows"
        return [replace(one, remark=remark) for one in results]
    remark = "the kernels differ, but the stress test did not notice"
    return [replace(one, status="failed", remark=remark) for one in results]


def products_disagree() -> bool:
    """Whether the bits of a row of this CPU's fp32 product depend on the number of rows, from 1 to
    16.
    """
    generator = torch.Generator().manual_seed(0)
    for width, outputs in ((64, 176), (176, 64), (64, 512)):
        x = torch.randn(16, width, generator=generator)  # (rows, width)
        w = torch.randn(outputs, width, generator=generator)  # (outputs, width)
        if any(not torch.equal(F.linear(x[:rows], w)[0], F.linear(x, w)[0]) for rows in (1, 2, 4, 8)):
            return True
    return False


class EngineMatrix:
    """The cells of one engine. Background requests use the same features as the probes."""

    def __init__(self, engine: Engine, cell: MatrixCell, scale: LoadScale, settings: StressSettings) -> None:
        self._engine = engine
        self._cell = cell
        self._scale = scale
        self._settings = settings
        rng = random.Random(f"{settings.seed}, {cell.name}")
        single = find_features(engine, engine.tokenizer.encode(PROMPT))
        combined = tuple(combine(rng, single) for _ in range(NUM_COMBINATIONS))
        self._features = (*single, *combined)
        self._others = [params for one in self._features if self._is_supported(params := one.probe().params)]

    def run(self) -> Iterator[CellResult]:
        """Every feature and the combinations, with the guarantee."""
        cell, log = self._cell, self._settings.log
        for number, feature in enumerate(self._features):
            if number % 8 == 0:
                log(
                    f"{cell.model}, {cell.kernels}, {cell.dtype}: {number} of {len(self._features)} cells done"
                )
            yield self._run_cell(replace(cell, feature=feature.name), feature, number)

    def run_without_guarantee(self) -> list[CellResult]:
        """Some features without the guarantee."""
        off = replace(self._cell, guarantee=False)
        self._settings.log(f"{off.model}, {off.kernels}, {off.dtype}: guarantee off")
        found = [
            self._run_cell(replace(off, feature=feature.name), feature, number)
            for number, feature in enumerate(self._features)
            if feature.name in _FEATURES_OFF
        ]
        return judge_without_guarantee(found, products_disagree)

    def _run_cell(self, cell: MatrixCell, feature: Feature, number: int) -> CellResult:
        """Every cell has its own random loads."""
        num_runs = self._settings.num_runs
        probe = feature.probe(deterministic=cell.guarantee)
        try:
            summary = stress_test(
                self._engine,
                probe,
                cell.modes,
                num_runs if cell.guarantee else max(num_runs, MIN_RUNS_OFF),
                seed=1000 * self._settings.seed + number,
                first_run=self._settings.first_run,
                scale=self._scale,
                others=self._others,
            )
        except InvalidRequest as error:
            return CellResult(cell, None, "skipped", str(error))
        return CellResult(cell, summary, *judge(cell, summary))

    def _is_supported(self, params: SamplingParams) -> bool:
        """Some models cannot follow a grammar."""
        try:
            self._engine.prepare([0], params)
        except InvalidRequest:
            return False
        return True


def run_tiny(
    kernels: KernelBackend, dtype: str, num_threads: int | None, settings: StressSettings
) -> Iterator[CellResult]:
    """Random weights; in fp32 every token has a near tie.

    Library kernels also run without the guarantee there.
    """
    near_ties = dtype == "fp32"
    cell = MatrixCell("all", "near ties" if near_ties else "tiny", kernels, dtype)
    config = EngineConfig(
        certification="startup",
        kernels=kernels,
        dtype=dtype,
        max_num_seqs=32,
        kv_memory="64MiB",
        num_threads=num_threads,
    )
    try:
        engine = tiny_engine(config, near_ties=near_ties)
    except ConfigError as error:
        if kernels != "c":
            raise
        yield CellResult(cell, None, "skipped", str(error))
        return
    matrix = EngineMatrix(engine, cell, _SCALE, settings)
    yield from matrix.run()
    if kernels == "torch" and near_ties:
        yield from matrix.run_without_guarantee()


def _recipe(engine: Engine) -> tuple[str, str]:
    """The engine's backend and dtype."""
    parts = engine.fingerprint.parts
    recipe, dtype = parts["recipe"], str(parts["dtype"])
    assert isinstance(recipe, Mapping)
    return str(recipe["path"]), _SHORT.get(dtype, dtype)
