"""Attacks on an engine that is already open, such as one with a large model or on a GPU.

Settings that a trainer makes around its own work, and torch work of its own between our steps. Each
question is asked before, under the setting, and after it.
"""

import torch

from adversary.evidence import Evidence
from adversary.questions import QUESTIONS, ask
from adversary.settings import SETTINGS, HostileSetting, in_thread, switched
from holdfast.bench.stress import result_bits, submit
from holdfast.engine.engine import Engine

_MATMUL = torch.backends.cuda.matmul

CUDA_SETTINGS: tuple[HostileSetting, ...] = (
    HostileSetting(
        "CUDA autocast",
        lambda: torch.autocast("cuda", dtype=torch.bfloat16),
        lambda: torch.is_autocast_enabled("cuda"),
    ),
    switched(
        "TF32",
        lambda: _MATMUL.allow_tf32,
        lambda value: setattr(_MATMUL, "allow_tf32", value),
        True,
    ),
    switched(
        "reduced-precision reductions",
        lambda: _MATMUL.allow_bf16_reduced_precision_reduction,
        lambda value: setattr(_MATMUL, "allow_bf16_reduced_precision_reduction", value),
        True,
    ),
    HostileSetting(
        "another stream",
        lambda: torch.cuda.stream(torch.cuda.Stream()),  # type: ignore[no-untyped-call]
        lambda: torch.cuda.current_stream().cuda_stream,
    ),
)


def live_settings(device: torch.device) -> tuple[HostileSetting, ...]:
    return (*SETTINGS, *CUDA_SETTINGS) if device.type == "cuda" else SETTINGS


def attack_live_setting(engine: Engine, name: str, setting: HostileSetting) -> Evidence:
    evidence = Evidence(f"live: {setting.name}", name)
    ask(engine, evidence)
    with setting.use():
        before = setting.read()
        in_thread(lambda: ask(engine, evidence))
        after = setting.read()
        ask(engine, evidence)
    if after != before:
        evidence.fail(f"the caller's {setting.name} was {before} and is {after}")
    ask(engine, evidence)
    return evidence


def attack_own_work(engine: Engine, name: str, num_rounds: int, device: torch.device) -> Evidence:
    """The caller multiplies, draws random numbers and trains between our steps."""
    evidence = Evidence("own work between steps", name)
    ask(engine, evidence)
    x = torch.randn(33, 65, device=device, requires_grad=True)
    settings = live_settings(device)
    for number in range(num_rounds):
        for question, probe in QUESTIONS.items():
            with evidence.refusing():
                request_id = submit(engine, probe.prompt, probe.params)
                while engine.has_work:
                    for update in engine.step():
                        if update.request_id == request_id and update.result is not None:
                            bits = result_bits(update.result)
                            evidence.add(engine.fingerprint.digest, question, bits)
                    with settings[number % len(settings)].use(), torch.device(device):
                        total = (x @ x.T).sum()
                        if total.requires_grad:
                            torch.autograd.backward(total)
                        torch.manual_seed(number)
    return evidence
