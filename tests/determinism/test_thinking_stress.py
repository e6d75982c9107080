"""The stress test on a thinking model: one answer and the same thoughts, to the bit, in any load."""

import random
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from stress_helpers import MODES, SMALL, only_result

from holdfast.bench.load import BackgroundRequest, ProbeRequest, StressLoad
from holdfast.bench.stress import StressSummary, result_bits, run_alone, run_in_load, stress_test
from holdfast.core.results import Stats
from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.engine import Engine
from holdfast.numerics.recipe import KernelBackend
from holdfast.scheduler.policy import DeterminismMode
from support.thinking_engines import change_thinking, draw_prompt, greedy, open_thinker, with_guesses
from support.thinking_models import thinker_folder

PROMPT = draw_prompt(random.Random(5), 38, 290)
SAMPLED = greedy(14, temperature=0.9, top_p=0.95, seed=5)
OTHERS = [greedy(12), greedy(12, think=False), greedy(12, forced_thoughts={0: (9,), 3: ()}), greedy(8, n=2)]
SCALE = replace(SMALL, max_background=3, max_prompt_len=24, max_tokens=5)
RESETS = [PROMPT[19]]  # a message begins in the fifth chunk of the prompt
# kernels, dtype, changes of the model; and the number of runs
CELLS: list[tuple[KernelBackend, str, dict[str, object], int]] = [
    ("c", "fp32", {}, 20),
    ("c", "bf16", {"carry": True, "reset_ids": RESETS}, 12),
    ("c", "fp32", {"settle": True}, 12),
    ("c", "fp32", {"while_answering": False, "carry": True}, 12),
    ("torch", "fp32", {}, 4),
]
LONG = 10  # times as many runs in the long test
NUM_CROWDED = 8  # runs in each mode


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return thinker_folder(tmp_path_factory.mktemp("thinker") / "model")


@pytest.fixture(scope="module")
def engine(folder: Path) -> Engine:
    """Tests restart it and never run it directly."""
    return _open(folder, "c", "fp32")


@cache
def _open(folder: Path, kernels: KernelBackend, dtype: str) -> Engine:
    if kernels == "c":
        return open_thinker(folder, kernels, dtype=dtype)
    engine = open_thinker(folder, kernels, dtype=dtype, determinism="off")
    engine.limits = replace(engine.limits, refusal=None)  # not certified: every token is verified
    return engine


@pytest.mark.parametrize("scale", [1, pytest.param(LONG, marks=pytest.mark.long)])
@pytest.mark.parametrize(("kernels", "dtype", "changes", "num_runs"), CELLS)
def test_one_result_and_the_same_thoughts_in_any_load(
    folder: Path,
    tmp_path: Path,
    kernels: KernelBackend,
    dtype: str,
    changes: dict[str, object],
    num_runs: int,
    scale: int,
) -> None:
    if changes:
        folder = shutil.copytree(folder, tmp_path / "model")
        change_thinking(folder, **changes)
    engine = _open(folder, kernels, dtype)
    summaries = []
    for number, params in enumerate((SAMPLED, replace(SAMPLED, temperature=0, n=2, prompt_logprobs=1))):
        probe = ProbeRequest(PROMPT, params)
        summary = stress_test(
            engine, probe, MODES, scale * num_runs // 2, seed=number, scale=SCALE, others=OTHERS
        )
        assert only_result(summary).error is None
        thoughts = only_result(summary).choices[0].thoughts
        _assert_thinks(thoughts, params, while_answering=changes.get("while_answering") is not False)
        summaries.append(summary)
    for what in ("rolled_back", "cached_tokens", "guessed_right"):  # all of this happened
        assert sum(getattr(summary.stats, what) for summary in summaries) > 0, what
    assert all(summary.stats.guessed > summary.stats.guessed_right for summary in summaries)
    assert any(summary.num_checks for summary in summaries) or kernels == "torch"


@pytest.mark.parametrize("mode", MODES)
def test_preemption_and_faults_do_not_change_the_result(engine: Engine, mode: DeterminismMode) -> None:
    probe = ProbeRequest(PROMPT, SAMPLED)
    summary = StressSummary({}, Stats())
    growing = greedy(34, deterministic=False)
    for number in range(NUM_CROWDED):
        background = tuple(
            BackgroundRequest((at + 3,) * (8 + (at + number) % 8), growing, 0) for at in range(5)
        )
        usual = with_guesses(engine.scheduler.config, (0, 3, 99)[number % 3])
        how = replace(usual, determinism=mode)
        load = StressLoad(
            background, 2 + number % 3, 0, how, 10 + number % 4, fault_rate=0.5 if number % 2 else 0.0
        )
        summary.add(run_in_load(engine, load, probe))
    assert summary.stats.preemptions > 0
    assert only_result(summary) == result_bits(run_alone(engine, probe))


def _assert_thinks(thoughts: tuple[object, ...], params: SamplingParams, *, while_answering: bool) -> None:
    read = len(PROMPT) + params.max_tokens - 1 if while_answering else len(PROMPT)
    assert len(thoughts) == read // 4
    assert len({getattr(thought, "token_ids", None) for thought in thoughts}) > 1


def test_thoughts_are_part_of_the_result(engine: Engine) -> None:
    usual = run_alone(engine, ProbeRequest(PROMPT, SAMPLED))
    last = usual.thoughts[-1]  # no token follows it
    other = replace(usual, choices=(replace(usual.choices[0], thoughts=usual.thoughts[:-1]),))
    assert last.chunk == 11
    assert result_bits(other) != result_bits(usual)
