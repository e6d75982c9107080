"""From live sequences to the passes of a step. A sequence is in at most one of them.

auto, certified   one canonical pass holds everything; its tokens are committed at once
verify            a fast pass for ordinary rows and candidates, a canonical one for windows and deterministic
                  prefill, its rows a multiple of the reference's
off               one fast pass
"""

from collections.abc import Iterable

from holdfast.core.phase import Phase
from holdfast.core.plan import Pass, PassKind, Span
from holdfast.kv.pool import PagePool
from holdfast.schedule.lookup import num_worthwhile
from holdfast.schedule.policy import (
    WINDOW_CHANCE,
    PendingWindow,
    SchedulerConfig,
    certified_size,
    choose_due,
    fill_spare,
    round_up,
)
from holdfast.schedule.roster import Roster
from holdfast.schedule.sequence import Sequence
from holdfast.schedule.spans import canonical_span, decode_span, ordinary_span, wanted_span
from holdfast.schedule.watch import Watch


class Packing:
    """Packs one step. Proposes look-ups, opens windows and makes room as it goes; the rest of the state stays as it is."""

    def __init__(
        self, config: SchedulerConfig, pool: PagePool, roster: Roster, watch: Watch, step: int
    ) -> None:
        self._config = config
        self._pool = pool
        self._roster = roster
        self._watch = watch
        self._step = step

    def passes(self) -> list[Pass]:
        """The passes in the order they run; some may be empty."""
        certified = self._config.determinism == "auto" and self._config.one_pass_suffices
        if certified or self._config.determinism == "off":
            return self._one_pass(certified)
        return self._two_passes()

    def _one_pass(self, certified: bool) -> list[Pass]:
        sizes = self._config.certified_sizes
        budget = min(self._config.max_pass_rows, sizes[-1]) if certified else self._config.max_pass_rows
        decoding, prefilling = self._roster.split()
        self._look_up(decoding, prefilling, budget)
        planned: dict[int, Span] = {}
        for seq in decoding:
            rows = 1 + seq.log.num_candidates
            if rows <= budget and self._roster.make_room(seq, seq.log.total_len, planned):
                planned[seq.request_id] = wanted_span(seq, rows)
                budget -= rows
                if seq.log.num_candidates:
                    self._open_window(seq)
        self._add_prefill(prefilling, planned, budget)
        spans = tuple(planned.values())
        num_rows = sum(span.num_rows for span in spans)
        size = certified_size(num_rows, sizes) if certified else None
        wanted = frozenset(
            span.request_id for span in spans if self._roster.running[span.request_id].deterministic
        )
        if size is not None and (wanted or size == num_rows):
            return [Pass(PassKind.CANONICAL, self._watch.mark(spans, wanted), size, certified=True)]
        assert not wanted, "deterministic rows without a certified size"
        return [Pass(PassKind.FAST, spans, num_rows)]

    def _two_passes(self) -> list[Pass]:
        decoding, prefilling = self._roster.split()
        proposing = [seq for seq in decoding if seq.deterministic]
        ordinary = [seq for seq in decoding if not seq.deterministic]
        self._look_up_windows(proposing)
        self._look_up(ordinary, prefilling, self._config.max_pass_rows - len(proposing))
        canonical = self._canonical_spans(decoding, [seq for seq in prefilling if seq.deterministic])
        fast: dict[int, Span] = dict(canonical)  # what is planned is safe from preemption
        budget = self._config.max_pass_rows
        for seq in decoding:
            if seq.request_id in canonical or not self._roster.is_running(seq):
                continue
            if seq.deterministic and seq.candidate_due:
                continue  # it waits for its verdict
            if self._roster.make_room(seq, seq.log.total_len, fast):
                rows = 1 if seq.deterministic else 1 + seq.log.num_candidates
                fast[seq.request_id] = decode_span(seq) if seq.deterministic else ordinary_span(seq, rows)
                budget -= rows
                if not seq.deterministic and seq.log.num_candidates:
                    self._open_window(seq)
        self._add_prefill([seq for seq in prefilling if not seq.deterministic], fast, budget)
        spans = tuple(span for request_id, span in fast.items() if request_id not in canonical)
        num_canonical = sum(span.num_rows for span in canonical.values())
        return [
            Pass(PassKind.FAST, spans, sum(span.num_rows for span in spans)),
            Pass(
                PassKind.CANONICAL,
                tuple(canonical.values()),
                round_up(num_canonical, self._config.reference_rows),
            ),
        ]

    def _canonical_spans(self, decoding: list[Sequence], prefilling: list[Sequence]) -> dict[int, Span]:
        """Windows and deterministic prefill, packed ragged; rows that would be padding take further windows."""
        rows = self._config.reference_rows
        budget = self._config.max_pass_rows // rows * rows
        pending = [
            PendingWindow(seq.request_id, 1 + seq.log.num_candidates, seq.candidate_due, seq.last_judged)
            for seq in decoding
            if seq.deterministic and seq.log.num_candidates
        ]
        windows = choose_due(pending, rows, budget - rows if prefilling else budget)
        planned: dict[int, Span] = {}
        self._add_prefill(prefilling, planned, budget - sum(window.num_rows for window in windows))
        used = sum(window.num_rows for window in windows) + sum(span.num_rows for span in planned.values())
        windows += fill_spare(pending, windows, round_up(used, rows) - used)
        for window in windows:
            seq = self._roster.running.get(window.request_id)
            if seq is not None and self._roster.make_room(seq, seq.log.total_len, planned):
                planned[seq.request_id] = canonical_span(seq, window.num_rows)
                self._open_window(seq)
        return planned

    def _add_prefill(self, prefilling: Iterable[Sequence], planned: dict[int, Span], budget: int) -> None:
        """Chunks of prompts, oldest first. Their pages were taken at admission."""
        for seq in prefilling:
            if budget < 1:
                break
            if self._roster.is_running(seq):
                span = planned[seq.request_id] = wanted_span(seq, budget)
                budget -= span.num_rows

    def _look_up(self, decoding: list[Sequence], prefilling: list[Sequence], budget: int) -> None:
        """Candidates from the sequences' own text, where they are worth their rows and pages are not short."""
        waiting = sum(seq.prefill_len - seq.computed_len for seq in prefilling)
        num_rows = min(budget, len(decoding) + waiting)
        spare = budget - num_rows
        for seq in decoding:
            if (
                seq.lookup is None
                or seq.log.num_candidates
                or self._pool.num_available <= len(self._roster.running)
            ):
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
