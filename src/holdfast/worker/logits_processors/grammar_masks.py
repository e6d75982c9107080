"""Grammar masks beside the pass: one thread asks the grammars while the device computes.

Nobody touches a grammar once the pass is over: whoever starts the work waits for it, whatever else goes wrong.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager

from holdfast.core.step_plan import Span
from holdfast.worker.logits_slices import Masks

_log = logging.getLogger(__name__)

NOTHING = b""  # a mask without a set bit


class MaskWorker:
    """The thread. It starts with the first span that has a grammar."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "grammar-masks")

    @contextmanager
    def working_on(self, spans: Sequence[Span]) -> Iterator[Callable[[], list[Masks]]]:
        """Starts on the masks of the spans' sampled rows, and leaves when they are done. Inside, call what it yields to
        have them."""
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
    """One mask a sampled row. A grammar that fails allows nothing, and harms no other span."""
    if span.constraint is None or span.num_sampled == 0:
        return ()
    constraint, count = span.constraint, span.num_sampled
    try:
        masks = tuple(constraint.grammar.masks(constraint.candidates, count))
        if len(masks) != count:
            raise RuntimeError(f"a grammar gave {len(masks)} masks for {count} rows")
    except BaseException:  # a panic of compiled code is no Exception, and nobody can interrupt this thread
        _log.exception("the grammar of request %d failed", span.request_id)
        return (NOTHING,) * count
    return masks
