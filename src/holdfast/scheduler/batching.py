"""From live sequences to the passes of a step.

auto, certified   one canonical pass holds everything; its tokens are committed at once
verify            a fast pass for ordinary rows and candidates, a canonical one for windows and deterministic
                  prefill, its rows a multiple of the reference's. A sequence is in at most one of them
verify, ahead     a burst: fast passes that feed one another, and the windows over what they propose
off               one fast pass
"""

from collections.abc import Collection, Iterable

from holdfast.core.step_plan import Pass, PassKind, Span
from holdfast.kv_cache.page_pool import PagePool
from holdfast.scheduler.ngram_proposer import is_worth_waiting, num_worthwhile, row_share
from holdfast.scheduler.phase import Phase
from holdfast.scheduler.policy import (
    WINDOW_CHANCE,
    PendingWindow,
    SchedulerConfig,
    certified_size,
    choose_burst,
    choose_due,
    fill_spare,
    round_up,
)
from holdfast.scheduler.request_queue import RequestQueue
from holdfast.scheduler.request_state import RequestState
from holdfast.scheduler.spans import (
    canonical_span,
    decode_span,
    ordinary_span,
    row_span,
    wanted_span,
    window_span,
)
from holdfast.scheduler.spot_checks import SpotChecker


class Batcher:
    """Packs one step. Proposes look-ups, opens windows and makes room as it goes; the rest of the state stays as it is."""

    def __init__(
        self,
        config: SchedulerConfig,
        pool: PagePool,
        roster: RequestQueue,
        watch: SpotChecker,
        step: int,
        *,
        in_flight: bool,
        trusting: bool,
    ) -> None:
        """trusting: windows in flight are counted on to stand."""
        self._config = config
        self._pool = pool
        self._queue = roster
        self._spot_checker = watch
        self._step = step
        self._in_flight = in_flight
        self._trusting = trusting
        self._certified = config.determinism == "auto" and config.one_pass_suffices
        self._one_pass_holds_all = self._certified or config.determinism == "off"

    @property
    def must_wait(self) -> bool:
        """Whether somebody's next rows hang on a result in flight. Then all wait: nobody shall run at half speed."""
        if self._queue.num_synchronous:
            return True
        if self._one_pass_holds_all:
            return False
        return any(
            seq.flying and seq.is_undecided and not self._is_counted_on(seq)
            for seq in self._queue.running.values()
        )

    def _is_counted_on(self, seq: RequestState) -> bool:
        """Whether rows are planned behind its window in flight as if all of it stood. Not where its candidates are known:
        they were looked up, or are about to be. Candidates in flight alone, without logprobs, have no window yet."""
        has_window = seq.flying[-1].logprobs is not None
        return self._trusting and has_window and not seq.tokens.num_candidates and not self._is_sure(seq)

    def passes(self) -> list[Pass]:
        """The passes in the order they run; some may be empty."""
        if self._in_flight and self.must_wait:
            return []  # somebody who was just admitted
        if self._one_pass_holds_all:
            return self._one_pass()
        if self._config.async_scheduling and not self._queue.num_synchronous:
            return self._burst()
        return self._two_passes()

    def _one_pass(self) -> list[Pass]:
        certified, sizes = self._certified, self._config.certified_sizes
        most = min(self._config.max_pass_tokens, sizes[-1]) if certified else self._config.max_pass_tokens
        decoding, prefilling = self._queue.split()
        decoding = self._look_up(decoding, prefilling, most)
        budget = most
        planned: dict[int, Span] = {}
        for seq in decoding:
            rows = 1 + seq.tokens.num_candidates
            if rows > budget or not self._has_room(seq, seq.expected_len, planned):
                continue
            if rows > 1 or seq.is_synchronous:
                planned[seq.request_id] = wanted_span(seq, rows)
            else:
                planned[seq.request_id] = row_span(
                    seq, seq.canonical_logprobs if seq.deterministic else seq.logprobs
                )
            budget -= rows
            if rows > 1:
                self._open_window(seq)
        budget -= self._add_prefill(prefilling, planned, budget)
        num_tokens = most - budget
        size = certified_size(num_tokens, sizes) if certified else None
        running = self._queue.running
        wanted = frozenset(request_id for request_id in planned if running[request_id].deterministic)
        spans = tuple(planned.values())
        if size is not None and (wanted or size == num_tokens):
            spans = self._spot_checker.mark(spans, wanted)
            one = Pass(PassKind.CANONICAL, spans, size, certified=True)
        else:
            assert not wanted, "deterministic rows without a certified size"
            one = Pass(PassKind.FAST, spans, num_tokens)
        self._fly(spans)
        return [one]

    def _two_passes(self) -> list[Pass]:
        decoding, prefilling = self._queue.split()
        proposing = [seq for seq in decoding if seq.deterministic]
        ordinary = [seq for seq in decoding if not seq.deterministic]
        self._look_up_windows(proposing)
        self._look_up(ordinary, prefilling, self._config.max_pass_tokens - len(proposing))
        canonical = self._canonical_spans(decoding, [seq for seq in prefilling if seq.deterministic])
        fast: dict[int, Span] = dict(canonical)  # what is planned is safe from preemption
        budget = self._config.max_pass_tokens
        for seq in decoding:
            if seq.request_id in canonical or not self._queue.is_running(seq):
                continue
            if seq.deterministic and seq.candidate_due:
                continue  # it waits for its verdict
            if self._has_room(seq, seq.tokens.total_len, fast):
                rows = 1 if seq.deterministic else 1 + seq.tokens.num_candidates
                fast[seq.request_id] = decode_span(seq) if seq.deterministic else ordinary_span(seq, rows)
                budget -= rows
                if not seq.deterministic and seq.tokens.num_candidates:
                    self._open_window(seq)
        self._add_prefill([seq for seq in prefilling if not seq.deterministic], fast, budget)
        spans = tuple(span for request_id, span in fast.items() if request_id not in canonical)
        self._fly(fast.values())
        return [
            Pass(PassKind.FAST, spans, sum(span.num_tokens for span in spans)),
            self._reference_pass(canonical.values()),
        ]

    def _canonical_spans(
        self, decoding: list[RequestState], prefilling: list[RequestState]
    ) -> dict[int, Span]:
        """Windows and deterministic prefill, packed ragged; rows that would be padding take further windows."""
        rows = self._config.reference_tokens
        budget = self._config.max_pass_tokens // rows * rows
        pending = [
            PendingWindow(seq.request_id, 1 + seq.tokens.num_candidates, seq.candidate_due, seq.last_judged)
            for seq in decoding
            if seq.deterministic and seq.tokens.num_candidates
        ]
        windows = choose_due(pending, rows, budget - rows if prefilling else budget)
        planned: dict[int, Span] = {}
        used = sum(window.num_tokens for window in windows)
        used += self._add_prefill(prefilling, planned, budget - used)
        windows += fill_spare(pending, windows, round_up(used, rows) - used)
        for window in windows:
            seq = self._queue.running.get(window.request_id)
            if seq is not None and self._has_room(seq, seq.tokens.total_len, planned):
                planned[seq.request_id] = canonical_span(seq, window.num_tokens)
                self._open_window(seq)
        return planned

    # Bursts

    def _burst(self) -> list[Pass]:
        """Fast passes that feed one another, then the windows over what they proposed: the host waits once for all of it."""
        decoding, prefilling = self._queue.split()
        ordinary = [seq for seq in decoding if not seq.deterministic]
        proposing = [seq for seq in decoding if seq.deterministic]
        self._look_up_windows(proposing)
        proposing = [seq for seq in proposing if not (seq.flying and seq.is_confirming)]
        ordinary = self._look_up(ordinary, prefilling, self._config.max_pass_tokens - len(proposing))
        chunks = [seq for seq in prefilling if seq.deterministic]
        rows = self._fast_rows(proposing, ordinary, hurry=bool(chunks))
        planned: dict[int, int] = {}
        for seq in decoding:
            count = rows.get(seq.request_id)
            if count is not None and self._has_room(seq, _burst_reach(seq, count), planned):
                planned[seq.request_id] = count
        decoding = [seq for seq in decoding if seq.request_id in planned]
        windows = [(seq, seq.next_start) for seq in decoding if seq.deterministic]
        prompts = [seq for seq in prefilling if not seq.deterministic]
        num_fast = max(planned.values(), default=0) or bool(prompts)
        passes = [self._fast_pass(turn, decoding, planned, prompts) for turn in range(num_fast)]
        return [*passes, self._canonical_pass(windows, chunks)]

    def _fast_rows(
        self, proposing: list[RequestState], ordinary: list[RequestState], *, hurry: bool
    ) -> dict[int, int]:
        """In how many fast passes of the burst a sequence has a row: in a hurry, or where pages are short, in one."""
        rows = self._config.reference_tokens
        budget = self._config.max_pass_tokens // rows * rows - (rows if hurry else 0)
        limit = 1 if hurry else choose_burst(len(proposing), rows)
        for most in (limit, 1):
            chosen = choose_windows(proposing, most, budget)
            longest = max(chosen.values(), default=0) or 1
            for seq in ordinary:
                chosen[seq.request_id] = 1 if seq.tokens.num_candidates else min(longest, seq.tokens_left)
            everybody = [seq for seq in (*proposing, *ordinary) if seq.request_id in chosen]
            missing = sum(
                seq.page_table.num_missing(_burst_reach(seq, chosen[seq.request_id])) for seq in everybody
            )
            if missing <= self._pool.num_available:
                break
        return chosen

    def _fast_pass(
        self, turn: int, decoding: list[RequestState], rows: dict[int, int], prompts: list[RequestState]
    ) -> Pass:
        """The turn-th fast pass of a burst: a row for everybody who has one left, and chunks of ordinary prompts."""
        spans: list[Span] = []
        for seq in decoding:
            if rows[seq.request_id] <= turn:
                continue
            if seq.deterministic or not seq.tokens.num_candidates:
                span = row_span(seq, None if seq.deterministic else seq.logprobs)
            else:
                span = ordinary_span(seq, 1 + seq.tokens.num_candidates)
                self._open_window(seq)
            seq.fly(span)
            spans.append(span)
        budget = self._config.max_pass_tokens - sum(span.num_tokens for span in spans)
        for seq in prompts:
            if budget < 1 or not self._queue.is_running(seq) or (seq.flying and seq.waits):
                continue
            if seq.is_prefilling or seq.expected_len <= seq.page_table.capacity:
                span = ordinary_span(seq, budget) if seq.is_prefilling else row_span(seq, seq.logprobs)
                seq.fly(span)
                spans.append(span)
                budget -= span.num_tokens
        return Pass(PassKind.FAST, tuple(spans), sum(span.num_tokens for span in spans))

    def _canonical_pass(self, windows: list[tuple[RequestState, int]], chunks: list[RequestState]) -> Pass:
        """The windows that end a burst, from their starts on, and chunks of deterministic prompts."""
        planned: dict[int, Span] = {}
        for seq, start in windows:
            planned[seq.request_id] = window_span(seq, start)
            self._open_window(seq)
        rows = self._config.reference_tokens
        budget = self._config.max_pass_tokens // rows * rows
        self._add_prefill(chunks, planned, budget - sum(span.num_tokens for span in planned.values()))
        self._fly(planned.values())
        return self._reference_pass(planned.values())

    # What all of them do

    def _has_room(self, seq: RequestState, length: int, planned: Collection[int]) -> bool:
        """Whether positions 0 .. length - 1 have a slot by now; somebody who is not planned may give way."""
        return length <= seq.page_table.capacity or self._queue.make_room(
            seq, length, planned, in_flight=self._in_flight
        )

    def _fly(self, spans: Iterable[Span]) -> None:
        running = self._queue.running
        for span in spans:
            running[span.request_id].fly(span)

    def _reference_pass(self, spans: Iterable[Span]) -> Pass:
        together = tuple(spans)
        num_tokens = sum(span.num_tokens for span in together)
        return Pass(PassKind.CANONICAL, together, round_up(num_tokens, self._config.reference_tokens))

    def _add_prefill(self, prefilling: Iterable[RequestState], planned: dict[int, Span], budget: int) -> int:
        """Chunks of prompts, oldest first. Their pages were taken at admission. Returns the rows they take."""
        used = 0
        for seq in prefilling:
            if used >= budget:
                break
            if self._queue.is_running(seq):
                span = planned[seq.request_id] = wanted_span(seq, budget - used)
                used += span.num_tokens
        return used

    def _look_up(
        self, decoding: list[RequestState], prefilling: list[RequestState], budget: int
    ) -> list[RequestState]:
        """Candidates from the sequences' own text, where they are worth their rows and pages are not short.

        Returns those that have rows in this plan. Who has a token in flight and would better propose is left out, once.
        """
        if self._config.speculation == "off" or self._pool.num_available <= len(self._queue.running):
            return decoding
        waiting = sum(seq.prefill_len - seq.next_start for seq in prefilling)
        num_tokens = min(budget, len(decoding) + waiting)
        spare = budget - num_tokens
        share = row_share(num_tokens)
        left_out: set[int] = set()
        for seq in decoding:
            lookup = seq.lookup
            if lookup is None or lookup.chance <= share or seq.tokens.num_candidates:
                continue
            most = min(spare, num_worthwhile(lookup.chance, num_tokens))
            if seq.flying:
                if lookup.is_guessing and is_worth_waiting(lookup.chance, most):
                    left_out.add(seq.request_id)
            elif most > 0 and self._pool.num_available > len(self._queue.running):
                seq.look_up(most)
                spare -= seq.tokens.num_candidates
                num_tokens += seq.tokens.num_candidates
        return [seq for seq in decoding if seq.request_id not in left_out] if left_out else decoding

    def _look_up_windows(self, decoding: list[RequestState]) -> None:
        """Whole windows of candidates: what must be confirmed, or what the look-up is fairly sure of."""
        for seq in decoding:
            if not seq.flying and not seq.tokens.num_candidates and self._is_sure(seq):
                seq.look_up(seq.max_window)

    def _is_sure(self, seq: RequestState) -> bool:
        return seq.is_confirming or (seq.lookup is not None and seq.lookup.chance >= WINDOW_CHANCE)

    def _open_window(self, seq: RequestState) -> None:
        seq.last_judged = self._step
        if seq.phase is Phase.DECODE:  # else its first token is in flight
            seq.move(Phase.VERIFY)


def choose_windows(proposing: Iterable[RequestState], most: int, budget: int) -> dict[int, int]:
    """How many candidates each window of a burst has beside those that are known; whoever was judged longest ago goes first.

    What does not fit the pass at all is left for the next.
    """
    chosen: dict[int, int] = {}
    for seq in sorted(proposing, key=lambda seq: (seq.last_judged, seq.request_id)):
        known = seq.tokens.num_candidates
        if 1 + known > budget:
            continue
        further = min(most, budget - 1 - known, seq.window_cap - known, seq.tokens_left - 1 - known)
        chosen[seq.request_id] = 0 if seq.is_looked_up else max(0, further)
        budget -= 1 + known + chosen[seq.request_id]
    return chosen


def _burst_reach(seq: RequestState, num_tokens: int) -> int:
    """Positions a sequence needs for so many fast rows, and for the window behind them."""
    return seq.expected_len + num_tokens - (0 if seq.deterministic else 1)
