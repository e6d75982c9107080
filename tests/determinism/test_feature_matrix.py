"""Every feature, alone and in random combinations, inside random loads with the same features: one
result.
"""

from collections.abc import Iterator, Sequence

import pytest
from stress_helpers import (
    FEATURES,
    MODES,
    SMALL,
    background_params,
    combinations,
    engine,
    features,
    only_result,
)

from holdfast.bench.load import LoadScale
from holdfast.bench.stress import StressSummary, stress_test
from holdfast.numerics.recipe import KernelBackend

NUM_RUNS = 2  # of a cell: one in each mode
NUM_COMBINATIONS: dict[KernelBackend, int] = {"c": 9, "torch": 2}
LONG = 4  # times as many runs in the long test
DTYPES = ("fp32", "bf16")


@pytest.mark.parametrize("scale", [1, pytest.param(LONG, marks=pytest.mark.long)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernels", NUM_COMBINATIONS)
def test_each_cell_has_one_result(kernels: KernelBackend, dtype: str, scale: int) -> None:
    """The cells are all features and some combinations. In the short test each feature has one dtype, but copied
    text both, and the other features are the background's; the C backend has all of them in fp32, with its near
    ties."""
    is_whole = scale == LONG or (kernels, dtype) == ("c", "fp32")
    names = FEATURES if is_whole else (*FEATURES[DTYPES.index(dtype) : -1 : len(DTYPES)], FEATURES[-1])
    num_runs = NUM_RUNS * scale
    summaries = dict(_run_cells(kernels, dtype, names, num_runs))
    assert set(names) < set(summaries)
    assert all(summary.num_runs == num_runs for summary in summaries.values())
    for name, summary in summaries.items():
        assert only_result(summary).error is None or name not in FEATURES, name
    _assert_coverage(list(summaries.values()))


def _run_cells(
    kernels: KernelBackend, dtype: str, names: Sequence[str], num_runs: int
) -> Iterator[tuple[str, StressSummary]]:
    """These features, then combinations of all."""
    one, known = engine(kernels, dtype), features(kernels, dtype)
    scale = LoadScale(max_background=8, max_prompt_len=48, max_tokens=12) if kernels == "c" else SMALL
    combined = combinations(known, NUM_COMBINATIONS[kernels], seed=len(dtype + kernels))
    others = background_params(known)
    for number, feature in enumerate([*(known[name] for name in names), *combined]):
        summary = stress_test(one, feature.probe(), MODES, num_runs, seed=number, scale=scale, others=others)
        yield (feature.name if number < len(names) else f"{number}: {feature.name}"), summary


def _assert_coverage(summaries: list[StressSummary]) -> None:
    """The loads did contain what must not change a result."""
    for what in ("rolled_back", "preemptions", "cached_tokens", "looked_up"):
        assert sum(getattr(summary.stats, what) for summary in summaries) > 0, what
    if engine("c", "fp32").scheduler.config.one_pass_suffices:
        assert sum(summary.num_checks for summary in summaries) > 0
