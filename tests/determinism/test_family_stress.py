"""One deterministic request inside random loads has one result, in models of every family."""

import pytest
from stress_helpers import MODES, SMALL, only_result, plain_probe

from adversary.hostile_models import HOSTILE_SHAPES, OTHER_FAMILIES, Target
from holdfast.bench.stress import stress_test
from holdfast.numerics.recipe import KernelBackend

# Soft caps, norms after, and none; experts and sinks.
IN_GATE = ("gemma2", "cohere2", "gpt_oss")


def _cases() -> list[object]:
    return [
        pytest.param(family, kernels, dtype, id=f"{family}-{kernels}-{dtype}", marks=marks)
        for family in OTHER_FAMILIES
        for kernels, dtype in (("c", "bf16"), ("c", "fp32"), ("torch", "fp32"))
        for marks in [() if family in IN_GATE and dtype == "bf16" else pytest.mark.long]
    ]


@pytest.mark.parametrize(("family", "kernels", "dtype"), _cases())
def test_one_result_in_any_load(family: str, kernels: KernelBackend, dtype: str) -> None:
    limits = {"max_pass_tokens": 128} if kernels == "torch" else {}
    target = Target(kernels, dtype, shape=HOSTILE_SHAPES[family], limits=limits)
    engine = target.open(target.weights(near_ties=True))
    assert engine.limits.refusal is None
    summary = stress_test(engine, plain_probe(0.0), MODES, 4, scale=SMALL)
    assert len(only_result(summary).choices[0].token_ids) == 24
