"""The recurrent state of one request: its slot, and up to which position the slot holds it.

    position   0 ....... checkpoint ........... start ........ stop
    slot       the state after these tokens
    log                     | inputs, computed again | the span  |

A span of a pass says where the checkpoint is and where it is afterwards (`core/step_plan.SpanState`). Passes run
in the order in which they are planned, so it is known as soon as a span is planned. It never passes a token
that may still be rolled back, and in a deterministic request no token that is not canonical.

At *edges* the state is saved for the prefix cache: at multiples of an interval, after the last full page of the
prompt, where other requests are known to go on in another way, and where this request's tokens left what
was cached. A span of a prompt ends at the next edge.
"""

from collections.abc import Collection

from holdfast.core.step_plan import SpanState
from holdfast.kv_cache.state_pool import KeptState, StatePool


class StateCursor:
    """What a request has of recurrent states. It holds a slot from `start` to `stop`.

    kept      the state that it started from, held until a pass has copied it
    saves     slots of states that are saved or being saved, by length. is_saved: those whose pass is over
    """

    def __init__(self, pool: StatePool, interval: int, prompt_edge: int, wanted: Collection[int]) -> None:
        """interval: 0: save nothing. prompt_edge: after the last full page of the prompt. wanted: edges that
        other requests ask for."""
        self._pool = pool
        self._interval = interval
        self._prompt_edge = prompt_edge
        self._wanted = wanted
        self._loads = False
        self._planned_save = -1  # of a span that is not planned yet
        self.kept: KeptState | None = None
        self.slot = -1
        self.checkpoint = 0
        self.saves: dict[int, int] = {}
        self.is_saved: set[int] = set()

    def start(self, kept: KeptState | None, length: int) -> None:
        """Take a slot, and start from a kept state after `length` tokens that `StatePool.read` holds."""
        self.slot = self._pool.take()
        self.kept, self.checkpoint = kept, length
        self._loads = kept is not None

    def stop(self) -> None:
        """Give everything back."""
        self._end_read()
        self._drop_planned_save()
        for length in tuple(self.saves):
            self._pool.give_back(self.saves.pop(length))
        if self.slot >= 0:
            self._pool.drop(self.slot)
        self.slot, self.checkpoint, self._loads = -1, 0, False
        self.is_saved.clear()

    def limit(self, start: int, stop: int) -> int:
        """Return where a span of known tokens from `start` ends, at `stop` at the latest."""
        return min((stop, *self._edges(start, stop)))

    def span(self, start: int, stop: int, certain_len: int) -> SpanState:
        """Return the state of the next span; `advance` follows if it is planned. certain_len: no token before it
        is ever rolled back, or computed again in another form."""
        self._drop_planned_save()
        store = max(self.checkpoint, min(stop, certain_len))
        edges = [edge for edge in self._edges(self.checkpoint, store) if edge not in self.saves]
        if edges and (save := self._pool.lend()) >= 0:
            store, self._planned_save = max(edges), save
        load = self.kept.slot if self.kept is not None and self._loads else -1
        return SpanState(self.slot, self.checkpoint, store, load, -1, self._planned_save)

    def advance(self, span: SpanState) -> None:
        """Note that the span is planned."""
        self.checkpoint, self._loads = span.store, False
        if span.save >= 0:
            self.saves[span.store], self._planned_save = span.save, -1

    def finish(self, span: SpanState) -> None:
        """Note that the pass of a span is over."""
        if span.load >= 0:
            self._end_read()
        if span.save >= 0:
            self.is_saved.add(span.store)

    def take_saved(self, length: int) -> dict[int, int]:
        """Return the slots of states after up to `length` tokens that are saved; they are the caller's now."""
        found = {one: self.saves.pop(one) for one in sorted(self.is_saved) if one <= length}
        self.is_saved.difference_update(found)
        return found

    @property
    def lent(self) -> tuple[int, ...]:
        """The slots that were lent to it."""
        planned = () if self._planned_save < 0 else (self._planned_save,)
        return (*self.saves.values(), *planned)

    def _drop_planned_save(self) -> None:
        if self._planned_save >= 0:
            self._pool.give_back(self._planned_save)
            self._planned_save = -1

    def _end_read(self) -> None:
        if self.kept is not None:
            self._pool.end_read(self.kept)
            self.kept = None

    def _edges(self, start: int, stop: int) -> list[int]:
        """Return the edges after `start`, up to `stop`."""
        if not self._interval:
            return []
        first = start // self._interval * self._interval + self._interval
        others = (self._prompt_edge, *sorted(self._wanted))
        return [*range(first, stop + 1, self._interval), *(one for one in others if start < one <= stop)]
