"""The needle on a GPU: one greedy and one sampled request, again and again inside random loads, in `auto`, in `verify` and
with the guarantee off.

`verify` and `off` run plain products, so that there is something to roll back. With the guarantee the answer must be one,
over both modes, to the bit of every logprob; off, on a model whose plain products have several bit classes, there should be
several.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from holdfast.bench.determinism.stress import Outcome, Tally, run_in
from holdfast.bench.determinism.stress_load import Needle, Scale, draw
from holdfast.bench.gpu.engines import Twins, open_twins, plain_twin
from holdfast.bench.gpu.report import Desk, Needles, Pricks
from holdfast.bench.gpu.settings import TINY, GpuSettings
from holdfast.core.results import Stats
from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.builder import build
from holdfast.engine.config import EngineConfig
from holdfast.numerics.recipe import KernelBackend
from holdfast.scheduler.policy import DeterminismMode

TEXT = "The tide went out and left the rocks bare, and on every rock the weed held fast; then"
MODES: tuple[DeterminismMode, ...] = ("auto", "verify", "off")
_SCALE = Scale(max_neighbours=31, max_prompt=700, max_tokens=24, lies=(0.0,))  # rollbacks are to be real ones
_TINY_SCALE = Scale(max_neighbours=4, max_prompt=40, max_tokens=6, lies=(0.0,))
_MAX_LEN = 2048
_POSITIONS = 64 * 1024


@dataclass
class Bout:
    """One needle in one mode, as far as it came."""

    mode: DeterminismMode
    asked: str
    needle: Needle
    tally: Tally

    def report(self, model: str) -> Pricks:
        tally, stats = self.tally, self.tally.stats
        return Pricks(
            model=model,
            mode=self.mode,
            asked=self.asked,
            guarantee=self.mode != "off",
            runs=tally.num_runs,
            distinct=tally.num_distinct,
            distinct_tokens=len({_tokens(outcome) for outcome in tally.outcomes}),
            candidates=stats.candidates,
            rolled_back=stats.rolled_back,
            preemptions=stats.preemptions,
            checks=tally.num_checks,
            revocations=tally.num_revocations,
        )


def _tokens(outcome: Outcome) -> tuple[tuple[int, ...], ...]:
    return tuple(choice.token_ids for choice in outcome.choices)


def run_needle(settings: GpuSettings, desk: Desk) -> Needles:
    """On real weights where some are given, and on random ones of a shape whose plain products differ."""
    found = Needles()
    desk.report.sections["needle"] = found
    for name, twins in _subjects(settings, desk, found):
        desk.begin(settings.section_seconds)  # opening an engine is not asking it
        bouts = list(_bouts(twins, settings))
        _prick(twins, bouts, settings, desk, found)
        reports = [bout.report(name) for bout in bouts]
        found.pricks += reports
        if all(one.runs for one in reports):
            found.one_answer[name] = _agree(bouts)
        desk.tell(
            f"{name}: " + ", ".join(f"{one.mode} {one.asked} {one.distinct} of {one.runs}" for one in reports)
        )
        desk.save()
    return found


def _subjects(settings: GpuSettings, desk: Desk, found: Needles) -> Iterator[tuple[str, Twins]]:
    if settings.needle_model is not None:
        yield Path(settings.needle_model).stem, _real_twins(settings.needle_model, settings, desk)
    else:
        found.notes.append("no real weights were given, so only random ones were asked")
    dtype, kernels = settings.dtype, settings.kernels
    shape = settings.needle_shape
    positions = 4096 if shape == TINY else _POSITIONS
    max_len = 1024 if shape == TINY else _MAX_LEN
    yield f"{shape}, random", open_twins(shape, dtype, kernels, 64, positions, max_len, desk.show_stage)


def _real_twins(model: str, settings: GpuSettings, desk: Desk) -> Twins:
    config = EngineConfig(
        model=model,
        dtype=settings.dtype,
        kernels=cast(KernelBackend, settings.kernels),
        max_num_seqs=64,
        max_model_len=_MAX_LEN,
        kv_memory="4GiB",
    )
    exact = build(config, desk.show_stage)
    return Twins(exact, plain_twin(exact, desk.show_stage))


def _bouts(twins: Twins, settings: GpuSettings) -> Iterator[Bout]:
    prompt = tuple(twins.exact.tokenizer.encode(TEXT))
    for mode in MODES:
        for asked, temperature in (("greedy", 0.0), ("sampled", 0.9)):
            params = SamplingParams(
                max_tokens=settings.needle_tokens,
                temperature=temperature,
                top_p=0.95 if temperature else 1.0,
                seed=7,
                ignore_eos=True,
                logprobs=2,
                deterministic=mode != "off",
            )
            yield Bout(mode, asked, Needle(prompt, params), Tally({}, Stats()))


def _prick(twins: Twins, bouts: list[Bout], settings: GpuSettings, desk: Desk, found: Needles) -> None:
    """Modes and needles in turn, each load once for all of them: a run that is cut off has asked all alike."""
    scale = _TINY_SCALE if settings.model == TINY else _SCALE
    num_loads = -(-settings.needle_runs // 2)  # each asks for a greedy and a sampled answer
    for number in range(num_loads):
        if desk.is_late:
            found.cut_off = True
            found.notes.append(f"cut off after {number} of {num_loads} loads")
            return
        for bout in bouts:
            if bout.mode == "off" and 3 * number >= num_loads:
                continue  # it need not be shown as often that nothing is promised
            engine = twins.exact if bout.mode == "auto" else twins.plain
            rng = random.Random(number)
            hay = draw(rng, engine, bout.needle, bout.mode, scale)
            bout.tally.add(run_in(engine, hay, bout.needle))
        if number % 25 == 24:
            desk.tell(f"{number + 1} of {num_loads} loads")


def _agree(bouts: list[Bout]) -> bool:
    """Whether each needle gave one answer over all modes that guarantee it."""
    for asked in {bout.asked for bout in bouts}:
        outcomes = {
            outcome
            for bout in bouts
            if bout.asked == asked and bout.mode != "off"
            for outcome in bout.tally.outcomes
        }
        if len(outcomes) != 1:
            return False
    return True
