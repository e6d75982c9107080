"""The check of whole passes: it accepts a correct runner, detects a faulty one, and zeroes the KV
pages.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch

from holdfast.certification.certificate import run_check
from holdfast.certification.checks.passes import AllPages, PassBench, check_passes
from holdfast.core.step_plan import PassResult, StepPlan
from holdfast.engine.config import EngineConfig
from holdfast.models.dummy import DummyCheckpoint, tiny_config
from holdfast.models.weight_loader import load_decoder
from holdfast.numerics.backends.select_backend import open_backend
from holdfast.numerics.bits import bits_of
from holdfast.numerics.settings import apply_numeric_settings


@pytest.fixture(scope="module")
def bench() -> PassBench:
    from support.tiny import tiny_engine

    engine = tiny_engine(
        EngineConfig(dtype="fp32", determinism="off", kernels="c", kv_memory="2MiB", max_pass_tokens=128)
    )
    runner: Any = engine.runner
    decoder, store = runner._decoder, runner._store
    pages = AllPages(store.num_pages)
    return PassBench(runner, store.layers, decoder.backend.page_size, 512, decoder.backend.recipe.rows, pages)


def test_c_backend_agrees_at_every_size_and_pages_are_zeroed(bench: PassBench) -> None:
    check = run_check(check_passes(bench, 128, 1024, (16, 32)))
    assert check.agrees, check
    assert check.name == "pass"
    assert check.sizes_tested == (1, 8, 32)
    assert check.num_comparisons == 3 * 8 * (3 + 2)
    assert "context 1024" in check.shape
    for layer in bench.layers:
        assert not layer.keys.any() and not layer.values.any()


def test_small_kv_store_shortens_the_context(bench: PassBench) -> None:
    few = replace(bench, layers=[type(one)(one.keys[:6], one.values[:6]) for one in bench.layers])
    few = replace(few, runner=bench.runner, lender=AllPages(6))
    check = run_check(check_passes(few, 32, 1024))
    assert check.agrees and "context 48" in check.shape


class RecordingRunner:
    """Records how far its passes reach."""

    def __init__(self, bench: PassBench) -> None:
        self._bench, self.reached = bench, 0

    def run(self, plan: StepPlan) -> list[PassResult]:
        self.reached = max(self.reached, *(span.stop for one in plan.passes for span in one.spans))
        return self._bench.runner.run(plan)


def test_no_token_is_beyond_the_maximal_context(bench: PassBench) -> None:
    recording = RecordingRunner(bench)
    assert run_check(check_passes(replace(bench, runner=recording), 128, 20)).agrees
    assert recording.reached == 20


class FaultyRunner:
    """Its passes of one size are wrong in one place."""

    def __init__(self, bench: PassBench, size: int, fault: Any) -> None:
        self._bench, self._size, self._fault = bench, size, fault

    def run(self, plan: StepPlan) -> list[PassResult]:
        results = list(self._bench.runner.run(plan))
        (one,) = plan.passes
        if one.num_tokens_padded == self._size:
            probe = next(index for index, span in enumerate(one.spans) if span.request_id == 3)
            results[0] = self._fault(self._bench, one.spans[probe], results[0], probe)
        return results


def flip_key(bench: PassBench, span: Any, result: PassResult, index: int) -> PassResult:
    bits = bits_of(bench.layers[-1].keys)
    bits[span.pages[-1], 0, 0, span.start % bench.page_size] ^= 1
    return result


def other_token(bench: PassBench, span: Any, result: PassResult, index: int) -> PassResult:
    samples = list(result.samples)
    samples[index] = tuple(replace(one, token_id=one.token_id ^ 1) for one in samples[index])
    return replace(result, samples=tuple(samples))


@pytest.mark.parametrize("fault", [flip_key, other_token])
def test_differing_bit_or_token_is_reported_by_pass_size(bench: PassBench, fault: Any) -> None:
    faulty = replace(bench, runner=FaultyRunner(bench, 8, fault))
    assert run_check(check_passes(faulty, 64, 512)).sizes_differing == (8,)


def test_differing_canonical_pass_is_reported_as_size_0(bench: PassBench) -> None:
    faulty = replace(bench, runner=FaultyRunner(bench, 48, flip_key))
    assert run_check(check_passes(faulty, 64, 512, (48,))).sizes_differing == (0,)


def test_canonical_passes_of_the_torch_backend_agree() -> None:
    """Its fast passes may differ: torch chooses the order of summation by the batch size."""
    from holdfast.worker.kv_store import KVStore
    from holdfast.worker.model_runner import ModelRunner

    config = tiny_config()
    backend = open_backend(torch.float32, kernels="torch", num_threads=apply_numeric_settings().threads)
    decoder = load_decoder(DummyCheckpoint(config, deviation=0.25), backend, torch.float32, 256)
    store = KVStore(64, config, backend)
    pages = AllPages(store.num_pages)
    bench = PassBench(
        ModelRunner(decoder, store), store.layers, backend.page_size, config.vocab_size, 16, pages
    )
    check = run_check(check_passes(bench, 32, 256))
    assert 0 not in check.sizes_differing
