"""Every feature, alone and in random combinations, inside random loads of requests that ask for any of them: one outcome."""

from collections.abc import Iterator

import pytest
from pricking import BOTH, FEATURES, SMALL, combinations, engine, features, outcome, settings

from holdfast.bench.determinism.stress import Tally, prick
from holdfast.bench.determinism.stress_load import Scale
from holdfast.numerics.recipe import KernelBackend

# how many cells, every feature and then combinations; and how many runs each
CELLS: dict[KernelBackend, tuple[int, int]] = {"c": (40, 4), "torch": (31, 2)}
DTYPES = ("fp32", "bf16")


def test_the_matrix_has_hundreds_of_runs() -> None:
    assert len(DTYPES) * sum(count * runs for count, runs in CELLS.values()) >= 400


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernels", CELLS)
def test_each_cell_has_one_outcome(kernels: KernelBackend, dtype: str) -> None:
    count, num_runs = CELLS[kernels]
    tallies = dict(_tallies(kernels, dtype, count, num_runs))
    assert set(FEATURES) < set(tallies)
    assert sum(tally.num_runs for tally in tallies.values()) == count * num_runs
    for name, tally in tallies.items():
        assert outcome(tally).error is None or name not in FEATURES, name
    _assert_something_happened(list(tallies.values()))


def _tallies(kernels: KernelBackend, dtype: str, count: int, num_runs: int) -> Iterator[tuple[str, Tally]]:
    """Every feature, then combinations."""
    one, known = engine(kernels, dtype), features(kernels, dtype)
    scale = Scale(max_neighbours=8, max_prompt=48, max_tokens=12) if kernels == "c" else SMALL
    asked = [*known.values(), *combinations(known, count - len(known), seed=len(dtype + kernels))]
    others = settings(known)
    for number, feature in enumerate(asked):
        tally = prick(one, feature.needle(), BOTH, num_runs, seed=number, scale=scale, others=others)
        yield (feature.name if number < len(known) else f"{number}: {feature.name}"), tally


def _assert_something_happened(tallies: list[Tally]) -> None:
    """What was to leave no trace did take place."""
    for what in ("rolled_back", "preemptions", "cached_tokens", "looked_up"):
        assert sum(getattr(tally.stats, what) for tally in tallies) > 0, what
    if engine("c", "fp32").scheduler.config.one_pass_suffices:
        assert sum(tally.num_checks for tally in tallies) > 0
