"""Which request killed an engine: one rule for an engine process and for the replicas of a pool.

When an engine dies, these of its requests are suspects: those that ran in the last pass, and those that
were still being prepared. If only its connection broke, nobody knows what ran; then those are that lost
their connection twice without an output in between.

    1. One suspect of the whole table is on trial. Its engine gets no other request until the trial has
       an output; other engines go on. Then the next suspect is tried. Suspects go before the others.
    2. An output clears a suspect.
    3. A suspect whose engine dies again is tried first next time. With one engine it runs alone then.
    4. A request that ran alone at MAX_LONE_DEATHS deaths in a row, without an output in between, ends
       with `EngineCrashed`. At a replica, which has requests of others, every death on trial counts.

A pass that raises makes its requests suspects without a restart. If it raises again on trial, the engine
process is restarted: the device may be broken, and then every pass raises. A request whose pass raises in
a process that has computed nothing else, or at two replicas, ends with `PassFailed`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto

from holdfast.core.results import Result
from holdfast.server.ipc.engine_port import EnginePort
from holdfast.server.ipc.response_stream import ResponseStream

# An operator or the kernel may kill a process by chance while a request is on trial.
MAX_LONE_DEATHS = 3


class Verdict(Enum):
    """What happens to a request whose pass raised."""

    TRY_AGAIN = auto()
    RESTART = auto()  # and try again
    GIVE_UP = auto()


@dataclass
class _Record:
    """What is held against a request since its last output."""

    is_suspect: bool = False
    num_losses: int = 0  # of its connection
    num_deaths: int = 0  # that count
    failure: Result | None = None  # its pass raised
    failed_at: set[str] = field(default_factory=set)  # the ids of those ports


_CLEAN = _Record()


class Suspects:
    """Keep what is held against requests. trial: the suspect that is tried now."""

    def __init__(self) -> None:
        self.trial: ResponseStream | None = None
        self._first: ResponseStream | None = None  # the suspect that is tried first
        self._records: dict[int, _Record] = {}  # by request id

    def __contains__(self, stream: ResponseStream) -> bool:
        return self._get(stream).is_suspect

    def failure(self, stream: ResponseStream) -> Result | None:
        return self._get(stream).failure

    def failed_at(self, stream: ResponseStream) -> set[str]:
        return self._get(stream).failed_at

    def in_order(self, streams: Iterable[ResponseStream]) -> list[ResponseStream]:
        """Return the suspects among these requests, as they are to be tried."""
        return sorted((one for one in streams if one in self), key=lambda one: one is not self._first)

    def begin_trial(self, stream: ResponseStream) -> None:
        self.trial, self._first = stream, None

    def clear(self, stream: ResponseStream) -> bool:
        """Clear a request that had an output or is over. Returns whether it was on trial."""
        return self._records.pop(stream.request_id, None) is not None and self.leave(stream)

    def leave(self, stream: ResponseStream) -> bool:
        """End the trial of a request that no engine computes now. Returns whether it was on trial."""
        was_on_trial = self.trial is stream
        if was_on_trial:
            self.trial = None
        return was_on_trial

    def on_death(self, port: EnginePort) -> ResponseStream | None:
        """Find the suspects of a port that is lost. Returns the request that is to be given up."""
        running = port.running_ids
        suspects = [one for one in port.streams.values() if self._is_suspected(one, running)]
        for stream in suspects:
            self._record(stream).is_suspect = True
        trial = self.trial
        if trial is None or trial not in suspects:
            return None
        self._first = trial
        record = self._record(trial)
        record.num_deaths += len(suspects) == 1 or not port.is_only
        return trial if record.num_deaths >= MAX_LONE_DEATHS else None

    def on_failed_pass(self, stream: ResponseStream, failure: Result, port: EnginePort) -> Verdict:
        """Decide on a request whose pass raised."""
        record = self._record(stream)
        failed_before = record.failure is not None
        record.is_suspect, record.failure = True, failure
        record.failed_at.add(port.id)
        if not port.is_only:
            return Verdict.GIVE_UP if failed_before else Verdict.TRY_AGAIN
        if self.trial is not stream:
            return Verdict.TRY_AGAIN
        self._first = stream
        return Verdict.GIVE_UP if port.num_submitted == 1 else Verdict.RESTART

    def _is_suspected(self, stream: ResponseStream, running: frozenset[int] | None) -> bool:
        if running is not None:
            return not stream.is_accepted or not running.isdisjoint(stream.ids)
        record = self._record(stream)
        record.num_losses += 1
        return record.is_suspect or record.num_losses > 1

    def _get(self, stream: ResponseStream) -> _Record:
        return self._records.get(stream.request_id, _CLEAN)

    def _record(self, stream: ResponseStream) -> _Record:
        return self._records.setdefault(stream.request_id, _Record())
