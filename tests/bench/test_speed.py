"""Speed: cells and ratios of best times, with runs whose times are known."""

import pytest

from holdfast.bench.speed import Prompts, engine_runs, measure
from holdfast.engine.config import EngineConfig
from holdfast.errors import ConfigError
from support.tiny import tiny_engine


def known(prompts: Prompts, num_tokens: int) -> float:
    """A thousandth of a second for each prompt token, a hundredth for each step after the first token."""
    return sum(map(len, prompts)) / 1000 + 0.01 * (num_tokens - 1)


def test_speeds_are_those_of_the_best_times() -> None:
    slow = iter([1.0, 5.0])  # the first round counts
    factor = 0.0

    def noisy(prompts: Prompts, num_tokens: int) -> float:
        nonlocal factor
        if len(prompts[0]) > 100:
            factor = next(slow)
        return factor * known(prompts, num_tokens)

    found = measure({"a": noisy}, 500, 2, 11, lambda text: None)
    assert found["a"] == pytest.approx(
        {"prefill 512": 1000.0, "1 stream": 100.0, "8 streams": 800.0, "32 streams": 3200.0}
    )


def test_times_without_the_first_token_are_not_reduced() -> None:
    runs = {"a": lambda prompts, num_tokens: 0.01 * (num_tokens - 1) if num_tokens > 1 else 9.0}
    assert measure(runs, 500, 1, 11, lambda text: None, omits_first="a")["a"]["8 streams"] == 800.0
    with pytest.raises(ConfigError, match="no longer than one token"):
        measure(runs, 500, 1, 11, lambda text: None)


def test_variants_of_an_engine_answer() -> None:
    engine = tiny_engine(EngineConfig(kernels="torch", dtype="fp32", max_num_seqs=8, max_pass_tokens=64))
    runs = engine_runs(engine)
    assert list(runs) == ["ordinary", "deterministic, auto", "deterministic, verify"]
    assert all(run([[5, 6, 7]] * 2, 3) > 0 for run in runs.values())
