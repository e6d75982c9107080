"""Grammar masks, computed by one thread while the device runs the pass.

A grammar is not used after its pass: the pass waits for the thread even if it fails itself.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager

from holdfast.core.step_plan import Span
from holdfast.worker.logits import Masks

_log = logging.getLogger(__name__)

NOTHING_ALLOWED = b""  # a mask without a set bit


class GrammarMaskWorker:
    """The thread. It starts with the first span that has a grammar."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "grammar-masks")

    @contextmanager
    def computing(self, spans: Sequence[Span]) -> Iterator[Callable[[], list[Masks]]]:
        """Start to compute the masks of the spans' sampled tokens; wait for them on exit. Yields
        a function that returns them, by span."""
        if not any(_is_constrained(span) for span in spans):
            yield lambda: [()] * len(spans)
            return
        job = self._pool.submit(lambda: [_masks(span) for span in spans])
        try:
            yield job.result
        finally:
            wait((job,))


def _is_constrained(span: Span) -> bool:
    return span.constraint is not None and span.num_sampled > 0


def _masks(span: Span) -> Masks:
    """Return one mask for each sampled token. A grammar that fails allows nothing in its own span."""
    if span.constraint is None or span.num_sampled == 0:
        return ()
    constraint, count = span.constraint, span.num_sampled
    try:
        masks = tuple(constraint.grammar.masks(constraint.candidates, count))
        if len(masks) != count:
            raise RuntimeError(f"a grammar gave {len(masks)} masks for {count} tokens")
    except (
        BaseException
    ):  # a panic of compiled code is not an Exception, and this thread gets no KeyboardInterrupt
        _log.exception("the grammar of request %d failed", span.request_id)
        return (NOTHING_ALLOWED,) * count
    return masks
