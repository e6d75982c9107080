"""The watch over the certificate: some rows of certified passes are computed again at the reference's shape.

A window opens on a span of a deterministic request, grows with that request until it holds a reference pass, and is then
checked by a pass of its own, into scratch pages, beside which everything goes on. `rate` is the share of certified rows
that are checked, spent evenly, a window that ends small counting as full; the requests take turns. No chance is involved
and no clock.

    mark: open on a span -> note: what it gave -> settle: full, or the request ended -> plan_checks -> close

Checks are planned as soon as they are due. From then until their plan is taken in they belong to that plan, and the pages
they read stay where they are.
"""

from collections.abc import Sequence as Ordered
from dataclasses import dataclass, replace

from holdfast.core.step_plan import Pass, PassKind, Sampled, Span
from holdfast.kv_cache.page_pool import PagePool
from holdfast.kv_cache.page_table import PageTable
from holdfast.scheduler.policy import round_up
from holdfast.scheduler.request_state import RequestState
from holdfast.scheduler.spans import check_span


@dataclass(slots=True)
class CheckWindow:
    """Positions start .. stop - 1 of a request, and the logits' bits of the sampled rows among them."""

    start: int
    stop: int
    bits: dict[int, int]
    cost: int  # rows it was opened for


@dataclass(slots=True)
class PendingCheck:
    """A window to be checked. Until it is, the pages of its rows are pinned."""

    seq: RequestState
    table: PageTable
    window: CheckWindow
    scratch: tuple[int, ...] = ()


class SpotChecker:
    """Decides what is checked: at most one open window a request, and the checks that are due."""

    def __init__(self, rate: float, rows: int, most_rows: int, pool: PagePool) -> None:
        """rows: of a reference pass; most_rows: of any."""
        self._rate = rate
        self._rows = rows
        self._most_rows = most_rows // rows * rows
        self._pool = pool
        self._credit = 0.0
        self._last_id = -1
        self._open: dict[int, CheckWindow] = {}
        self._due: list[PendingCheck] = []

    @property
    def is_due(self) -> bool:
        return bool(self._due)

    def mark(self, spans: Ordered[Span], deterministic: frozenset[int]) -> tuple[Span, ...]:
        """The spans of a certified pass, those with a window marked; new windows are opened if it is time for them."""
        if self._rate <= 0:
            return tuple(spans)
        theirs = [span for span in spans if span.request_id in deterministic]
        self._credit += self._rate * sum(span.num_tokens for span in theirs)
        if self._credit >= self._rows or self._rate >= 1:
            theirs.sort(
                key=lambda span: (self._stays_small(span), span.request_id <= self._last_id, span.request_id)
            )
            for span in theirs:
                if (self._credit >= self._rows or self._rate >= 1) and span.request_id not in self._open:
                    self._open_on(span)
        if not self._open:
            return tuple(spans)
        return tuple(
            replace(span, with_checksums=True) if span.request_id in self._open else span for span in spans
        )

    def _stays_small(self, span: Span) -> bool:
        """Whether a window opened on the span can never be full: others go first."""
        longest = span.sampling.prompt_len + span.sampling.params.max_tokens
        return longest - span.start < self._rows

    def _open_on(self, span: Span) -> None:
        most = span.num_tokens if self._rate >= 1 else min(span.num_tokens, int(self._credit))
        size = max(self._rows, most)
        self._open[span.request_id] = CheckWindow(max(span.start, span.stop - size), 0, {}, size)
        self._credit -= size
        self._last_id = span.request_id

    def note(self, span: Span, samples: Ordered[Sampled]) -> None:
        """What a watched span gave."""
        window = self._open.get(span.request_id)
        if window is None:
            return
        for position, sample in enumerate(samples, span.start + span.sample_from):
            if sample.logits_checksum is not None and position >= window.start:
                window.bits[position] = sample.logits_checksum

    def settle(self, seq: RequestState, *, ended: bool = False) -> None:
        """The sequence's pass was absorbed: its window is due when it is full, or as long as it will ever be."""
        window = self._open.get(seq.request_id)
        if window is None:
            return
        window.stop = seq.canonical_len
        window.start = max(window.start, window.stop - self._most_rows)  # no more than a pass holds
        size = window.stop - window.start
        if size >= self._rows or (ended and size > 0):
            self._due.append(PendingCheck(seq, seq.page_table, window))
            seq.page_table.pin()
            self._credit += window.cost - max(
                size, self._rows
            )  # a check costs a whole reference pass, full or not
        elif not ended:
            return
        else:
            self._credit += window.cost
        del self._open[seq.request_id]
        if self._rate >= 1 and not ended and seq.flying:  # these rows are watched, too
            self._open[seq.request_id] = CheckWindow(window.stop, 0, {}, self._rows)
            self._credit -= self._rows

    def plan_checks(self, num_running: int) -> tuple[list[Pass], list[PendingCheck]]:
        """A pass for each window that is due, and these checks. Where pages are short they are given up, for others later."""
        due, self._due = self._due, []
        passes, planned = [], []
        for check in due:
            window = check.window
            num_scratch = self._pool.pages_for(window.stop) - window.start // self._pool.page_size
            if self._pool.num_available < num_scratch + num_running:
                self._credit += window.stop - window.start
                self.close([check])
                continue
            check.scratch = tuple(self._pool.take() for _ in range(num_scratch))
            passes.append(self._check_pass(check))
            planned.append(check)
        return passes, planned

    def _check_pass(self, check: PendingCheck) -> Pass:
        window, num_scratch = check.window, len(check.scratch)
        places = range(window.start, window.stop)
        bits = tuple(window.bits[position] for position in places if position in window.bits)
        span = check_span(check.seq, check.table, window.start, window.stop, check.scratch, len(bits))
        originals = check.table.pages[len(span.pages) - num_scratch : len(span.pages)]
        rows = round_up(span.num_tokens, self._rows)
        return Pass(PassKind.CHECK, (span,), rows, original_pages=originals, logits_checksums=bits)

    def forget(self, seq: RequestState) -> None:
        """The sequence gives up its pages, or its answer."""
        window = self._open.pop(seq.request_id, None)
        self._credit += window.cost if window is not None else 0

    def close(self, checks: Ordered[PendingCheck]) -> None:
        """These are done, or will never be."""
        for check in checks:
            for page in check.scratch:
                self._pool.drop(page)
            check.table.unpin()

    def forget_due(self) -> None:
        """Nothing that is due will be checked."""
        due, self._due = self._due, []
        self.close(due)

    @property
    def due(self) -> tuple[PendingCheck, ...]:
        return tuple(self._due)
