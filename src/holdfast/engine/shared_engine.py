"""One engine for the calls of several threads, without a thread of its own.

A caller that waits for outputs steps the engine, and hands out what a step gives to every call.
While one caller steps, the others wait at their inboxes; when it has what it waits for, another
takes over. Requests and aborts are posted, and run between two steps.

An interrupt in the middle of a step ends all calls: the interrupted one with the interrupt, the
others with `EngineStopped`. The engine stays usable. An interrupt may come between any two
instructions, also after the engine was taken and before it is given back. So who steps is recorded
with its thread: the same thread takes it back.
"""

import queue
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING

from holdfast.core.request import Prepared
from holdfast.core.results import RequestOutput
from holdfast.errors import EngineStopped, HoldfastError

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine

_TAKE_OVER_SECONDS = 0.02  # a waiting caller looks this often whether no other steps the engine

_INTERRUPTED = "the engine was interrupted in the middle of a step; submit the request again"
_NESTED = "this thread is in a step of the same engine already, and cannot wait for another answer there"
_LOST = "the engine lost this request; submit it again"


class Inbox:
    """The outputs of one call's requests, in the order the engine makes them.

    Without wants_deltas only outputs with a result are kept.
    """

    def __init__(self, requests: Sequence[Prepared], *, wants_deltas: bool = False) -> None:
        self.requests = requests
        self.open_ids = {request.request_id for request in requests}  # without a result yet
        self.wants_deltas = wants_deltas
        self.is_ended = False  # nothing is submitted any more
        self.outputs: queue.SimpleQueue[RequestOutput | HoldfastError] = queue.SimpleQueue()


@dataclass(frozen=True, eq=False)
class _Stepper:
    """The call that steps the engine, and its thread."""

    thread_id: int


class SharedEngine:
    """Runs the requests of several calls on one engine. Any thread may call it."""

    def __init__(self, engine: "Engine") -> None:
        self.engine = engine
        self._stepper: dict[str, _Stepper] = {}  # one entry; setdefault decides who gets it
        self._commands: deque[Callable[[], object]] = deque()
        self._inboxes: dict[int, Inbox] = {}  # by request id
        self._is_working = False  # still set at the next step: the last one was interrupted

    def start(self, inbox: Inbox) -> None:
        """Queue the requests of a call."""
        for request_id in inbox.open_ids:
            self._inboxes[request_id] = inbox
        self._commands.append(lambda: self._submit(inbox))

    def read(self, inbox: Inbox) -> RequestOutput:
        """Wait for the next output of a call. Raises what ended the call."""
        while not self._drive(lambda: not inbox.outputs.empty() or self._is_lost(inbox)):
            if self._is_stepping_here:
                raise EngineStopped(_NESTED)
            try:
                output = inbox.outputs.get(timeout=_TAKE_OVER_SECONDS)
                break
            except queue.Empty:
                continue
        else:
            output = EngineStopped(_LOST) if inbox.outputs.empty() else inbox.outputs.get()
        if isinstance(output, HoldfastError):
            raise output
        if output.result is not None:
            inbox.open_ids.discard(output.request_id)
        return output

    def abandon(self, inbox: Inbox) -> None:
        """End the requests of a call that have no result yet. A finaliser may call it in a step."""
        if inbox.open_ids and not inbox.is_ended:
            self._commands.append(lambda: self._abort(inbox))
        self._run_posted()

    def settle(self) -> None:
        """If no request is left: run the spot checks that are due, and read what is in flight."""
        self._run_posted()
        self._drive(lambda: self.engine.has_requests or not self.engine.has_work)

    def end_all(self, reason: str) -> None:
        """End every call with `EngineStopped`."""
        self._commands.append(lambda: self._end_all(reason))
        self._run_posted()

    # Who steps

    def _drive(self, is_done: Callable[[], bool], *, steps: bool = True) -> bool:
        """Work until this is done. False if another call steps the engine."""
        me = _Stepper(threading.get_ident())
        try:
            if not self._take(me):
                return False
            while not is_done():
                self._work(steps=steps)
        finally:
            if self._stepper.get("now") is me:
                del self._stepper["now"]
        if steps:
            self._run_posted()  # posted after the last step
        return True

    def _take(self, me: _Stepper) -> bool:
        holder = self._stepper.setdefault("now", me)
        if holder is not me and self._was_interrupted(holder):
            self._stepper["now"] = holder = me
        return holder is me

    def _was_interrupted(self, holder: _Stepper) -> bool:
        """Whether this holder will never give the engine back: its thread has ended, or it is this
        thread, outside of any step."""
        if holder.thread_id != threading.get_ident():
            return holder.thread_id not in sys._current_frames()
        frame: FrameType | None = sys._getframe(3)  # the caller of _drive
        while frame is not None:
            if frame.f_code is SharedEngine._drive.__code__ and frame.f_locals.get("self") is self:
                return False
            frame = frame.f_back
        return True

    @property
    def _is_stepping_here(self) -> bool:
        """Whether a signal handler or a callback runs inside a step of this thread."""
        holder = self._stepper.get("now")
        return holder is not None and holder.thread_id == threading.get_ident()

    def _run_posted(self) -> None:
        """Run posted commands, unless a call steps the engine: that one will run them."""
        if self._commands:
            self._drive(lambda: not self._commands, steps=False)

    # What is done between two steps, and the step

    def _work(self, *, steps: bool) -> None:
        """Run the posted commands, step, and hand out the outputs."""
        if self._is_working:
            self._end_all(_INTERRUPTED)
        self._is_working = True
        try:
            while self._commands:
                self._commands.popleft()()
            if steps:
                self._deliver(self.engine.step())
        except BaseException:
            self._end_all(_INTERRUPTED)
            raise
        self._is_working = False

    def _deliver(self, outputs: Sequence[RequestOutput]) -> None:
        for output in outputs:
            inbox = self._inboxes.get(output.request_id)
            if inbox is None:
                continue  # its call has ended
            if output.result is not None:
                inbox.outputs.put(output)
                del self._inboxes[output.request_id]
            elif inbox.wants_deltas:
                inbox.outputs.put(output)

    def _is_lost(self, inbox: Inbox) -> bool:
        """Whether no output can come any more. It cannot happen, and would wait for ever."""
        return not any(request_id in self._inboxes for request_id in inbox.open_ids)

    def _submit(self, inbox: Inbox) -> None:
        if inbox.is_ended:
            return
        try:
            for request in inbox.requests:
                self.engine.submit(request, wants_deltas=inbox.wants_deltas)
        except HoldfastError as error:
            self._abort(inbox)
            inbox.outputs.put(error)

    def _abort(self, inbox: Inbox) -> None:
        inbox.is_ended = True
        for request_id in sorted(inbox.open_ids):
            self.engine.abort(request_id)
            self._inboxes.pop(request_id, None)

    def _end_all(self, reason: str) -> None:
        for inbox in {id(inbox): inbox for inbox in self._inboxes.values()}.values():
            self._abort(inbox)
            inbox.outputs.put(EngineStopped(reason))
        self._is_working = False
