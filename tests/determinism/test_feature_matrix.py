"""Every feature, alone and in random combinations, inside random loads with the same features: one
result.
"""

from collections.abc import Iterator

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

from holdfast.bench.determinism.stress import StressSummary, stress_test
from holdfast.bench.determinism.stress_load import LoadScale
from holdfast.numerics.recipe import KernelBackend

# number of cells (every feature, then combinations), and runs of each
CELLS: dict[KernelBackend, tuple[int, int]] = {"c": (40, 2), "torch": (31, 2)}
LONG = 4  # times as many runs in the long test
DTYPES = ("fp32", "bf16")


@pytest.mark.parametrize("scale", [1, pytest.param(LONG, marks=pytest.mark.long)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernels", CELLS)
def test_each_cell_has_one_result(kernels: KernelBackend, dtype: str, scale: int) -> None:
    count, num_runs = CELLS[kernels]
    num_runs *= scale
    summaries = dict(_run_cells(kernels, dtype, count, num_runs))
    assert set(FEATURES) < set(summaries)
    assert sum(summary.num_runs for summary in summaries.values()) == count * num_runs
    for name, summary in summaries.items():
        assert only_result(summary).error is None or name not in FEATURES, name
    _assert_coverage(list(summaries.values()))


def _run_cells(
    kernels: KernelBackend, dtype: str, count: int, num_runs: int
) -> Iterator[tuple[str, StressSummary]]:
    """Every feature, then combinations."""
    one, known = engine(kernels, dtype), features(kernels, dtype)
    scale = LoadScale(max_background=8, max_prompt_len=48, max_tokens=12) if kernels == "c" else SMALL
    cells = [*known.values(), *combinations(known, count - len(known), seed=len(dtype + kernels))]
    others = background_params(known)
    for number, feature in enumerate(cells):
        summary = stress_test(one, feature.probe(), MODES, num_runs, seed=number, scale=scale, others=others)
        yield (feature.name if number < len(known) else f"{number}: {feature.name}"), summary


def _assert_coverage(summaries: list[StressSummary]) -> None:
    """The loads did contain what must not change a result."""
    for what in ("rolled_back", "preemptions", "cached_tokens", "looked_up"):
        assert sum(getattr(summary.stats, what) for summary in summaries) > 0, what
    if engine("c", "fp32").scheduler.config.one_pass_suffices:
        assert sum(summary.num_checks for summary in summaries) > 0
