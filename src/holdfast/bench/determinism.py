"""`bench determinism`: every request feature and some combinations inside random loads, on one model.

A request with the guarantee must give one answer, the same in `auto` and in `verify`. A control runs
without the guarantee, on a tiny model made of near ties: it must give several answers, which shows
that the loads can reveal a difference.

On a GPU `verify` gets its candidates from the library's plain products, so that there is something
to roll back, and some features also run as ordinary requests on them. No user has such an engine, so no
speed is measured with it.
"""

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import Literal, cast

from holdfast.bench.features import combine, find_features
from holdfast.bench.load import LoadScale
from holdfast.bench.stress import StressSummary, stress_test
from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.config import EngineConfig
from holdfast.engine.engine import Engine
from holdfast.engine.start.builder import assemble
from holdfast.engine.start.preflight import OpenedModel
from holdfast.errors import InvalidRequest
from holdfast.numerics.backends.select_backend import open_backend
from holdfast.numerics.batch_sizes import padded_batch_sizes
from holdfast.numerics.settings_guard import decide_num_threads
from holdfast.worker.model_runner import ModelRunner

CellStatus = Literal["passed", "failed", "skipped"]

PROMPT = "The tide went out and left the rocks bare, and on every rock"
NUM_COMBINATIONS = 6
MIN_CONTROL_RUNS = 8  # fewer runs may miss a difference
_CONTROL_FEATURES = ("greedy", "repetition penalty", "min tokens", "allowed tokens", "logprobs")
_CONTROL_SCALE = LoadScale(max_background=8, max_prompt_len=48, max_tokens=12)
_SCALE = LoadScale(max_background=4, max_prompt_len=40, max_tokens=8)
# Without injected faults: all rollbacks come from the products.
_GPU_SCALE = LoadScale(max_background=31, max_prompt_len=1200, max_tokens=24, fault_rates=(0.0,))


@dataclass(frozen=True)
class CellResult:
    """One feature on one engine. Without a summary the engine cannot run it; `remark` says why."""

    feature: str
    guarantee: bool
    summary: StressSummary | None
    status: CellStatus
    remark: str = ""

    @property
    def digest(self) -> str:
        """Return a digest of all distinct answers, to compare two processes or machines by eye."""
        answers = sorted(map(repr, self.summary.results)) if self.summary is not None else []
        return hashlib.sha256("".join(answers).encode()).hexdigest()[:8]


def run_cells(engine: Engine, num_runs: int, seed: int, log: Callable[[str], None]) -> Iterator[CellResult]:
    """Run every feature and the combinations with the guarantee. Others in a load use the same features."""
    rng = random.Random(seed)
    single = find_features(engine, engine.tokenizer.encode(PROMPT))
    features = (*single, *(combine(rng, single) for _ in range(NUM_COMBINATIONS)))  # a seed for each cell
    others = [params for one in features if _is_supported(engine, params := one.probe().params)]
    plain = open_plain_engine(engine)
    scale = _SCALE if plain is engine else _GPU_SCALE
    for number, feature in enumerate(features):
        if number % 8 == 0:
            log(f"{number} of {len(features)} cells done")
        test = partial(stress_test, num_runs=num_runs, seed=1000 * seed + number, scale=scale, others=others)
        try:
            found = test(engine, feature.probe(), ("auto", "verify"), verifier=plain)
            yield CellResult(feature.name, True, found, *judge(found))
        except InvalidRequest as error:
            yield CellResult(feature.name, True, None, "skipped", str(error))
        if plain is not engine and feature.name in _CONTROL_FEATURES:
            ordinary = test(plain, feature.probe(deterministic=False), ("off",))
            yield CellResult(feature.name, False, ordinary, "passed")


def judge(summary: StressSummary) -> tuple[CellStatus, str]:
    """Pass a cell with one result and no revoked certificate."""
    if summary.num_revocations:
        return "failed", "a certified pass was not canonical"
    return ("failed", "must be one") if summary.num_distinct != 1 else ("passed", "")


def run_control(num_runs: int, seed: int, num_threads: int | None) -> list[CellResult]:
    """Run some features as ordinary requests on the torch kernels, where every token has a near tie.

    Without torch there are no kernels that differ, and none are run.
    """
    if find_spec("torch") is None:
        return [CellResult("control", False, None, "skipped", "the kernels that differ need torch")]
    from holdfast.models.dummy import DummyCheckpoint, tiny_config

    config = EngineConfig(
        certification="startup",
        device="cpu",
        kernels="torch",
        dtype="fp32",
        max_num_seqs=32,
        max_pass_tokens=64,
        kv_memory="64MiB",
        num_threads=num_threads,
    )
    weights = DummyCheckpoint(tiny_config(), deviation=0.25, twins=True)
    engine = assemble(OpenedModel(config, weights.config), weights)
    features = find_features(engine, engine.tokenizer.encode(PROMPT))
    others = [one.probe().params for one in features]
    found = []
    for number, feature in enumerate(features):
        if feature.name in _CONTROL_FEATURES:
            summary = stress_test(
                engine,
                feature.probe(deterministic=False),
                ("off",),
                max(num_runs, MIN_CONTROL_RUNS),
                seed=1000 * seed + number,
                scale=_CONTROL_SCALE,
                others=others,
            )
            found.append(CellResult(feature.name, False, summary, "passed"))
    return judge_control(found, products_disagree)


def judge_control(results: Sequence[CellResult], disagree: Callable[[], bool]) -> list[CellResult]:
    """Fail all cells if none has several results, unless the products of this CPU cannot differ."""
    if any(one.summary is not None and one.summary.num_distinct > 1 for one in results):
        return list(results)
    if not disagree():
        remark = "one bit class only: this CPU's fp32 product is the same for any number of rows"
        return [replace(one, remark=remark) for one in results]
    remark = "the kernels differ, but the stress test did not notice"
    return [replace(one, status="failed", remark=remark) for one in results]


def products_disagree() -> bool:
    """Return whether the bits of a row of this CPU's fp32 product depend on the number of rows, from 1
    to 16."""
    import torch
    import torch.nn.functional as F

    generator = torch.Generator().manual_seed(0)
    for width, outputs in ((64, 176), (176, 64), (64, 512)):
        x = torch.randn(16, width, generator=generator)  # (rows, width)
        w = torch.randn(outputs, width, generator=generator)  # (outputs, width)
        if any(not torch.equal(F.linear(x[:rows], w)[0], F.linear(x, w)[0]) for rows in (1, 2, 4, 8)):
            return True
    return False


def open_plain_engine(engine: Engine) -> Engine:
    """Return an engine on the same weights with the library's own products; on a CPU it is itself."""
    runner, schedule = cast(ModelRunner, engine.runner), engine.scheduler.config
    decoder = runner._decoder
    if decoder.backend.device.type != "cuda":
        return engine
    split_k = {
        (one.linear.out_features, one.linear.in_features): one.linear.split_k for one in decoder.linears()
    }
    backend = open_backend(
        decoder.dtype,
        kernels="triton",
        num_threads=decide_num_threads(None, decoder.backend.device),
        device=decoder.backend.device,
        vendor_gemm=True,
        split_k=split_k,
    )
    plain = ModelRunner(decoder.with_backend(backend), runner._store)
    canonical = [count * schedule.reference_tokens for count in (1, 2)]
    plain.capture(
        padded_batch_sizes(schedule.max_pass_tokens), canonical, max_len=engine.limits.max_model_len
    )
    opened = engine.restarted(schedule)
    opened.runner = plain
    return opened


def _is_supported(engine: Engine, params: SamplingParams) -> bool:
    """Return whether the model can follow it: some models cannot follow a grammar."""
    try:
        engine.prepare([0], params)
    except InvalidRequest:
        return False
    return True
