"""The adversary's questions: fixed requests whose answers show any change of a bit."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from adversary.evidence import Evidence
from holdfast.bench.load import LoadScale, ProbeRequest, draw_load
from holdfast.bench.stress import result_bits, run_in_load
from holdfast.core.results import Result
from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.engine import Engine
from holdfast.errors import ConfigError
from holdfast.models.decoder import Decoder
from holdfast.numerics.ops import Backend
from holdfast.scheduler.policy import DeterminismMode
from support import stepping

_PROMPT = tuple(20 + at * at % 211 for at in range(21))
_GREEDY = SamplingParams(max_tokens=10, temperature=0.0, deterministic=True, ignore_eos=True, logprobs=3)
_SAMPLED = replace(_GREEDY, temperature=1.0, seed=11)

Questions = Mapping[str, ProbeRequest]  # by name

QUESTIONS: Questions = {
    "greedy": ProbeRequest(_PROMPT, _GREEDY),
    "sampled": ProbeRequest(_PROMPT[3:], _SAMPLED),
    "filtered": ProbeRequest(_PROMPT[:15], replace(_SAMPLED, top_p=0.8, top_k=40, min_p=0.01, n=2)),
    "penalised": ProbeRequest(_PROMPT[:8], replace(_SAMPLED, repetition_penalty=1.3, presence_penalty=0.5)),
    "scored": ProbeRequest(_PROMPT, replace(_GREEDY, max_tokens=0, logprobs=None, prompt_logprobs=2)),
}
_NEIGHBOURS = tuple(
    ProbeRequest(
        (number + 30,) * (3 + 7 * number), replace(_GREEDY, deterministic=number % 2 == 0, logprobs=None)
    )
    for number in range(3)
)

MODES: tuple[DeterminismMode, ...] = ("auto", "verify")
_SMALL_LOADS = LoadScale(max_background=5, max_prompt_len=40, max_tokens=8)


def answer(engine: Engine, probes: Sequence[ProbeRequest]) -> list[Result]:
    """Run the requests together to the end, and the spot checks after them."""
    return stepping.answer(engine, [engine.prepare(one.prompt, one.params) for one in probes])


def backend_of(engine: Engine) -> Backend:
    """The backend that computes this engine's passes."""
    decoder: Decoder = engine.runner._decoder  # type: ignore[attr-defined]
    return decoder.backend


def ask(engine: Engine, evidence: Evidence, questions: Questions = QUESTIONS) -> None:
    """Ask each question alone, and then all of them together among neighbours."""
    for name, probe in questions.items():
        with evidence.refusing():
            note_answer(engine, evidence, name, answer(engine, [probe])[0])
    with evidence.refusing():
        together = answer(engine, [*questions.values(), *_NEIGHBOURS])
        for name, result in zip(questions, together, strict=False):
            note_answer(engine, evidence, name, result)
    if engine.revocation is not None:
        evidence.fail(f"a certified pass was not canonical: {engine.revocation}")


def note_answer(engine: Engine, evidence: Evidence, question: str, result: Result) -> None:
    """Add an answer. A pass that raised is a crash, unless a setting was refused in it."""
    if result.error_code == "pass_failed" and ConfigError.__name__ not in (result.error or ""):
        evidence.fail(f"{question}: {result.error}")
    elif result.error is not None:
        evidence.refusals[result.error] += 1
    else:
        evidence.add(engine.fingerprint.digest, question, result_bits(result))


def ask_in_loads(
    engine: Engine, evidence: Evidence, num_loads: int, questions: Questions = QUESTIONS
) -> None:
    """Ask alone, together, and every question in random loads, in `auto` and in `verify`.

    The engine is restarted for each load, so it must not be used any more.
    """
    ask(engine, evidence, questions)
    for number in range(num_loads):
        for name, probe in questions.items():
            ask_in_load(engine, evidence, name, probe, number)


def ask_in_load(engine: Engine, evidence: Evidence, name: str, probe: ProbeRequest, number: int) -> None:
    """Ask one question in a random load; the number decides the load and the mode."""
    load = draw_load(random.Random(f"{number} {name}"), engine, probe, MODES[number % 2], _SMALL_LOADS)
    with evidence.refusing():
        run = run_in_load(engine, load, probe)
        evidence.add(engine.fingerprint.digest, name, result_bits(run.result))
        if run.counters.num_revocations:
            evidence.fail("a certified pass was not canonical")
