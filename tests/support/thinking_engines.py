"""Engines over tiny thinking models, their prompts, and the parts of an answer that must not differ."""

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.core.results import Result
from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.config import EngineConfig
from holdfast.engine.engine import Engine
from holdfast.engine.start.builder import build
from holdfast.numerics.recipe import KernelBackend
from holdfast.scheduler.policy import SchedulerConfig
from holdfast.thinking.config import CONFIG_FILE
from holdfast.thinking.runner import ThoughtRunner
from support.stepping import answer

Ids = tuple[int, ...]


def open_thinker(folder: Path, kernels: KernelBackend = "c", **settings: Any) -> Engine:
    """Large enough for 32 requests; to be restarted under any schedule."""
    usual = {"dtype": "fp32", "max_num_seqs": 32, "max_pass_tokens": 128, "kv_memory": "8MiB"}
    return build(EngineConfig(model=str(folder), kernels=kernels, **{**usual, **settings}))


def thinker_of(engine: Engine) -> ThoughtRunner:
    thinker = engine.runner._extension  # type: ignore[attr-defined]
    assert isinstance(thinker, ThoughtRunner)
    return thinker


def with_guesses(config: SchedulerConfig, max_guesses: int) -> SchedulerConfig:
    """The same schedule, but a pass guesses at most so many thoughts."""
    assert config.new_extension is not None
    return replace(config, new_extension=config.new_extension.guessing(max_guesses))


def change_thinking(folder: Path, **changes: object) -> None:
    """Change settings in thinking.json and keep the weights."""
    path = folder / CONFIG_FILE
    fields = {**json.loads(path.read_text()), **changes}
    if "settle" in fields:
        fields = {"carry": False, "reset_ids": [], **fields, "format": 4}
    elif "carry" in fields:
        fields["format"] = 3 if "reset_ids" in fields else 2
    path.write_text(json.dumps(fields), encoding="utf-8")


def draw_prompt(rng: random.Random, length: int, vocab_size: int) -> Ids:
    """Random tokens, sometimes a repeated n-gram."""
    period = rng.choice([length, length, min(length, 3)])
    pattern = [rng.randrange(3, vocab_size) for _ in range(period)]
    return tuple(pattern[at % period] for at in range(length))


def greedy(max_tokens: int = 12, **changes: Any) -> SamplingParams:
    usual = {"temperature": 0, "deterministic": True, "ignore_eos": True, "logprobs": 2}
    return SamplingParams(max_tokens=max_tokens, **{**usual, **changes})


def ask_all(engine: Engine, prompts: Sequence[Ids], params: SamplingParams) -> list[Result]:
    return answer(engine, [engine.prepare(prompt, params) for prompt in prompts])


def thoughts_of(choice: Result) -> tuple[tuple[int, Ids], ...]:
    return tuple((thought.chunk, thought.token_ids) for thought in choice.thoughts)
