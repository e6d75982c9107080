"""A scripted model with a recurrent state beside its KV.

The state of a slot is the hash of all tokens up to its checkpoint; its log is a ring of the hashes after later tokens. A
pass must find there what is in the KV of its request: a stale checkpoint, an overwritten entry of the log, another
request's slot or a state that is not canonical shows at once.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from scripted import START, Context, ScriptedRunner

from holdfast.core.step_plan import Pass, PassKind, PassResult, Sampled, Span, TokenLogprob

KERNEL = 3  # a convolution reads two positions before the checkpoint


@dataclass(frozen=True)
class Kept:
    """What is known after the token before `length`."""

    length: int
    context: Context
    canonical: bool


_EMPTY = Kept(0, START, True)


class RecurrentRunner(ScriptedRunner):
    """log_len: entries of a slot's log."""

    def __init__(
        self,
        page_size: int,
        error_rate: float,
        seed: int,
        during: Callable[[], None] | None = None,
        corrupt_from: int | None = None,
        *,
        log_len: int,
    ) -> None:
        super().__init__(page_size, error_rate, seed, during, corrupt_from)
        self._log_len = log_len
        self._states: dict[int, Kept] = {}
        self._logs: dict[int, dict[int, Kept]] = {}
        self.num_loads = 0

    def _run_pass(self, one: Pass) -> PassResult:
        states = [span.state for span in one.spans if span.state is not None]
        assert len({state.slot for state in states}) == len(one.spans), "two requests share a state"
        for state in states:
            if state.load >= 0:
                assert self._states[state.load].length == state.checkpoint
                self._copy(state.load, state.slot)
                self.num_loads += 1
        for state in states:
            if state.snapshot >= 0:
                self._copy(state.slot, state.snapshot)
        result = super()._run_pass(one)
        for state in states:
            if state.save >= 0:
                self._copy(state.slot, state.save)
        return result

    def _copy(self, source: int, target: int) -> None:
        self._states[target] = self._states.get(source, _EMPTY)
        self._logs[target] = dict(self._logs.get(source, {}))

    def _run_span(
        self, span: Span, kind: PassKind, corrupt: bool
    ) -> tuple[tuple[Sampled, ...], tuple[TokenLogprob, ...]]:
        state = span.state
        assert state is not None
        assert 0 <= state.checkpoint <= span.start and state.checkpoint <= state.store <= span.stop
        known = self._states.get(state.slot, _EMPTY) if state.checkpoint else _EMPTY
        log = self._logs.setdefault(state.slot, {})
        assert known.length == state.checkpoint, "the checkpoint is elsewhere"
        before = [self._entry(log, at) for at in range(max(0, state.checkpoint - KERNEL + 1), span.start)]
        kv = self._read(span)
        for one in (*before, known):
            if one.length:
                assert one.context == kv[one.length - 1].context, "a stale state"
        if span.sampling.params.deterministic:
            if kind is PassKind.FAST:
                assert state.store == state.checkpoint, "a fast pass moves a deterministic state"
            else:
                assert known.canonical and all(one.canonical for one in before), "a state is not canonical"
        found = super()._run_span(span, kind, corrupt)
        for at in range(span.start, span.stop):
            slot = self._slots[self._slot(span, at)]
            log[at % self._log_len] = Kept(at + 1, slot.context, slot.canonical)
        if state.store > state.checkpoint:
            passed = self._passed(span, log, state.checkpoint, state.store)
            canonical = known.canonical and all(one.canonical for one in passed)
            self._states[state.slot] = replace(passed[-1], canonical=canonical)
        return found

    def _entry(self, log: dict[int, Kept], position: int) -> Kept:
        found = log.get(position % self._log_len)
        assert found is not None and found.length == position + 1, "the log holds another position"
        return found

    def _passed(self, span: Span, log: dict[int, Kept], first: int, stop: int) -> list[Kept]:
        """What is after each position from `first` on: of the span itself, or logged."""
        found = []
        for at in range(first, stop):
            slot = self._slots[self._slot(span, at)]
            found.append(
                Kept(at + 1, slot.context, slot.canonical) if at >= span.start else self._entry(log, at)
            )
        return found
