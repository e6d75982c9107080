"""Hostile threads: an engine built in one thread and driven from others, in other floating-point
environments; many submitters at once.
"""

import random
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event, Thread

from adversary.evidence import Evidence
from adversary.hostile_models import Target, fresh_certificates, subnormal
from adversary.questions import QUESTIONS, Questions, ask
from adversary.settings import SETTINGS, HostileSetting, ask_under, in_thread
from holdfast.bench.stress import result_bits
from holdfast.engine.engine import Engine
from holdfast.engine.llm.engine_thread import EngineThread

_OF_THE_PROCESS = ("matmul precision", "deterministic algorithms", "mkldnn off")
_OF_A_THREAD = ("flushed denormals", "rounding mode", "autocast", "number of threads")


def thread_settings() -> list[HostileSetting]:
    """The settings that each thread has for itself."""
    return [setting for setting in SETTINGS if setting.name in _OF_A_THREAD]


def attack_built_elsewhere(
    target: Target, setting: HostileSetting, questions: Questions = QUESTIONS
) -> Evidence:
    """The setting is made in this thread, an engine is built in another one, and this one asks."""
    evidence = Evidence(f"built in another thread: {setting.name}", target.name)
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
    evidence = Evidence("threads in turn", target.name)
    with fresh_certificates():
        engine = target.open(target.weights(subnormal))
        ask(engine, evidence)
        for _ in range(num_rounds):
            for setting in thread_settings():
                in_thread(partial(ask_under, engine, setting, evidence))
    return evidence


def attack_side_by_side(target: Target, num_rounds: int) -> Evidence:
    """Two models of one shape, each driven by a thread of its own, at the same time."""
    evidence = Evidence("engines side by side", target.name)
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
    evidence = Evidence("settings changed by another thread", target.name)
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
    evidence = Evidence("many submitters", target.name)
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
