"""The determinism stress test on a GPU: a greedy request, a sampled one and one with penalties,
repeated inside random loads. Requests of a load use every feature: sampling, penalties, bad words,
logprobs, structured output and so on.

`auto` runs the certified products. `verify` and `off` run the library's plain products, so that
there is something to roll back. With the guarantee, both modes must give one answer, to the bit of
every logprob. With it off there should be several answers, if the model's plain products have
several bit classes.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from holdfast.bench.determinism.features import find_features
from holdfast.bench.determinism.stress import ResultBits, StressSummary, run_in_load
from holdfast.bench.determinism.stress_load import LoadScale, ProbeRequest, draw_load
from holdfast.bench.gpu.engines import EnginePair, open_engine_pair, open_plain_engine
from holdfast.bench.gpu.report import SectionContext, StressRow, StressSection
from holdfast.bench.gpu.settings import TINY, TINY_MOE, GpuSettings
from holdfast.core.results import Stats
from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.builder import build
from holdfast.engine.config import EngineConfig
from holdfast.numerics.recipe import KernelBackend
from holdfast.scheduler.policy import DeterminismMode

TEXT = "The tide went out and left the rocks bare, and on every rock the weed held fast; then"
MODES: tuple[DeterminismMode, ...] = ("auto", "verify", "off")
_SAMPLED = {"temperature": 0.9, "top_p": 0.95}
ASKED: Mapping[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0, "logprobs": 2},
    "sampled": {**_SAMPLED, "logprobs": 5},
    "penalised": {**_SAMPLED, "repetition_penalty": 1.1, "presence_penalty": 0.3, "logprobs": 2},
}
# No injected faults: all rollbacks come from numerical differences.
_SCALE = LoadScale(max_background=31, max_prompt_len=1200, max_tokens=24, fault_rates=(0.0,))
_TINY_SCALE = LoadScale(max_background=4, max_prompt_len=40, max_tokens=6, fault_rates=(0.0,))
_MAX_LEN = 2048
_POSITIONS = 64 * 1024


@dataclass
class StressCase:
    """One probe in one mode, and its runs so far."""

    mode: DeterminismMode
    asked: str
    probe: ProbeRequest
    summary: StressSummary

    def row(self, model: str) -> StressRow:
        summary, stats = self.summary, self.summary.stats
        return StressRow(
            model=model,
            mode=self.mode,
            asked=self.asked,
            guarantee=self.mode != "off",
            runs=summary.num_runs,
            distinct=summary.num_distinct,
            distinct_tokens=len({_tokens(bits) for bits in summary.results}),
            candidates=stats.candidates,
            rolled_back=stats.rolled_back,
            preemptions=stats.preemptions,
            checks=summary.num_checks,
            revocations=summary.num_revocations,
        )


def _tokens(bits: ResultBits) -> tuple[tuple[int, ...], ...]:
    return tuple(choice.token_ids for choice in bits.choices)


def run_stress(settings: GpuSettings, context: SectionContext) -> StressSection:
    """Test real weights where they are given, then random weights of shapes whose plain products
    differ.
    """
    found = StressSection()
    context.report.sections["stress"] = found
    for name, pair in _models(settings, context, found):
        context.restart_clock(settings.section_seconds)  # the time to open an engine does not count
        cases = list(_cases(pair, settings))
        _run_cases(pair, cases, settings, context, found)
        rows = [case.row(name) for case in cases]
        found.rows += rows
        if all(one.runs for one in rows):
            found.one_answer[name] = _agree(cases)
        context.log(
            f"{name}: " + ", ".join(f"{one.mode} {one.asked} {one.distinct} of {one.runs}" for one in rows)
        )
        context.save()
    return found


def _models(
    settings: GpuSettings, context: SectionContext, found: StressSection
) -> Iterator[tuple[str, EnginePair]]:
    if settings.stress_model is not None:
        yield Path(settings.stress_model).stem, _open_real(settings.stress_model, settings, context)
    else:
        found.notes.append("no real weights were given, so only random ones were tested")
    for shape in settings.stress_shapes:
        num_positions, max_len = (4096, 1024) if shape in (TINY, TINY_MOE) else (_POSITIONS, _MAX_LEN)
        pair = open_engine_pair(
            shape, settings.dtype, settings.kernels, 64, num_positions, max_len, context.log_stage
        )
        yield f"{shape}, random", pair


def _open_real(model: str, settings: GpuSettings, context: SectionContext) -> EnginePair:
    config = EngineConfig(
        certification="startup",
        model=model,
        dtype=settings.dtype,
        kernels=cast(KernelBackend, settings.kernels),
        max_num_seqs=64,
        max_model_len=_MAX_LEN,
        kv_memory="4GiB",
    )
    exact = build(config, context.log_stage)
    return EnginePair(exact, open_plain_engine(exact, context.log_stage))


def _cases(pair: EnginePair, settings: GpuSettings) -> Iterator[StressCase]:
    prompt = tuple(pair.exact.tokenizer.encode(TEXT))
    for mode in MODES:
        for asked, special in ASKED.items():
            params = SamplingParams(
                max_tokens=settings.stress_tokens,
                seed=7,
                ignore_eos=True,
                deterministic=mode != "off",
                **special,
            )
            yield StressCase(mode, asked, ProbeRequest(prompt, params), StressSummary({}, Stats()))


def _run_cases(
    pair: EnginePair,
    cases: list[StressCase],
    settings: GpuSettings,
    context: SectionContext,
    found: StressSection,
) -> None:
    """Run every load for all cases before the next load: when the time ends early, all cases have
    as many runs.
    """
    scale = _TINY_SCALE if settings.model == TINY else _SCALE
    num_loads = -(-settings.stress_runs // len(ASKED))  # each load runs all probes
    features = () if context.is_over_time else find_features(pair.exact, cases[0].probe.prompt)
    others = [feature.probe().params for feature in features]
    for number in range(num_loads):
        if context.is_over_time:
            found.cut_off = True
            found.notes.append(f"cut off after {number} of {num_loads} loads")
            return
        for case in cases:
            if case.mode == "off" and 3 * number >= num_loads:
                continue  # a third of the runs suffices to show several answers
            engine = pair.exact if case.mode == "auto" else pair.plain
            rng = random.Random(number)
            load = draw_load(rng, engine, case.probe, case.mode, scale, others)
            case.summary.add(run_in_load(engine, load, case.probe))
        if number % 25 == 24:
            context.log(f"{number + 1} of {num_loads} loads")


def _agree(cases: list[StressCase]) -> bool:
    """Whether each probe gave one answer over all modes with the guarantee."""
    for asked in {case.asked for case in cases}:
        results = {
            bits
            for case in cases
            if case.asked == asked and case.mode != "off"
            for bits in case.summary.results
        }
        if len(results) != 1:
            return False
    return True
