"""Who runs next: admission, the passes of a step, preemption, and what follows from what the passes said.

One step is `plan`, then the runner, then `absorb`. A sequence is in at most one pass of a step, so between a window
and its verdict nothing else touches it. The oldest request comes first everywhere and is never preempted for a
younger one, so nobody starves.

    auto, certified   one canonical pass holds everything; its tokens are committed at once
    verify            a fast pass for ordinary rows and candidates, a canonical one for windows and deterministic
                      prefill, its rows a multiple of the reference's
    off               one fast pass

In front of them, now and then, a pass that checks the certificate (`watch.py`). If it finds it wrong, every deterministic
request starts over from its prompt, and from then on everything is verified.
"""

from bisect import insort
from collections.abc import Iterable
from collections.abc import Sequence as Ordered
from dataclasses import replace

from holdfast.core.events import CertificateChecked, Event, PromptScored, RequestEnded, TokensCommitted
from holdfast.core.grammar import Grammar
from holdfast.core.phase import Phase
from holdfast.core.plan import Pass, PassKind, PassResult, Plan, Sampled, Span, TokenLogprob
from holdfast.core.request import AnswerText, Request
from holdfast.core.stop import FinishReason
from holdfast.errors import PromptTooLong
from holdfast.kv.pool import PagePool
from holdfast.kv.prefix import PrefixIndex
from holdfast.schedule.lookup import num_worthwhile
from holdfast.schedule.policy import (
    WINDOW_CHANCE,
    PendingWindow,
    SchedulerConfig,
    certified_size,
    choose_due,
    fill_spare,
    may_admit,
    round_up,
)
from holdfast.schedule.sequence import Sequence
from holdfast.schedule.spans import canonical_span, decode_span, ordinary_span, wanted_span
from holdfast.schedule.watch import Watch


class Scheduler:
    """All live sequences and the pages they hold."""

    def __init__(self, config: SchedulerConfig, pool: PagePool) -> None:
        self.config = config
        self.pool = pool
        self.index = PrefixIndex(pool)
        self._queue: list[Sequence] = []  # by arrival
        self._running: dict[int, Sequence] = {}
        self._in_flight: frozenset[int] = frozenset()
        self._ended_in_flight: dict[int, Sequence] = {}
        self._step = 0
        rate = config.spot_check_rate if config.determinism == "auto" else 0.0
        self._watch = Watch(rate, config.reference_rows, pool)

    # Requests come and go

    @property
    def num_waiting(self) -> int:
        return len(self._queue)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def has_work(self) -> bool:
        return bool(self._queue or self._running) or self._watch.is_due

    def require_room(self, max_len: int) -> None:
        """Refuse what could never fit the pool now, instead of finding out later. Changes nothing."""
        if self.pool.pages_for(max_len) > self.pool.num_pages:
            raise PromptTooLong(
                f"prompt and answer need {max_len} KV positions, the KV budget holds "
                f"{self.pool.num_pages * self.pool.page_size}; shorten the prompt, lower max_tokens or raise kv_memory"
            )

    def submit(self, request: Request, text: AnswerText, grammar: Grammar | None = None) -> None:
        """Queue a request."""
        self.require_room(request.max_len)
        max_window = self.config.reference_rows - 1
        speculates = self.config.speculation == "ngram"
        self._enqueue(
            Sequence(request, text, self.pool, self.index, max_window, grammar=grammar, speculates=speculates)
        )

    def abort(self, request_id: int) -> list[Event]:
        """End a request now. Pages a running pass writes to are given back when that pass is absorbed."""
        for seq in self._queue:
            if seq.request_id == request_id:
                self._queue.remove(seq)
                return [self._end(seq, Phase.ABORTED, "abort")]
        running = self._running.get(request_id)
        return [] if running is None else [self._end(running, Phase.ABORTED, "abort")]

    def fail(self, plan: Plan, message: str) -> list[Event]:
        """A pass of this plan raised: every request in it ends, the others go on."""
        self._in_flight = frozenset()
        ids = {span.request_id for one in plan.passes for span in one.spans}
        self._reap()
        self._watch.close()
        return [
            self._end(seq, Phase.FAILED, "error", message)
            for seq in self._by_arrival()
            if seq.request_id in ids
        ]

    # One step: plan

    def plan(self) -> Plan:
        """The passes of the next step; empty if there is nothing to do."""
        assert not self._in_flight, "the last plan was not absorbed"
        self._step += 1
        check = self._watch.plan_check(len(self._running))
        self._admit()
        certified = self.config.determinism == "auto" and self.config.one_pass_suffices
        if certified or self.config.determinism == "off":
            passes = self._plan_one_pass(certified)
        else:
            passes = self._plan_two_passes()
        passes = [check, *passes] if check is not None else passes
        plan = Plan(tuple(one for one in passes if one.spans))
        self._in_flight = frozenset(span.request_id for one in plan.passes for span in one.spans)
        return plan

    def _admit(self) -> None:
        for seq in tuple(self._queue):
            if len(self._running) >= self.config.max_num_seqs:
                break
            if self._waits_for_leader(seq):
                continue
            length = seq.log.committed_len
            pages, node, num_canonical = (
                self.index.match(seq.log.ids(0, seq.cacheable_len), canonical_only=seq.deterministic)
                if self.config.prefix_cache
                else ([], self.index.root, 0)
            )
            needed = self.pool.pages_for(length) - len(pages)
            if not may_admit(needed, self.pool.num_available, len(self._running)):
                for page in reversed(pages):
                    self.pool.drop(page)
                break
            self._queue.remove(seq)
            seq.admit(pages, node, num_canonical)
            seq.table.grow(length)
            self._running[seq.request_id] = seq
        idle = not self._running and not self._watch.is_due  # a check holds pages, for one step
        assert not (idle and self._queue), "an idle engine must be able to admit"

    def _waits_for_leader(self, seq: Sequence) -> bool:
        """Whether another answer to the same prompt is just computing pages this one can share."""
        leader = self._running.get(seq.request.leader) if seq.request.leader is not None else None
        shares = self.config.prefix_cache and seq.cacheable_len >= self.pool.page_size
        return shares and leader is not None and leader.phase is Phase.PREFILL

    def _plan_one_pass(self, certified: bool) -> list[Pass]:
        sizes = self.config.certified_sizes
        budget = min(self.config.max_pass_rows, sizes[-1]) if certified else self.config.max_pass_rows
        decoding, prefilling = self._split()
        self._look_up(decoding, prefilling, budget)
        planned: dict[int, Span] = {}
        for seq in decoding:
            rows = 1 + seq.log.num_candidates
            if rows <= budget and self._make_room(seq, seq.log.total_len, planned):
                planned[seq.request_id] = wanted_span(seq, rows)
                budget -= rows
                if seq.log.num_candidates:
                    self._open_window(seq)
        self._plan_prefill(prefilling, planned, budget)
        spans = tuple(planned.values())
        num_rows = sum(span.num_rows for span in spans)
        size = certified_size(num_rows, sizes) if certified else None
        wanted = frozenset(span.request_id for span in spans if self._running[span.request_id].deterministic)
        if size is not None and (wanted or size == num_rows):
            return [Pass(PassKind.CANONICAL, self._watch.mark(spans, wanted), size, certified=True)]
        assert not wanted, "deterministic rows without a certified size"
        return [Pass(PassKind.FAST, spans, num_rows)]

    def _plan_two_passes(self) -> list[Pass]:
        decoding, prefilling = self._split()
        self._look_up_windows([seq for seq in decoding if seq.deterministic])
        self._look_up(
            [seq for seq in decoding if not seq.deterministic], prefilling, self.config.max_pass_rows
        )
        canonical = self._plan_canonical(decoding, [seq for seq in prefilling if seq.deterministic])
        fast: dict[int, Span] = dict(canonical)  # what is planned is safe from preemption
        budget = self.config.max_pass_rows
        for seq in decoding:
            if seq.request_id in canonical or not self._is_running(seq):
                continue
            if seq.deterministic and seq.candidate_due:
                continue  # it waits for its verdict
            if self._make_room(seq, seq.log.total_len, fast):
                rows = 1 if seq.deterministic else 1 + seq.log.num_candidates
                fast[seq.request_id] = decode_span(seq) if seq.deterministic else ordinary_span(seq, rows)
                budget -= rows
                if not seq.deterministic and seq.log.num_candidates:
                    self._open_window(seq)
        self._plan_prefill([seq for seq in prefilling if not seq.deterministic], fast, budget)
        spans = tuple(span for request_id, span in fast.items() if request_id not in canonical)
        num_canonical = sum(span.num_rows for span in canonical.values())
        return [
            Pass(PassKind.FAST, spans, sum(span.num_rows for span in spans)),
            Pass(
                PassKind.CANONICAL,
                tuple(canonical.values()),
                round_up(num_canonical, self.config.reference_rows),
            ),
        ]

    def _plan_canonical(self, decoding: list[Sequence], prefilling: list[Sequence]) -> dict[int, Span]:
        """Windows and deterministic prefill, packed ragged; rows that would be padding take further windows."""
        rows = self.config.reference_rows
        budget = self.config.max_pass_rows // rows * rows
        pending = [
            PendingWindow(seq.request_id, 1 + seq.log.num_candidates, seq.candidate_due, seq.last_judged)
            for seq in decoding
            if seq.deterministic and seq.log.num_candidates
        ]
        windows = choose_due(pending, rows, budget - rows if prefilling else budget)
        planned: dict[int, Span] = {}
        self._plan_prefill(prefilling, planned, budget - sum(window.num_rows for window in windows))
        used = sum(window.num_rows for window in windows) + sum(span.num_rows for span in planned.values())
        windows += fill_spare(pending, windows, round_up(used, rows) - used)
        for window in windows:
            seq = self._running.get(window.request_id)
            if seq is not None and self._make_room(seq, seq.log.total_len, planned):
                planned[seq.request_id] = canonical_span(seq, window.num_rows)
                self._open_window(seq)
        return planned

    def _plan_prefill(self, prefilling: Iterable[Sequence], planned: dict[int, Span], budget: int) -> None:
        """Chunks of prompts, oldest first. Their pages were taken at admission."""
        for seq in prefilling:
            if budget < 1:
                break
            if self._is_running(seq):
                span = planned[seq.request_id] = wanted_span(seq, budget)
                budget -= span.num_rows

    def _look_up(self, decoding: list[Sequence], prefilling: list[Sequence], budget: int) -> None:
        """Candidates from the sequences' own text, where they are worth their rows and pages are not short."""
        waiting = sum(seq.prefill_len - seq.computed_len for seq in prefilling)
        num_rows = min(budget, len(decoding) + waiting)
        spare = budget - num_rows
        for seq in decoding:
            if seq.lookup is None or seq.log.num_candidates or self.pool.num_available <= len(self._running):
                continue
            most = min(spare, num_worthwhile(seq.lookup.chance, num_rows))
            if most > 0:
                seq.look_up(most)
                spare -= seq.log.num_candidates
                num_rows += seq.log.num_candidates

    def _look_up_windows(self, decoding: list[Sequence]) -> None:
        """Whole windows of candidates: what must be confirmed, or what the look-up is fairly sure of."""
        for seq in decoding:
            sure = seq.lookup is not None and seq.lookup.chance >= WINDOW_CHANCE
            if not seq.log.num_candidates and (sure or seq.is_confirming):
                seq.look_up(seq.max_window)

    def _open_window(self, seq: Sequence) -> None:
        seq.last_judged = self._step
        seq.move(Phase.VERIFY)

    def _split(self) -> tuple[list[Sequence], list[Sequence]]:
        """Running sequences by arrival: those that decode, those that prefill."""
        running = self._by_arrival()
        return (
            [seq for seq in running if seq.phase is not Phase.PREFILL],
            [seq for seq in running if seq.phase is Phase.PREFILL],
        )

    def _by_arrival(self) -> list[Sequence]:
        return [self._running[request_id] for request_id in sorted(self._running)]

    def _is_running(self, seq: Sequence) -> bool:
        return seq.request_id in self._running

    def _make_room(self, seq: Sequence, length: int, planned: dict[int, Span]) -> bool:
        """Give the sequence its next slots, preempting the youngest unplanned one (itself at last) while pages lack."""
        if not self._is_running(seq):
            return False
        while seq.table.num_missing(length) > self.pool.num_available:
            victim = self._running[
                max(request_id for request_id in self._running if request_id not in planned)
            ]
            del self._running[victim.request_id]
            self._watch.forget(victim)
            victim.preempt()
            self._enqueue(victim)
            if victim is seq:
                return False
        seq.table.grow(length)
        return True

    def _enqueue(self, seq: Sequence) -> None:
        insort(self._queue, seq, key=lambda queued: queued.request_id)

    # One step: absorb

    def absorb(self, plan: Plan, results: Ordered[PassResult]) -> list[Event]:
        """Take in what the passes gave: commit, roll back, finish, make pages known."""
        self._in_flight = frozenset()
        self._reap()
        events: list[Event] = []
        for one, result in zip(plan.passes, results, strict=True):
            if one.kind is PassKind.CHECK:
                self._watch.close()
                events.append(CertificateChecked(one.num_rows, result.mismatch))
                if result.mismatch is not None:
                    self._revoke()
                    break  # what the other passes of this step gave is not to be trusted either
                continue
            for number, span in enumerate(one.spans):
                seq = self._running.get(span.request_id)
                if seq is not None:  # else it ended while the pass ran
                    scores = result.scores[number] if result.scores else ()
                    events.extend(self._absorb_span(seq, one, span, result.samples[number], scores))
        return events

    def _absorb_span(
        self,
        seq: Sequence,
        one: Pass,
        span: Span,
        samples: Ordered[Sampled],
        scores: Ordered[TokenLogprob],
    ) -> list[Event]:
        events: list[Event] = []
        new_scores = seq.absorb_scores(scores)
        if new_scores:
            events.append(PromptScored(seq.request_id, new_scores))
        committed: tuple[Sampled, ...] = ()
        if seq.failure is None:
            if one.kind is PassKind.CANONICAL:
                committed = seq.absorb_canonical(span, samples, one.certified)
            else:
                committed = seq.absorb_fast(span, samples)
            seq.finish_scoring()
        if span.watched:
            self._watch.note(span, samples)
        return events + self._settle(seq, committed, sampled=bool(samples))

    def _settle(self, seq: Sequence, committed: tuple[Sampled, ...], *, sampled: bool) -> list[Event]:
        events: list[Event] = []
        if self.config.prefix_cache:
            seq.index_pages()
        if committed:
            events.append(TokensCommitted(seq.request_id, committed))
        self._watch.settle(seq, ended=not seq.is_live)
        if seq.failure is not None:
            events.append(self._retire(seq, "error", seq.failure))
        elif seq.phase is Phase.FINISHED:
            assert seq.finish_reason is not None
            events.append(self._retire(seq, seq.finish_reason))
        elif seq.phase is Phase.VERIFY or (seq.phase is Phase.PREFILL and not seq.needs_prefill and sampled):
            seq.move(Phase.DECODE)
        return events

    def _revoke(self) -> None:
        """The certificate is wrong: forget all pages, verify from now on, and every answer again from its prompt."""
        self.config = replace(self.config, certified_sizes=())
        self.index.clear()
        for seq in (*self._queue, *self._by_arrival()):
            if not seq.deterministic:
                seq.distrust_pages()
                continue
            was_running = self._running.pop(seq.request_id, None) is not None
            seq.start_over()
            if was_running:
                self._enqueue(seq)

    def _end(
        self, seq: Sequence, phase: Phase, reason: FinishReason, error: str | None = None
    ) -> RequestEnded:
        seq.move(phase)
        return self._retire(seq, reason, error)

    def _retire(self, seq: Sequence, reason: FinishReason, error: str | None = None) -> RequestEnded:
        self._running.pop(seq.request_id, None)
        seq.drop_candidates()
        self._watch.forget(seq)
        if seq.request_id in self._in_flight:
            self._ended_in_flight[seq.request_id] = seq
        elif not self._watch.holds(seq):
            seq.release()
        return RequestEnded(seq.request_id, reason, seq.determinism, replace(seq.stats), error)

    def _reap(self) -> None:
        for seq in self._ended_in_flight.values():
            if not self._watch.holds(seq):
                seq.release()
        self._ended_in_flight.clear()

    # Integrity

    def check(self) -> None:
        """Raise if a page leaked, is held twice by mistake, or a length contradicts another."""
        holders: dict[int, int] = {}
        for seq in [*self._queue, *self._running.values(), *self._ended_in_flight.values()]:
            for page in seq.table.pages:
                holders[page] = holders.get(page, 0) + 1
        for page in self._watch.held_pages():
            holders[page] = holders.get(page, 0) + 1
        self.pool.check(holders)
        self.index.check()
        for seq in self._running.values():
            assert seq.canonical_len <= seq.computed_len <= seq.log.total_len
            written_from = seq.canonical_len if seq.deterministic else seq.computed_len
            for page in seq.table.pages[written_from // self.pool.page_size :]:
                assert holders[page] == 1, (
                    f"page {page} is shared and still to be written by {seq.request_id}"
                )
            if seq.deterministic and seq.phase is not Phase.PREFILL and not self._in_flight:
                assert seq.canonical_len == seq.log.committed_len - 1, (
                    "the last committed token opens the next window"
                )
