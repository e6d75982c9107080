"""Every feature, alone and in random combinations, inside random loads of requests that ask for any of them: one outcome."""

from collections.abc import Iterator

import pytest
from pricking import BOTH, FEATURES, SMALL, combinations, engine, features, outcome, settings

from holdfast.bench.haystack import Scale
from holdfast.bench.needle import Tally, prick
from holdfast.engine.config import Kernels

COMBINATIONS = 13
RUNS: dict[tuple[Kernels, str], int] = {
    ("compiled", "fp32"): 4,
    ("compiled", "bf16"): 4,
    ("library", "fp32"): 2,
    ("library", "bf16"): 2,
}


def test_the_matrix_has_hundreds_of_runs() -> None:
    assert sum(RUNS.values()) * (len(FEATURES) + COMBINATIONS) >= 300


@pytest.mark.parametrize(("kernels", "dtype"), RUNS)
def test_each_cell_has_one_outcome(kernels: Kernels, dtype: str) -> None:
    tallies = dict(_tallies(kernels, dtype, RUNS[kernels, dtype]))
    assert set(FEATURES) < set(tallies)
    assert sum(tally.num_runs for tally in tallies.values()) == RUNS[kernels, dtype] * (
        len(FEATURES) + COMBINATIONS
    )
    for name, tally in tallies.items():
        assert outcome(tally).error is None or name not in FEATURES, name
    _assert_something_happened(list(tallies.values()))


def _tallies(kernels: Kernels, dtype: str, num_runs: int) -> Iterator[tuple[str, Tally]]:
    one, known = engine(kernels, dtype), features(kernels, dtype)
    scale = Scale(max_neighbours=8, max_prompt=48, max_tokens=12) if kernels == "compiled" else SMALL
    asked = [*known.values(), *combinations(known, COMBINATIONS, seed=len(dtype + kernels))]
    others = settings(known)
    for number, feature in enumerate(asked):
        tally = prick(one, feature.needle(), BOTH, num_runs, seed=number, scale=scale, others=others)
        yield (feature.name if number < len(known) else f"{number}: {feature.name}"), tally


def _assert_something_happened(tallies: list[Tally]) -> None:
    """What was to leave no trace did take place."""
    for what in ("rolled_back", "preemptions", "cached_tokens", "looked_up"):
        assert sum(getattr(tally.stats, what) for tally in tallies) > 0, what
    if engine("compiled", "fp32").scheduler.config.one_pass_suffices:
        assert sum(tally.num_checks for tally in tallies) > 0
