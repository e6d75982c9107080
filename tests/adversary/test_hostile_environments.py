"""Environment variables that libraries read when they are loaded: the same bits, or another
fingerprint.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from adversary.environments import ENVIRONMENTS, attack_environments
from adversary.evidence import Evidence
from adversary.hostile_models import Target, fresh_certificates
from adversary.questions import ask
from holdfast.numerics.recipe import KernelBackend
from support.adversary_targets import FEW, small_target


def _changed(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with a large error. A small one would seldom show."""
    return lambda x, *rest, **named: function(x, *rest, **named) * 1.01


def test_functions_of_numpy_reach_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """NPY_DISABLE_CPU_FEATURES changes the last bits of numpy's logarithm and exponential."""
    evidence = Evidence()
    with fresh_certificates():
        engine = small_target("torch", num_hidden_layers=1).open(determinism="off")
        engine.limits = replace(engine.limits, refusal=None)  # not certified: every token is verified
        engine = engine.restarted(replace(engine.scheduler.config, determinism="verify"))
        ask(engine, evidence, FEW)
        for name in ("log", "log1p", "exp", "sin", "cos", "tanh", "sqrt", "power"):
            monkeypatch.setattr(np, name, _changed(getattr(np, name)))
        ask(engine, evidence, FEW)
    evidence.assert_held()


@pytest.mark.long
def test_children_with_one_fingerprint_have_the_same_bits() -> None:
    """Features that numpy dispatches on x86 and on Arm."""
    features = "AVX512F AVX512_SKX AVX2 FMA3 ASIMDHP ASIMDFHM SVE"
    environments = [{"NPY_DISABLE_CPU_FEATURES": features, "ATEN_CPU_CAPABILITY": "default"}]
    attack_environments(Target("torch", "fp32"), environments, num_jobs=2, num_controls=1).assert_held()


@pytest.mark.long
@pytest.mark.parametrize(("kernels", "dtype"), [("c", "bf16"), ("torch", "fp32")])
def test_every_environment(kernels: KernelBackend, dtype: str) -> None:
    attack_environments(Target(kernels, dtype), ENVIRONMENTS, num_jobs=2).assert_held(may_refuse=True)
