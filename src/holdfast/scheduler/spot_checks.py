"""Spot checks of the certificate: some tokens of certified passes are computed again at the
reference's batch size.

A check window is opened on a span of a deterministic request and grows with that request until it
fills a reference pass. Then a pass of its own computes its tokens again, into scratch pages, while
all requests go on. Recurrent layers start again from a copy of the state that they had where the window was
opened. `rate` is the share of certified tokens that is checked. It is spent evenly, and
the requests take turns; a window that ends early counts as a whole reference pass. Neither chance
nor a clock decides.

    mark: open a window on a span -> record: its checksums -> advance: full, or the request ended -> plan_checks -> close

Checks are planned as soon as they are due. Until the result of that plan is read, the pages they
read are pinned.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from holdfast.core.step_plan import Pass, PassKind, Sampled, Span, SpanState
from holdfast.kv_cache.page_pool import PagePool
from holdfast.kv_cache.page_table import PageTable
from holdfast.kv_cache.state_pool import StatePool
from holdfast.scheduler.policy import round_up
from holdfast.scheduler.request_state import RequestState


@dataclass(slots=True)
class CheckWindow:
    """Positions start .. stop - 1 of a request, and the logits' checksums of the sampled ones among
    them."""

    start: int
    stop: int
    checksums: dict[int, int]
    cost: int  # tokens that opening it took from the budget
    state: SpanState | None = None  # where recurrent layers start again; its slot was lent


@dataclass(slots=True)
class PendingCheck:
    """A window to be checked. Its pages are pinned until it is."""

    state: RequestState
    page_table: PageTable
    window: CheckWindow
    scratch_pages: tuple[int, ...] = ()


class SpotChecker:
    """Decides what is checked. A request has at most one open window."""

    def __init__(
        self,
        rate: float,
        reference_tokens: int,
        max_pass_tokens: int,
        pool: PagePool,
        states: StatePool | None = None,
    ) -> None:
        self._rate = rate
        self._reference_tokens = reference_tokens
        self._max_tokens = max_pass_tokens // reference_tokens * reference_tokens
        self._pool = pool
        self._states = states
        self._budget = 0.0  # tokens that may be checked
        self._last_id = -1  # the request whose window was opened last
        self._open: dict[int, CheckWindow] = {}
        self.due: list[PendingCheck] = []  # to be planned next

    def mark(self, spans: Sequence[Span], deterministic_ids: frozenset[int]) -> tuple[Span, ...]:
        """Open windows on the spans of a certified pass as the budget allows. Return them with checksums."""
        if self._rate <= 0:
            return tuple(spans)
        deterministic = [span for span in spans if span.request_id in deterministic_ids]
        self._budget += self._rate * sum(span.num_tokens for span in deterministic)
        if self._may_open:
            deterministic.sort(
                key=lambda span: (self._stays_small(span), span.request_id <= self._last_id, span.request_id)
            )
            for span in deterministic:
                if self._may_open and span.request_id not in self._open:
                    self._open_on(span)
        if not self._open:
            return tuple(spans)
        return tuple(map(self._marked, spans))

    def _marked(self, span: Span) -> Span:
        window = self._open.get(span.request_id)
        if window is None:
            return span
        opened = window.state
        if opened is not None and span.state is not None and window.start == span.start and not window.stop:
            return replace(span, with_checksums=True, state=replace(span.state, snapshot=opened.slot))
        return replace(span, with_checksums=True)

    @property
    def _may_open(self) -> bool:
        return self._budget >= self._reference_tokens or self._rate >= 1

    def _stays_small(self, span: Span) -> bool:
        """Return whether a window on this span can never fill a reference pass."""
        max_len = span.sampling.prompt_len + span.sampling.params.max_tokens
        return max_len - span.start < self._reference_tokens

    def _open_on(self, span: Span) -> None:
        num_tokens = span.num_tokens if self._rate >= 1 else min(span.num_tokens, int(self._budget))
        state = None
        if span.state is not None:  # it starts where there is a state
            state = self._snapshot(span.state)
            if state is None:
                return
            num_tokens = span.num_tokens
        size = max(self._reference_tokens, num_tokens)
        self._open[span.request_id] = CheckWindow(max(span.start, span.stop - size), 0, {}, size, state)
        self._budget -= size
        self._last_id = span.request_id

    def _snapshot(self, state: SpanState) -> SpanState | None:
        """Return where a copy of the state before a span will be; None if there is no slot for it."""
        slot = -1 if self._states is None else self._states.lend()
        return None if slot < 0 else SpanState(slot, state.checkpoint, state.checkpoint)

    def snapshots(self, checks: Sequence[PendingCheck]) -> list[int]:
        """Return the slots that hold states of open windows, and of these checks."""
        windows = [*self._open.values(), *(check.window for check in checks)]
        return [window.state.slot for window in windows if window.state is not None]

    def _free_snapshot(self, window: CheckWindow) -> None:
        if window.state is not None and self._states is not None:
            self._states.give_back(window.state.slot)

    def record(self, span: Span, samples: Sequence[Sampled]) -> None:
        window = self._open.get(span.request_id)
        if window is None:
            return
        for position, sample in enumerate(samples, span.start + span.sample_from):
            if sample.logits_checksum is not None and position >= window.start:
                window.checksums[position] = sample.logits_checksum

    def advance(self, state: RequestState, *, ended: bool = False) -> None:
        """Note that the request has more canonical KV. Its window is due if it is full, or the request ended."""
        window = self._open.get(state.request_id)
        if window is None:
            return
        window.stop = state.canonical_len
        if window.state is None:
            window.start = max(window.start, window.stop - self._max_tokens)  # no more than a pass holds
        elif window.stop - window.start > self._max_tokens:
            self.forget(state)
            return
        size = window.stop - window.start
        if size >= self._reference_tokens or (ended and size > 0):
            self.due.append(PendingCheck(state, state.page_table, window))
            state.page_table.pin()
            # A check costs a whole reference pass, full or not.
            self._budget += window.cost - max(size, self._reference_tokens)
        elif not ended:
            return
        else:
            self._budget += window.cost
            self._free_snapshot(window)
        del self._open[state.request_id]
        if self._rate >= 1 and not ended and state.in_flight.spans and self._states is None:  # these, too
            self._open[state.request_id] = CheckWindow(window.stop, 0, {}, self._reference_tokens)
            self._budget -= self._reference_tokens

    def plan_checks(self, num_running: int) -> tuple[list[Pass], list[PendingCheck]]:
        """Return a pass for each window that is due, and these checks. If pages are short, give a check up."""
        due, self.due = self.due, []
        passes, planned = [], []
        for check in due:
            window = check.window
            num_scratch = self._pool.pages_for(window.stop) - window.start // self._pool.page_size
            if self._pool.num_available < num_scratch + num_running:
                self._budget += window.stop - window.start
                self.close([check])
                continue
            check.scratch_pages = tuple(self._pool.take() for _ in range(num_scratch))
            passes.append(self._check_pass(check))
            planned.append(check)
        return passes, planned

    def _check_pass(self, check: PendingCheck) -> Pass:
        window, num_scratch = check.window, len(check.scratch_pages)
        positions = range(window.start, window.stop)
        checksums = tuple(window.checksums[at] for at in positions if at in window.checksums)
        state, start, stop = check.state, window.start, window.stop
        num_pages = check.page_table.pages_for(stop)
        token_ids = state.tokens.ids(start, stop)
        span = Span(
            request_id=state.request_id,
            start=start,
            token_ids=token_ids,
            pages=check.page_table.pages[: num_pages - num_scratch] + check.scratch_pages,
            sample_from=len(token_ids) - len(checksums),
            sampling=state.sampling,
            extra=None if state.extension is None else state.extension.guess(start, stop),
            state=window.state,
        )
        return Pass(
            PassKind.CHECK,
            (span,),
            round_up(span.num_tokens, self._reference_tokens),
            original_pages=check.page_table.pages[num_pages - num_scratch : num_pages],
            logits_checksums=checksums,
        )

    def forget(self, state: RequestState) -> None:
        """Close the window of a request that loses its pages, or ends."""
        window = self._open.pop(state.request_id, None)
        if window is not None:
            self._budget += window.cost
            self._free_snapshot(window)

    def forget_due(self) -> None:
        due, self.due = self.due, []
        self.close(due)

    def close(self, checks: Sequence[PendingCheck]) -> None:
        """Free what these checks hold."""
        for check in checks:
            for page in check.scratch_pages:
                self._pool.drop(page)
            self._free_snapshot(check.window)
            check.page_table.unpin()
