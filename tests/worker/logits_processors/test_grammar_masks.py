"""The thread for grammar masks: spans are independent, and the pass always waits for the thread."""

import threading
import time
from collections.abc import Sequence

import pytest

from holdfast.core.step_plan import Span
from holdfast.core.structured_output import Constraint
from holdfast.worker.logits_processors.token_masks import GrammarMaskWorker
from worker.sampler_spans import FixedGrammar, span


def fixed(*masks: bytes | None) -> Constraint:
    return Constraint(FixedGrammar(lambda candidates, count: list(masks)), ())


class Panic(BaseException):
    """As raised by compiled grammars that panic."""


def failing(error: BaseException) -> Constraint:
    def fail(candidates: Sequence[int], count: int) -> list[bytes | None]:
        raise error

    return Constraint(FixedGrammar(fail), ())


def test_masks_are_returned_by_span() -> None:
    asked: list[tuple[tuple[int, ...], int]] = []

    def note(candidates: Sequence[int], count: int) -> list[bytes | None]:
        asked.append((tuple(candidates), count))
        return [b"a", None, b"b"]

    window = span([0] * 9, 3, constraint=Constraint(FixedGrammar(note), (7, 8)))
    with GrammarMaskWorker().computing([span([0] * 9, 2), window]) as masks:
        assert masks() == [(), (b"a", None, b"b")]
    assert asked == [((7, 8), 3)]


def test_span_without_sampled_tokens_needs_no_mask(caplog: pytest.LogCaptureFixture) -> None:
    chunk = Span(1, 0, (1, 2), (0,), 2, span([0]).sampling, constraint=failing(Panic()))
    with GrammarMaskWorker().computing([chunk]) as masks:
        assert masks() == [()]
    assert not caplog.records


@pytest.mark.parametrize("error", [ValueError("stuck"), Panic("stuck")])
def test_failing_grammar_allows_nothing_and_affects_no_other_span(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    spans = [
        span([0] * 9, 1, constraint=fixed(b"a")),
        span([0] * 9, 2, constraint=failing(error)),
        span([0] * 9, 1, constraint=fixed(b"b")),
        span([0] * 9, 2, constraint=fixed(b"one too few")),
    ]
    with GrammarMaskWorker().computing(spans) as masks:
        assert masks() == [(b"a",), (b"", b""), (b"b",), (b"", b"")]
    assert "stuck" in caplog.text
    assert "1 masks for 2 tokens" in caplog.text


@pytest.mark.parametrize("error", [RuntimeError("a pass failed"), KeyboardInterrupt()])
def test_error_in_the_pass_waits_for_the_masks(error: BaseException) -> None:
    done = threading.Event()

    def slow(candidates: Sequence[int], count: int) -> list[bytes | None]:
        time.sleep(0.2)
        done.set()
        return [None]

    worker = GrammarMaskWorker()
    with (
        pytest.raises(type(error)),
        worker.computing([span([0], 1, constraint=Constraint(FixedGrammar(slow), ()))]),
    ):
        raise error
    assert done.is_set()
    with worker.computing([span([0], 1, constraint=fixed(b"next"))]) as masks:
        assert masks() == [(b"next",)]


def test_masks_are_computed_in_parallel() -> None:
    """The grammar waits for something that the pass does after starting it."""
    going = threading.Event()

    def waits(candidates: Sequence[int], count: int) -> list[bytes | None]:
        return [b"met" if going.wait(5) else b"missed"]

    with GrammarMaskWorker().computing(
        [span([0], 1, constraint=Constraint(FixedGrammar(waits), ()))]
    ) as masks:
        going.set()
        assert masks() == [(b"met",)]
