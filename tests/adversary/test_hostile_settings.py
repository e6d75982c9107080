"""Settings that a caller makes around our work: same bits, and the caller's settings stay its own."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from adversary.evidence import Evidence
from adversary.hostile_models import Target, fresh_certificates, subnormal
from adversary.questions import QUESTIONS, Questions, ask, note_answer
from adversary.settings import SETTINGS, HostileSetting, ask_under, in_thread
from holdfast.bench.load import ProbeRequest
from holdfast.bench.stress import submit
from holdfast.engine.engine import Engine
from holdfast.numerics.recipe import KernelBackend
from support.adversary_targets import FEW, small_target
from support.shape_dependent_gemm import use_shape_dependent_gemm

BY_NAME = {setting.name: setting for setting in SETTINGS}
# oneDNN reports that it falls back to another kernel for bf16.
FALLBACK = pytest.mark.filterwarnings("ignore:mkldnn_matmul failed", "ignore:TF32 acceleration")


def attack_setting(target: Target, setting: HostileSetting, questions: Questions = QUESTIONS) -> None:
    """One setting against one kind of engine: before it is built, on a live engine, between two steps of one
    answer, and in a thread of its own. An engine that runs in a thread of its own, as in `LLM`, leaves the
    caller its setting."""
    evidence = Evidence()
    with fresh_certificates():
        weights = target.weights(subnormal)
        engine = target.open(weights)
        ask(engine, evidence, questions)
        with setting.use():
            before = setting.read()
            in_thread(lambda: ask(engine, evidence, questions))
            _compare(setting, before, evidence)
            ask(engine, evidence, questions)
        for name, probe in questions.items():
            with evidence.refusing():
                _change_between_steps(engine, setting, evidence, name, probe)
        in_thread(lambda: ask_under(engine, setting, evidence, questions))
        with setting.use(), evidence.refusing():
            opened: list[Engine] = []
            in_thread(lambda: opened.append(target.open(weights)))
            _compare(setting, before, evidence)
            ask(opened[0], evidence, questions)
        with setting.use(), evidence.refusing():
            ask(target.open(weights), evidence, questions)
        ask(target.open(weights), evidence, questions)
        ask(engine, evidence, questions)
    evidence.assert_held()


def _compare(setting: HostileSetting, before: object, evidence: Evidence) -> None:
    after = setting.read()
    if after != before:
        evidence.fail(f"the caller's {setting.name} was {before} and is {after}")


def _change_between_steps(
    engine: Engine, setting: HostileSetting, evidence: Evidence, name: str, probe: ProbeRequest
) -> None:
    """Every other step runs under the setting."""
    request_id = submit(engine, probe.prompt, probe.params)
    number = 0
    while engine.has_work:
        number += 1
        if number % 2:
            outputs = engine.step()
        else:
            with setting.use():
                outputs = engine.step()
        for update in outputs:
            if update.request_id == request_id and update.result is not None:
                note_answer(engine, evidence, name, update.result)


@contextmanager
def _precision_and_threads() -> Iterator[None]:
    with BY_NAME["matmul precision"].use(), BY_NAME["number of threads"].use():
        yield


def test_settings_that_choose_the_order_of_summation(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the fp32 precision does with oneDNN, and the number of threads in long sums."""
    use_shape_dependent_gemm(monkeypatch, by_settings=True)
    both = HostileSetting("precision and threads", _precision_and_threads, torch.get_num_threads)
    attack_setting(small_target("torch", num_hidden_layers=1), both, FEW)


@FALLBACK
@pytest.mark.parametrize(
    ("kernels", "name"),
    [
        ("torch", "autocast"),
        pytest.param("torch", "flushed denormals", marks=pytest.mark.long),
        ("c", "flushed denormals"),
        ("c", "rounding mode"),
        pytest.param("c", "default device", marks=pytest.mark.long),
    ],
)
def test_settings_of_a_thread(kernels: KernelBackend, name: str) -> None:
    attack_setting(small_target(kernels, num_hidden_layers=1), BY_NAME[name], FEW)


@pytest.mark.long
@FALLBACK
@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
@pytest.mark.parametrize(
    ("kernels", "dtype"), [("c", "fp32"), ("c", "bf16"), ("torch", "fp32"), ("torch", "bf16")]
)
def test_every_setting(kernels: KernelBackend, dtype: str, setting: HostileSetting) -> None:
    attack_setting(Target(kernels, dtype), setting)


@pytest.mark.long
def test_number_of_threads_in_a_long_sum() -> None:
    target = Target("torch", "fp32", shape={"intermediate_size": 4096})
    attack_setting(target, BY_NAME["number of threads"], FEW)
