"""A plain model has no thinking overhead: no tensors, no hooks between layers, nothing in its spans."""

import random
from pathlib import Path
from typing import Any

import pytest

from holdfast.models.decoder import Decoder
from holdfast.scheduler.scheduler import Scheduler
from holdfast.thinking import blocks
from holdfast.thinking import runner as thinker
from holdfast.thinking.config import CONFIG_FILE, WEIGHTS_FILE
from support.thinking_engines import ask_all, draw_prompt, greedy, open_thinker
from support.thinking_models import thinker_folder


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The backbone of a model that thinks."""
    folder = thinker_folder(tmp_path_factory.mktemp("backbone") / "model")
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        folder.joinpath(name).unlink()
    return folder


def test_plain_model_has_no_thinking_overhead(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **settings: object) -> None:
        raise AssertionError("a plain model thinks")

    monkeypatch.setattr(thinker.ThoughtRunner, "__init__", refuse)
    monkeypatch.setattr(blocks.ThoughtBlocks, "__init__", refuse)
    between, spans = [], []
    run, absorb = Decoder._run, Scheduler.update

    def look(self: Decoder, *arguments: Any) -> Any:
        between.append(arguments[-1])
        return run(self, *arguments)

    def look_at(self: Scheduler, plan: Any, results: Any, *rest: Any) -> Any:
        spans.extend(span.extra for one in plan.passes for span in one.spans)
        assert all(result.extra == () for result in results)
        return absorb(self, plan, results, *rest)

    monkeypatch.setattr(Decoder, "_run", look)
    monkeypatch.setattr(Scheduler, "update", look_at)
    engine = open_thinker(plain, max_num_seqs=8, max_pass_tokens=32)
    rng = random.Random(3)
    results = ask_all(engine, [draw_prompt(rng, 20, 290) for _ in range(3)], greedy(8))
    assert engine.runner._extension is None  # type: ignore[attr-defined]
    assert engine.scheduler.config.new_extension is None
    assert set(between) == {None} and set(spans) == {None}
    for result in results:
        assert result.thoughts == ()
        assert result.stats.guessed == result.stats.guessed_right == 0
