"""`bench speed`: what one engine does on this machine, in tok/s: prefill, and decoding in 1, 8 and 32 streams.

The variants run in turn, round after round, and the best time of each counts: other load on the
machine slows one round, not one variant. Ratios of one run can be compared, times of different runs cannot.
Prefix cache and speculation are off.
"""

import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.engine import Engine
from holdfast.errors import ConfigError
from holdfast.scheduler.policy import DeterminismMode

STREAMS = (1, 8, 32)
PREFILL = 512  # tokens of one prompt
_DECODE_PROMPT = 32
_VARIANTS: tuple[tuple[str, DeterminismMode, bool], ...] = (
    ("ordinary", "off", False),
    ("deterministic, auto", "auto", True),
    ("deterministic, verify", "verify", True),
)

Prompts = Sequence[Sequence[int]]
Run = Callable[[Prompts, int], float]  # (prompts of one length, tokens of each answer) -> seconds
Speeds = dict[str, dict[str, float]]  # tok/s by variant and cell


def engine_runs(engine: Engine) -> dict[str, Run]:
    return {name: partial(_seconds, engine, mode, deterministic) for name, mode, deterministic in _VARIANTS}


def measure(
    runs: Mapping[str, Run],
    vocab_size: int,
    rounds: int,
    num_tokens: int,
    log: Callable[[str], None],
    *,
    prefill: int = PREFILL,
    omits_first: Collection[str] = (),
) -> Speeds:
    """Measure every cell, round after round. omits_first: variants that do not time the first token."""
    rng, best = random.Random(0), dict[tuple[str, int, int, int], float]()
    cells = [(1, prefill, 1)]
    cells += [(streams, _DECODE_PROMPT, length) for streams in STREAMS for length in (1, num_tokens)]
    for number in range(rounds):
        for name, run in runs.items():
            log(f"round {number + 1} of {rounds}: {name}")
            for streams, prompt_len, length in cells:
                ids = range(min(100, vocab_size // 2), min(40_000, vocab_size))
                prompts = [rng.choices(ids, k=prompt_len) for _ in range(streams)]
                seconds = run(prompts, length)
                key = (name, streams, prompt_len, length)
                best[key] = min(seconds, best.get(key, seconds))

    def decode_speed(name: str, streams: int) -> float:
        """Subtract best times, not times of one round: one slow prefill must not make decoding look fast."""
        first = 0.0 if name in omits_first else best[name, streams, _DECODE_PROMPT, 1]
        rest = best[name, streams, _DECODE_PROMPT, num_tokens] - first
        if rest <= 0:
            raise ConfigError(
                f"{name}: {num_tokens} tokens for {streams} streams took no longer than one token; give more "
                "--num-tokens or --rounds"
            )
        return streams * (num_tokens - 1) / rest

    return {
        name: {
            f"prefill {prefill}": prefill / best[name, 1, prefill, 1],
            **{f"{n} stream{'s' * (n > 1)}": decode_speed(name, n) for n in STREAMS},
        }
        for name in runs
    }


def _seconds(
    engine: Engine, mode: DeterminismMode, deterministic: bool, prompts: Prompts, num_tokens: int
) -> float:
    schedule = replace(engine.scheduler.config, determinism=mode, prefix_cache=False, speculation="off")
    engine = engine.restarted(schedule)
    params = SamplingParams(
        max_tokens=num_tokens, temperature=0, ignore_eos=True, deterministic=deterministic
    )
    started = time.perf_counter()
    for prompt in prompts:
        engine.submit(engine.prepare(prompt, params))
    while engine.has_work:
        engine.step()
    return time.perf_counter() - started
