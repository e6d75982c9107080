"""The thread beside the pass: masks of every span, no span harmed by another's grammar, and nobody left working."""

import threading
import time
from collections.abc import Sequence

import pytest

from holdfast.core.grammar import Constraint
from holdfast.core.step_plan import Span
from holdfast.worker.logits_processors.grammar_masks import GrammarMaskWorker
from worker.sampler_spans import ToldGrammar, span


def told(*masks: bytes | None) -> Constraint:
    return Constraint(ToldGrammar(lambda candidates, count: list(masks)), ())


class Panic(BaseException):
    """What compiled grammars raise when they break."""


def failing(error: BaseException) -> Constraint:
    def fail(candidates: Sequence[int], count: int) -> list[bytes | None]:
        raise error

    return Constraint(ToldGrammar(fail), ())


def test_masks_by_span() -> None:
    asked: list[tuple[tuple[int, ...], int]] = []

    def note(candidates: Sequence[int], count: int) -> list[bytes | None]:
        asked.append((tuple(candidates), count))
        return [b"a", None, b"b"]

    window = span([0] * 9, 3, constraint=Constraint(ToldGrammar(note), (7, 8)))
    with GrammarMaskWorker().computing([span([0] * 9, 2), window]) as masks:
        assert masks() == [(), (b"a", None, b"b")]
    assert asked == [((7, 8), 3)]


def test_a_span_without_sampled_rows_asks_nothing(caplog: pytest.LogCaptureFixture) -> None:
    chunk = Span(1, 0, (1, 2), (0,), 2, span([0]).sampling, constraint=failing(Panic()))
    with GrammarMaskWorker().computing([chunk]) as masks:
        assert masks() == [()]
    assert not caplog.records


@pytest.mark.parametrize("error", [ValueError("stuck"), Panic("stuck")])
def test_a_grammar_that_fails_allows_nothing_and_harms_no_other(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    spans = [
        span([0] * 9, 1, constraint=told(b"a")),
        span([0] * 9, 2, constraint=failing(error)),
        span([0] * 9, 1, constraint=told(b"b")),
        span([0] * 9, 2, constraint=told(b"one too few")),
    ]
    with GrammarMaskWorker().computing(spans) as masks:
        assert masks() == [(b"a",), (b"", b""), (b"b",), (b"", b"")]
    assert "stuck" in caplog.text
    assert "1 masks for 2 tokens" in caplog.text


@pytest.mark.parametrize("error", [RuntimeError("a pass failed"), KeyboardInterrupt()])
def test_an_error_beside_the_work_waits_for_it(error: BaseException) -> None:
    done = threading.Event()

    def slow(candidates: Sequence[int], count: int) -> list[bytes | None]:
        time.sleep(0.2)
        done.set()
        return [None]

    worker = GrammarMaskWorker()
    with (
        pytest.raises(type(error)),
        worker.computing([span([0], 1, constraint=Constraint(ToldGrammar(slow), ()))]),
    ):
        raise error
    assert done.is_set()
    with worker.computing([span([0], 1, constraint=told(b"next"))]) as masks:
        assert masks() == [(b"next",)]


def test_the_work_runs_beside_its_owner() -> None:
    """The grammar waits for something the owner does after starting it."""
    going = threading.Event()

    def waits(candidates: Sequence[int], count: int) -> list[bytes | None]:
        return [b"met" if going.wait(5) else b"missed"]

    with GrammarMaskWorker().computing(
        [span([0], 1, constraint=Constraint(ToldGrammar(waits), ()))]
    ) as masks:
        going.set()
        assert masks() == [(b"met",)]
