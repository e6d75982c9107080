"""Spot checks of a thinking model: correct passes are accepted, every injected fault is found."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from holdfast.bench.stress import result_bits
from holdfast.core.results import Result, ThoughtIds
from holdfast.core.step_plan import PassKind, PassResult, StepPlan
from holdfast.engine.engine import Engine
from holdfast.numerics.bits import bits_of
from holdfast.thinking.log import guesses_of
from support.faulty_backend import ChangedBackend
from support.thinking_engines import (
    ask_all,
    change_thinking,
    draw_prompt,
    greedy,
    open_thinker,
    thinker_of,
    thoughts_of,
)
from support.thinking_models import thinker_folder

_rng = random.Random(2)
PROMPTS = [draw_prompt(_rng, length, 290) for length in (5, 16, 21, 40, 63, 80)]
PARAMS = greedy(24)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """Shared by all tests; each restarts it. T reads the last layer's output, of which no key is made. The last
    chunks of most prompts are closed before they are full."""
    folder: Path = thinker_folder(tmp_path_factory.mktemp("watched") / "model", chunk=4)
    change_thinking(folder, l_out=3, settle=True)
    return open_thinker(folder, spot_check_rate=1.0)


@pytest.fixture
def engine(sound: Engine) -> Iterator[Engine]:
    backend = sound.runner._decoder.backend  # type: ignore[attr-defined]
    fresh = sound.restarted(sound.scheduler.config)
    if not fresh.scheduler.config.one_pass_suffices:
        pytest.skip("nothing is certified on this machine, so nothing can be revoked")
    yield fresh
    sound.runner._decoder.backend = backend  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def truths(sound: Engine) -> list[Result]:
    fresh = sound.restarted(replace(sound.scheduler.config, determinism="verify"))
    return ask_all(fresh, PROMPTS, PARAMS)


def test_spot_checks_accept_correct_thinking_passes(engine: Engine, truths: list[Result]) -> None:
    for _ in range(2):
        results = ask_all(engine, PROMPTS, PARAMS)
        assert [result_bits(result) for result in results] == [result_bits(result) for result in truths]
    assert engine.counters.num_spot_checks > 10
    assert engine.counters.num_revocations == 0
    assert any(thought for result in results for _, thought in thoughts_of(result))


class WrongLayer(ChangedBackend):
    """A backend whose fast form of one layer is wrong; in the last layer only what T reads is wrong, not the logits."""

    def __init__(self, backend: Any, wrong: Any, *, only_rows: bool) -> None:
        super().__init__(backend)
        self._wrong, self._only_rows = wrong, only_rows

    def layer(self, residual: Tensor, x: Tensor, weights: Any, *rest: Any, canonical: bool) -> None:
        self._backend.layer(residual, x, weights, *rest, canonical=canonical)
        if weights is self._wrong and not canonical:
            residual[:, 3] *= 1.5
            if not self._only_rows:
                x[:, 3] *= 1.5


def finish_or_lose(engine: Engine, truths: list[Result]) -> list[str | None]:
    """Every answer that is not certified equals the expected one or reports a lost guarantee."""
    errors = []
    for result, truth in zip(ask_all(engine, PROMPTS, PARAMS), truths, strict=True):
        errors.append(result.error)
        if result.error is not None:
            assert result.error_code == "guarantee_lost"
            assert (result.finish_reason, result.determinism) == ("error", "none")
        elif result.determinism != "certified":
            assert result_bits(result) == result_bits(truth)
    assert engine.counters.num_revocations == 1
    later = ask_all(engine, PROMPTS, PARAMS)
    assert [result_bits(result) for result in later] == [result_bits(result) for result in truths]
    assert all(result.determinism == "verified" for result in later)
    return errors


@pytest.mark.parametrize("which", [0, 1, 2])
def test_spot_check_finds_wrong_layer(engine: Engine, truths: list[Result], which: int) -> None:
    decoder = engine.runner._decoder  # type: ignore[attr-defined]
    decoder.backend = WrongLayer(decoder.backend, decoder.layers[which], only_rows=which == 2)
    errors = finish_or_lose(engine, truths)
    assert any(errors), "what was sent of it was wrong"
    assert engine.revocation is not None
    assert ("the input of T at position" in engine.revocation) == (which == 2)


def test_spot_check_finds_wrong_thought(
    engine: Engine, truths: list[Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Certified passes give a wrong thought, and nothing else is wrong."""
    thinker = thinker_of(engine)
    finish, think = thinker.finish, thinker._blocks.think

    def other(rows: Tensor, *, canonical: bool) -> list[ThoughtIds]:
        return [(7,) for _ in think(rows, canonical=canonical)]

    def finish_wrongly(one: Any, *, canonical: bool) -> Any:
        with monkeypatch.context() as patch:
            if one.certified:
                patch.setattr(thinker._blocks, "think", other)
            return finish(one, canonical=canonical)

    with monkeypatch.context() as patch:
        patch.setattr(thinker, "finish", finish_wrongly)
        errors = finish_or_lose(engine, truths)
    assert any(errors)
    assert engine.revocation is not None and "the thought after position" in engine.revocation


def _flip(tensor: Tensor) -> None:
    bits_of(tensor)[..., 5] ^= 1


SPOIL: dict[str, Callable[[Any], None]] = {
    "rows": lambda thinker: _flip(thinker.residuals),
    "states": lambda thinker: _flip(thinker.states),
    "told": lambda thinker: thinker.has_state.logical_not_(),
}


@pytest.mark.parametrize("what", SPOIL)
def test_spot_check_finds_one_wrong_bit_in_states(
    engine: Engine, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Corrupted after the pass that wrote it and before its check."""
    thinker, run = thinker_of(engine), engine.runner.run
    spoiled = []

    def spoil(plan: StepPlan) -> list[PassResult]:
        checks = [one.spans[0] for one in plan.passes if one.kind is PassKind.CHECK]
        if not spoiled and any(any(guesses_of(span)) for span in checks):
            spoiled.append(True)
            SPOIL[what](thinker)
        return run(plan)

    monkeypatch.setattr(engine.runner, "run", spoil)
    ask_all(engine, PROMPTS[-1:], PARAMS)
    assert spoiled and engine.revocation is not None, "it was not found"
