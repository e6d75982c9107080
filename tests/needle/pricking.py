"""What the needle tests share; run as a program, it pricks in a process of its own and prints how many answers it saw."""

import hashlib
import random
import sys

from holdfast.bench.needle import Outcome, Scale, Tally, prick
from holdfast.bench.tiny import tiny_engine
from holdfast.core.params import SamplingParams
from holdfast.engine.config import EngineConfig, Kernels
from holdfast.engine.loop import Engine

SMALL = Scale(max_neighbours=12, max_prompt=60)
LARGE = Scale(max_neighbours=31, max_prompt=700)

_rng = random.Random(1)
PROMPT = [_rng.randrange(2, 400) for _ in range(37)]


def params(temperature: float, *, deterministic: bool = True) -> SamplingParams:
    return SamplingParams(
        max_tokens=24,
        temperature=temperature,
        top_p=0.95 if temperature else 1.0,
        seed=5,
        ignore_eos=True,
        logprobs=3,
        deterministic=deterministic,
    )


def engine(kernels: Kernels, dtype: str) -> Engine:
    """A tiny model in which, in fp32, every token has a near twin."""
    config = EngineConfig(kernels=kernels, dtype=dtype, max_num_seqs=32, kv_memory="64MiB")
    return tiny_engine(config, twins=dtype == "fp32")


def scale(kernels: Kernels) -> Scale:
    return LARGE if kernels == "compiled" else SMALL


def outcome(tally: Tally) -> Outcome:
    """The one answer all runs gave."""
    assert tally.num_distinct == 1, f"{tally.num_distinct} different answers in {tally.num_runs} runs"
    return next(iter(tally.outcomes))


if __name__ == "__main__":
    for dtype in ("fp32", "bf16"):
        one = engine(sys.argv[1], dtype)  # type: ignore[arg-type]
        for temperature in (0.0, 0.9):
            tally = prick(one, PROMPT, params(temperature), ("auto", "verify"), 6, scale=SMALL)
            digest = hashlib.sha256(repr(outcome(tally)).encode()).hexdigest()
            print(dtype, temperature, tally.num_distinct, digest)
