"""The determinism stress test on a GPU: a greedy request, a sampled one and one with penalties,
repeated inside random loads. Requests of a load use every feature: sampling, penalties, bad words,
logprobs, structured output and so on.

`auto` runs the certified products. `verify` and `off` run the library's plain products, so that
there is something to roll back. With the guarantee, both modes must give one answer, to the bit of
every logprob. With it off there should be several answers, if the model's plain products have
several bit classes.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast import LLM, SamplingParams, Stats
from holdfast.bench.determinism.engine_pair import EnginePair, open_plain_engine
from holdfast.bench.determinism.features import find_features
from holdfast.bench.determinism.stress import StressSummary, run_in_load
from holdfast.bench.determinism.stress_load import LoadScale, ProbeRequest, draw_load
from holdfast.bench.gpu.measure import Bench
from holdfast.bench.gpu.settings import GpuSettings
from holdfast.bench.tiny import dummy_model, is_tiny
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
_OPTIONS = {"certification": "startup", "max_num_seqs": 64, "max_model_len": 2048, "kv_memory": "4GiB"}


@dataclass
class StressCase:
    """One probe in one mode, and its runs so far."""

    mode: DeterminismMode
    asked: str
    probe: ProbeRequest
    summary: StressSummary


def run_stress(bench: Bench, settings: GpuSettings) -> None:
    """Test real weights where they are given, then random weights of shapes whose plain products
    differ.
    """
    if settings.stress_model is not None:
        dtype = {} if settings.dtype is None else {"dtype": settings.dtype}
        options = {"model": settings.stress_model, **_OPTIONS, **dtype}
        _stress(bench, settings, Path(settings.stress_model).stem, options, _SCALE)
    for shape in filter(None, map(str.strip, settings.stress_shape.split(","))):
        with dummy_model(shape) as model:
            options = (
                settings.llm_options(model) if is_tiny(shape) else settings.llm_options(model, **_OPTIONS)
            )
            scale = _TINY_SCALE if is_tiny(shape) else _SCALE
            _stress(bench, settings, f"{shape}, random", options, scale)


def _stress(
    bench: Bench, settings: GpuSettings, name: str, options: Mapping[str, Any], scale: LoadScale
) -> None:
    """A row for each case: in how many runs it gave how many distinct answers."""
    with LLM(**options) as llm:
        pair = EnginePair(llm.engine, open_plain_engine(llm.engine))
        cases = [_case(pair, settings, mode, asked) for mode in MODES for asked in ASKED]
        _run_cases(bench, pair, cases, settings, scale)
    for case in cases:
        summary, stats = case.summary, case.summary.stats
        bench.row(
            part="stress",
            model=name,
            mode=case.mode,
            request=case.asked,
            runs=summary.num_runs,
            distinct=summary.num_distinct,
            distinct_tokens=len({tuple(one.token_ids for one in bits.choices) for bits in summary.results}),
            candidates=stats.candidates,
            rolled_back=stats.rolled_back,
            preemptions=stats.preemptions,
            checks=summary.num_checks,
            revocations=summary.num_revocations,
        )
    for asked in ASKED:
        guaranteed = [case.summary.results for case in cases if case.asked == asked and case.mode != "off"]
        answers = {bits for results in guaranteed for bits in results}
        if len(answers) > 1:
            several = f"{len(answers)} answers over auto and verify"
            bench.row(part="stress", model=name, request=asked, error=several)


def _case(pair: EnginePair, settings: GpuSettings, mode: DeterminismMode, asked: str) -> StressCase:
    params = SamplingParams(
        max_tokens=settings.stress_tokens,
        seed=7,
        ignore_eos=True,
        deterministic=mode != "off",
        **ASKED[asked],
    )
    prompt = tuple(pair.exact.tokenizer.encode(TEXT))
    return StressCase(mode, asked, ProbeRequest(prompt, params), StressSummary({}, Stats()))


def _run_cases(
    bench: Bench, pair: EnginePair, cases: Sequence[StressCase], settings: GpuSettings, scale: LoadScale
) -> None:
    """Run every load for all cases before the next load: when the time ends early, all cases have
    as many runs.
    """
    num_loads = -(-settings.stress_runs // len(ASKED))  # each load runs all probes
    others = [feature.probe().params for feature in find_features(pair.exact, cases[0].probe.prompt)]
    for number in range(num_loads):
        if bench.is_over("stress"):
            return
        for case in cases:
            if case.mode == "off" and 3 * number >= num_loads:
                continue  # a third of the runs suffices to show several answers
            engine = pair.exact if case.mode == "auto" else pair.plain
            load = draw_load(random.Random(number), engine, case.probe, case.mode, scale, others)
            case.summary.add(run_in_load(engine, load, case.probe))
        if number % 25 == 24:
            bench.log(f"{number + 1} of {num_loads} loads")
