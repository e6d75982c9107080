"""Hostile threads: an engine that is built in one thread and driven from others, in other floating-point
environments; many submitters at once; a forked child.
"""

import os
import random
import signal
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event, Thread

import pytest

from adversary.evidence import Evidence
from adversary.hostile_models import Target, fresh_certificates, subnormal
from adversary.questions import QUESTIONS, Questions, answer, ask
from adversary.settings import SETTINGS, HostileSetting, ask_under, in_thread
from holdfast.bench.stress import result_bits
from holdfast.engine.engine import Engine
from holdfast.engine.llm.engine_thread import EngineThread
from holdfast.errors import EngineStopped
from holdfast.numerics.recipe import KernelBackend
from support.adversary_targets import FEW, small_target

FALLBACK = pytest.mark.filterwarnings("ignore:mkldnn_matmul failed", "ignore:TF32 acceleration")
_OF_THE_PROCESS = ("matmul precision", "deterministic algorithms", "mkldnn off")
_OF_A_THREAD = ("flushed denormals", "rounding mode", "autocast", "number of threads")


def thread_settings() -> list[HostileSetting]:
    """The settings that each thread has for itself."""
    return [setting for setting in SETTINGS if setting.name in _OF_A_THREAD]


def attack_built_elsewhere(
    target: Target, setting: HostileSetting, questions: Questions = QUESTIONS
) -> Evidence:
    """The setting is made in this thread, an engine is built in another one, and this one asks."""
    evidence = Evidence()
    with fresh_certificates():
        weights = target.weights(subnormal)
        ask(target.open(weights), evidence, questions)
        built: list[Engine] = []
        with setting.use(), evidence.refusing():
            in_thread(lambda: built.append(target.open(weights)))
            ask(built[0], evidence, questions)
            in_thread(lambda: ask(built[0], evidence, questions))
    return evidence


def attack_turns(target: Target, num_rounds: int) -> Evidence:
    """One engine, driven by new threads in turn, each with another setting of its own."""
    evidence = Evidence()
    with fresh_certificates():
        engine = target.open(target.weights(subnormal))
        ask(engine, evidence)
        for _ in range(num_rounds):
            for setting in thread_settings():
                in_thread(partial(ask_under, engine, setting, evidence))
    return evidence


def attack_side_by_side(target: Target, num_rounds: int) -> Evidence:
    """Two models of one shape, each driven by a thread of its own, at the same time."""
    evidence = Evidence()
    with fresh_certificates():
        engines = [target.open(target.weights(seed=seed)) for seed in (0, 1)]
        for engine in engines:
            ask(engine, evidence)

        def drive(engine: Engine) -> None:
            for _ in range(num_rounds):
                ask(engine, evidence)

        with ThreadPoolExecutor(len(engines)) as pool:
            list(pool.map(drive, engines))
    return evidence


def attack_toggled(target: Target, num_rounds: int) -> Evidence:
    """Another thread changes settings of the process while this one asks."""
    evidence = Evidence()
    settings = [setting for setting in SETTINGS if setting.name in _OF_THE_PROCESS]
    with fresh_certificates():
        engine = target.open()
        ask(engine, evidence)
        over = Event()

        def toggle() -> None:
            while not over.is_set():
                for setting in settings:
                    with setting.use():
                        over.wait(0.001)

        thread = Thread(target=toggle)
        thread.start()
        try:
            for _ in range(num_rounds):
                ask(engine, evidence)
        finally:
            over.set()
            thread.join()
        ask(engine, evidence)
    return evidence


def attack_submitters(target: Target, num_requests: int, num_threads: int = 8) -> Evidence:
    """Many threads submit to one `EngineThread`, cancel some of their requests, and wait."""
    evidence = Evidence()
    names = list(QUESTIONS)
    with fresh_certificates():
        engine = target.open()
        ask(engine, evidence)
        fingerprint = engine.fingerprint.digest
        with EngineThread(lambda: engine) as running, ThreadPoolExecutor(num_threads) as pool:

            def request(number: int) -> None:
                rng = random.Random(number)
                name = names[number % len(names)]
                handle = running.submit(QUESTIONS[name].prompt, QUESTIONS[name].params)
                if rng.random() < 0.25:
                    handle.cancel()
                    handle.wait()
                    return
                with evidence.refusing():
                    evidence.add(fingerprint, name, result_bits(handle.wait()))

            list(pool.map(request, range(num_requests)))
        if engine.revocation is not None:
            evidence.fail(f"a certified pass was not canonical: {engine.revocation}")
    return evidence


@pytest.mark.parametrize("kernels", ["c", "torch"])
def test_engine_built_in_another_thread(kernels: KernelBackend) -> None:
    """Subnormal numbers are flushed in the thread that asks, not in the one that builds."""
    setting = next(one for one in thread_settings() if one.name == "flushed denormals")
    attack_built_elsewhere(small_target(kernels, num_hidden_layers=1), setting, FEW).assert_held()


@pytest.mark.long
@FALLBACK
@pytest.mark.parametrize("setting", thread_settings(), ids=lambda setting: setting.name)
@pytest.mark.parametrize("kernels", ["c", "torch"])
def test_engine_built_in_another_thread_long(kernels: KernelBackend, setting: HostileSetting) -> None:
    attack_built_elsewhere(Target(kernels, "bf16"), setting).assert_held()


@pytest.mark.long
@FALLBACK
@pytest.mark.parametrize("kernels", ["c", "torch"])
def test_threads_in_turn(kernels: KernelBackend) -> None:
    attack_turns(small_target(kernels), 1).assert_held()


@pytest.mark.parametrize("kernels", ["c", pytest.param("torch", marks=pytest.mark.long)])
def test_many_submitters(kernels: KernelBackend) -> None:
    attack_submitters(small_target(kernels), 30).assert_held()


@pytest.mark.long
@pytest.mark.parametrize("kernels", ["c", "torch"])
def test_engines_side_by_side(kernels: KernelBackend) -> None:
    attack_side_by_side(Target(kernels, "fp32"), 6).assert_held()


@pytest.mark.long
@FALLBACK
@pytest.mark.parametrize("kernels", ["c", "torch"])
def test_settings_changed_by_another_thread(kernels: KernelBackend) -> None:
    """The same bits, or a refusal that names the setting."""
    evidence = attack_toggled(Target(kernels, "fp32"), 6)
    evidence.assert_held(may_refuse=True)
    assert all("ConfigError" in text for text in evidence.refusals)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_child_is_refused_instead_of_waiting_for_ever() -> None:
    engine = small_target("c", num_hidden_layers=1).open()
    probe = FEW["greedy"]
    before = answer(engine, [probe])
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # ends a child that waits
        try:
            answer(engine, [probe])
        except EngineStopped as error:
            os._exit(0 if "forked" in str(error) else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert result_bits(answer(engine, [probe])[0]) == result_bits(before[0])  # the parent goes on
