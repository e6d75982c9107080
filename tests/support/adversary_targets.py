"""Targets of the adversary that are small enough for matrix products in Python."""

from dataclasses import replace

from adversary.hostile_models import Target
from adversary.questions import QUESTIONS
from holdfast.numerics.recipe import KernelBackend

_SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 304,
}
_LIMITS = {"max_num_seqs": 8, "max_pass_tokens": 32, "kv_memory": "2MiB"}


# Few and short questions.
FEW = {
    name: replace(QUESTIONS[name], params=replace(QUESTIONS[name].params, max_tokens=4))
    for name in ("greedy", "filtered")
}


def small_target(kernels: KernelBackend, dtype: str = "fp32", **shape: object) -> Target:
    return Target(kernels, dtype, shape={**_SHAPE, **shape}, limits=_LIMITS)
