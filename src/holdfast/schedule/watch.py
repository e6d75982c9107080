"""The watch over the certificate: some rows of certified passes are computed again at the reference's shape.

One window at a time. It opens on a span of a deterministic request, grows with that request until it holds a reference
pass, and is then checked by a pass of its own, into scratch pages, beside which everything goes on. `rate` is the share of
certified rows that are checked, spent evenly; the requests take turns. No chance is involved and no clock.

    open on a span -> note what it gave -> settle: full, or the request ended -> plan_check -> close
"""

from collections.abc import Sequence as Ordered
from dataclasses import dataclass, replace

from holdfast.core.plan import Pass, PassKind, Sampled, Span
from holdfast.kv.pool import PagePool
from holdfast.schedule.policy import round_up
from holdfast.schedule.sequence import Sequence
from holdfast.schedule.spans import check_span


@dataclass(slots=True)
class Window:
    """The positions from start on of one request, and the logits' bits of its sampled rows so far."""

    request_id: int
    start: int
    bits: dict[int, int]
    due: Sequence | None = None  # whose rows are to be checked now: its pages must stay
    stop: int = 0
    scratch: tuple[int, ...] = ()


class Watch:
    """Decides what is checked. Holds a sequence's pages from the moment its window is due until it was checked."""

    def __init__(self, rate: float, rows: int, pool: PagePool) -> None:
        self._rate = rate
        self._rows = rows
        self._pool = pool
        self._credit = 0.0
        self._last_id = -1
        self._window: Window | None = None

    @property
    def is_due(self) -> bool:
        return self._window is not None and self._window.due is not None

    def mark(self, spans: Ordered[Span], deterministic: frozenset[int]) -> tuple[Span, ...]:
        """The spans of a certified pass, the one with the window marked; a window is opened if it is time for one."""
        theirs = [span for span in spans if span.request_id in deterministic]
        self._credit = min(
            2.0 * self._rows, self._credit + self._rate * sum(span.num_rows for span in theirs)
        )
        if self._window is None and self._credit >= self._rows and theirs:
            later = [span for span in theirs if span.request_id > self._last_id]
            chosen = min(later or theirs, key=lambda span: span.request_id)
            self._credit -= self._rows
            self._last_id = chosen.request_id
            self._window = Window(chosen.request_id, max(chosen.start, chosen.stop - self._rows), {})
        if self._window is None or self.is_due:
            return tuple(spans)
        watched = self._window.request_id
        return tuple(replace(span, watched=True) if span.request_id == watched else span for span in spans)

    def note(self, span: Span, samples: Ordered[Sampled]) -> None:
        """What a watched span gave."""
        if self._window is None or self._window.request_id != span.request_id:
            return
        first = span.start + span.sample_from
        for position, sample in enumerate(samples, first):
            if sample.logit_bits is not None and position >= self._window.start:
                self._window.bits[position] = sample.logit_bits

    def settle(self, seq: Sequence, *, ended: bool = False) -> None:
        """The sequence's pass was absorbed: its window is due when it is full, or as long as it will ever be."""
        window = self._window
        if window is None or window.request_id != seq.request_id or window.due is not None:
            return
        window.stop = min(seq.canonical_len, window.start + self._rows)
        if window.stop - window.start >= self._rows or (ended and window.stop > window.start):
            window.due = seq
        elif ended:
            self._window = None

    def plan_check(self, num_running: int) -> Pass | None:
        """The pass that checks the window that is due. Where pages are short it is given up, for another one later."""
        window = self._window
        if window is None or window.due is None:
            return None
        seq, start, stop = window.due, window.start, window.stop
        num_scratch = self._pool.pages_for(stop) - start // self._pool.page_size
        if self._pool.num_available < num_scratch + num_running:
            self._credit += self._rows
            self.close()
            return None
        window.scratch = tuple(self._pool.take() for _ in range(num_scratch))
        bits = tuple(window.bits[position] for position in range(start, stop) if position in window.bits)
        span = check_span(seq, start, stop, window.scratch, len(bits))
        originals = seq.table.pages[len(span.pages) - num_scratch : len(span.pages)]
        rows = round_up(span.num_rows, self._rows)
        return Pass(PassKind.CHECK, (span,), rows, originals=originals, logit_bits=bits)

    def holds(self, seq: Sequence) -> bool:
        """Whether the sequence's pages must stay although it ended."""
        return self._window is not None and self._window.due is seq

    def forget(self, seq: Sequence) -> None:
        """The sequence gives its pages up before its window is due."""
        if self._window is not None and self._window.request_id == seq.request_id and not self.is_due:
            self._window = None

    def close(self) -> None:
        """The check is done, or will never be."""
        window, self._window = self._window, None
        if window is None:
            return
        for page in window.scratch:
            self._pool.drop(page)
        if window.due is not None and not window.due.is_live:
            window.due.release()

    def held_pages(self) -> tuple[int, ...]:
        """Pages nobody else accounts for: scratch, and those of a sequence that ended."""
        window = self._window
        if window is None:
            return ()
        ended = window.due is not None and not window.due.is_live
        return window.scratch + (window.due.table.pages if window.due is not None and ended else ())
