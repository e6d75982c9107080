"""A plain model has no part of a thinking one: no extension of the scheduler or of the runner, and no thoughts."""

import random

from holdfast.engine.llm.llm import LLM
from support.thinking_engines import ask_all, draw_prompt, greedy


def test_plain_model_has_no_extensions(auto_llm: LLM) -> None:
    engine = auto_llm.engine
    assert engine.runner._extension is None  # type: ignore[attr-defined]
    assert engine.scheduler.config.new_extension is None
    rng = random.Random(3)
    for result in ask_all(engine, [draw_prompt(rng, 20, 290) for _ in range(3)], greedy(8)):
        assert result.thoughts == () and result.stats.guessed == 0
