"""The protocol's state machine: requests come, passes are planned, what they said is taken in.

One step is `plan`, then the runner, then `absorb`. A sequence is in at most one pass of a step, so between a window
and its verdict nothing else touches it. Now and then a pass checks the certificate (`watch.py`) in front of the others. If it
finds it wrong, every deterministic request starts over from its prompt, and from then on everything is verified.
"""

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
from holdfast.schedule.packing import Packing
from holdfast.schedule.policy import SchedulerConfig
from holdfast.schedule.roster import Roster
from holdfast.schedule.sequence import Sequence
from holdfast.schedule.watch import Watch


class Scheduler:
    """All live sequences and the pages they hold."""

    def __init__(self, config: SchedulerConfig, pool: PagePool) -> None:
        self.config = config
        self.pool = pool
        self.index = PrefixIndex(pool)
        self._in_flight: frozenset[int] = frozenset()
        self._ended_in_flight: dict[int, Sequence] = {}
        self._step = 0
        rate = config.spot_check_rate if config.determinism == "auto" else 0.0
        self._watch = Watch(rate, config.reference_rows, pool)
        self._roster = Roster(config, pool, self.index, self._watch)

    # Requests come and go

    @property
    def num_waiting(self) -> int:
        return len(self._roster.queue)

    @property
    def num_running(self) -> int:
        return len(self._roster.running)

    @property
    def waiting_ids(self) -> frozenset[int]:
        """The requests that hold no pages yet, or not any more."""
        return frozenset(seq.request_id for seq in self._roster.queue)

    @property
    def sequences(self) -> tuple[Sequence, ...]:
        """Everything live, by arrival; to be looked at, not changed."""
        return tuple(
            sorted((*self._roster.queue, *self._roster.running.values()), key=lambda seq: seq.request_id)
        )

    @property
    def has_work(self) -> bool:
        return bool(self._roster.queue or self._roster.running) or self._watch.is_due

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
        self._roster.enqueue(
            Sequence(request, text, self.pool, self.index, max_window, grammar=grammar, speculates=speculates)
        )

    def abort(self, request_id: int) -> list[Event]:
        """End a request now. Pages a running pass writes to are given back when that pass is absorbed."""
        for seq in self._roster.queue:
            if seq.request_id == request_id:
                self._roster.queue.remove(seq)
                return [self._end(seq, Phase.ABORTED, "abort")]
        running = self._roster.running.get(request_id)
        return [] if running is None else [self._end(running, Phase.ABORTED, "abort")]

    def fail(self, plan: Plan, message: str) -> list[Event]:
        """A pass of this plan raised: every request in it ends, the others go on."""
        self._in_flight = frozenset()
        ids = {span.request_id for one in plan.passes for span in one.spans}
        self._watch.close()
        self._reap()
        failed = [seq for seq in self._roster.by_arrival() if seq.request_id in ids]
        for seq in failed:
            seq.failure = message
        return [self._end(seq, Phase.FAILED, "error", message) for seq in failed]

    # One step: plan

    def plan(self) -> Plan:
        """The passes of the next step; empty if there is nothing to do."""
        assert not self._in_flight, "the last plan was not absorbed"
        self._step += 1
        checks = self._watch.plan_checks(self.num_running)
        self._roster.admit()
        passes = Packing(self.config, self.pool, self._roster, self._watch, self._step).passes()
        plan = Plan(tuple(one for one in [*checks, *passes] if one.spans))
        self._in_flight = frozenset(span.request_id for one in plan.passes for span in one.spans)
        return plan

    # One step: absorb

    def absorb(self, plan: Plan, results: Ordered[PassResult]) -> list[Event]:
        """Take in what the passes gave: commit, roll back, finish, make pages known."""
        self._in_flight = frozenset()
        self._watch.close()
        self._reap()
        events: list[Event] = []
        for one, result in zip(plan.passes, results, strict=True):
            if one.kind is PassKind.CHECK:
                events.append(CertificateChecked(one.num_rows, result.mismatch))
                if result.mismatch is not None:
                    self._revoke()
                    break  # what the other passes of this step gave is not to be trusted either
                continue
            for number, span in enumerate(one.spans):
                seq = self._roster.running.get(span.request_id)
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
        for seq in (*self._roster.queue, *self._roster.by_arrival()):
            self._watch.forget(seq)
            if not seq.deterministic:
                seq.distrust_pages()
                continue
            was_running = self._roster.running.pop(seq.request_id, None) is not None
            seq.start_over()
            if was_running:
                self._roster.enqueue(seq)

    def _end(
        self, seq: Sequence, phase: Phase, reason: FinishReason, error: str | None = None
    ) -> RequestEnded:
        seq.move(phase)
        return self._retire(seq, reason, error)

    def _retire(self, seq: Sequence, reason: FinishReason, error: str | None = None) -> RequestEnded:
        self._roster.running.pop(seq.request_id, None)
        seq.drop_candidates()
        self._watch.forget(seq)
        if seq.request_id in self._in_flight:
            self._ended_in_flight[seq.request_id] = seq
        elif not self._watch.holds(seq):
            seq.release()
        return RequestEnded(seq.request_id, reason, seq.determinism, seq.final_stats(), error)

    def _reap(self) -> None:
        for seq in self._ended_in_flight.values():
            if not self._watch.holds(seq):
                seq.release()
        self._ended_in_flight.clear()

    # Integrity

    def check(self) -> None:
        """Raise if a page leaked, is held twice by mistake, or a length contradicts another."""
        holders: dict[int, int] = {}
        live = [*self._roster.queue, *self._roster.running.values()]
        ended = [*self._ended_in_flight.values(), *self._watch.sequences]
        for seq in {seq.request_id: seq for seq in [*live, *ended]}.values():
            for page in seq.table.pages:
                holders[page] = holders.get(page, 0) + 1
        for page in self._watch.scratch_pages:
            holders[page] = holders.get(page, 0) + 1
        self.pool.check(holders)
        self.index.check()
        for seq in self._roster.running.values():
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
