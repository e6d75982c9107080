"""An engine in a thread of its own, for callers in the same process.

Each call has a `RequestHandle`. It posts its requests and waits there for their outputs; an
interrupt reaches only such a caller. Nothing here holds a lock, so an interrupt or a finaliser may
come between any two lines.
"""

import atexit
import ctypes
import logging
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.core.garbage_collection import paused_collection
from holdfast.core.request import Prepared
from holdfast.core.results import Delta, RequestOutput, Result
from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.input_processor import Prompt
from holdfast.engine.loop import Command, EngineLoop
from holdfast.errors import EngineStopped, HoldfastError

if TYPE_CHECKING:
    import asyncio

    from holdfast.engine.engine import Engine

_log = logging.getLogger(__name__)
_CLOSED = "the engine is closed"


class RequestHandle:
    """The requests of one call, and their outputs in the order the engine makes them.

    Iterate over the handle of one request for deltas; then read `result`. One caller reads at a time.
    """

    def __init__(self, thread: "EngineThread", requests: Sequence[Prepared], *, wants_deltas: bool = True):
        """Without wants_deltas only outputs with a result come."""
        self.requests = requests
        self.wants_deltas = wants_deltas
        self.open_ids = {request.request_id for request in requests}  # without a result yet; the thread's
        self.outputs: queue.SimpleQueue[RequestOutput | HoldfastError] = queue.SimpleQueue()
        self.result: Result | None = None  # the one that was read last
        self._thread = thread
        self._async_reader: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    def start(self) -> None:
        """Queue the requests. Call it once."""
        self._thread.start(self)

    def cancel(self) -> None:
        """End the requests at the next step and free their pages. Their outputs come, too."""
        with suppress(EngineStopped):
            self._thread.post(lambda: self._thread.abort(self))

    def read(self) -> RequestOutput:
        """Wait for the next output. Raises what ended the call."""
        try:
            output = self.outputs.get_nowait()
        except queue.Empty:
            self._thread.await_output(self)
            output = self.outputs.get()
        return self._accept(output)

    def __iter__(self) -> Iterator[Delta]:
        while self.result is None:
            delta = self.read().delta
            if not delta.is_empty:
                yield delta

    def wait(self) -> Result:
        for _ in self:
            pass
        assert self.result is not None
        return self.result

    async def next_delta(self) -> Delta | None:
        """Return the next delta that is not empty, or None at the end. The engine must run freely."""
        import asyncio

        ready = asyncio.Event()
        self._async_reader = (asyncio.get_running_loop(), ready)
        while self.result is None:
            try:
                output = self.outputs.get_nowait()
            except queue.Empty:
                await ready.wait()
                ready.clear()
                continue
            delta = self._accept(output).delta
            if not delta.is_empty:
                return delta
        return None

    def put(self, output: RequestOutput | HoldfastError) -> None:
        self.outputs.put(output)
        if self._async_reader is not None:
            loop, ready = self._async_reader
            with suppress(RuntimeError):  # the reader's event loop is closed
                loop.call_soon_threadsafe(ready.set)

    def _accept(self, output: RequestOutput | HoldfastError) -> RequestOutput:
        if isinstance(output, HoldfastError):
            self.outputs.put(output)  # a second reader gets it, too
            raise output
        if output.result is not None:
            self.result = output.result
        return output


class EngineThread:
    """Makes an engine and runs it, until it is closed or the process ends.

    One thread builds the engine and steps it. Whatever a thread has for itself is its own: OpenMP
    workers, rounding and flushing (the default ones), modes of torch. Only the current GPU is the
    caller's. An interrupt of the caller while the engine is built is raised in the thread, too.

    only_while_awaited: the engine runs only while a caller waits at a handle. A caller that has its
    output can change settings of torch, and no step sees them.
    """

    def __init__(self, make: Callable[[], "Engine"], *, only_while_awaited: bool = False) -> None:
        """Raises what make raises."""
        self._handles: dict[int, RequestHandle] = {}  # by the ids of requests without a result
        self._end: str | None = None  # why nothing runs any more
        self._process_id = os.getpid()
        self._loop: EngineLoop
        made: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._make: Callable[[], Engine] | None = make
        arguments = (only_while_awaited, _current_gpu(), made)
        self._thread = threading.Thread(target=self._run, args=arguments, name="holdfast-engine", daemon=True)
        try:
            self._thread.start()
            error = made.get()
        except BaseException as interrupt:
            self._end = f"interrupted: {type(interrupt).__name__}"
            _raise_in(self._thread)
            raise
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback has this frame

    @property
    def engine(self) -> "Engine":
        return self._loop.engine

    def submit(self, prompt: Prompt, params: SamplingParams) -> RequestHandle:
        """Queue a request. An invalid one raises here and never reaches the engine."""
        handle = RequestHandle(self, [self.engine.prepare(prompt, params)])
        handle.start()
        return handle

    def start(self, handle: RequestHandle) -> None:
        for request_id in handle.open_ids:
            self._handles[request_id] = handle
        self.post(lambda: self._submit(handle))

    def post(self, command: Command) -> None:
        """Run a command between two steps. Raises `EngineStopped` if nothing runs any more."""
        if os.getpid() != self._process_id:
            raise EngineStopped("the engine's thread is in the process this one was forked from")
        self._loop.post(command)
        if self._end is not None:  # perhaps since the line before
            raise EngineStopped(self._end)

    def await_output(self, handle: RequestHandle) -> None:
        """Let the engine run until this handle has an output."""
        if threading.current_thread() is self._thread:
            raise EngineStopped("this is the engine's thread, which cannot wait for an answer of the engine")
        self.post(lambda: self._note_awaited(handle))

    def run_freely(self) -> None:
        """Let the engine run also while no caller waits."""
        self.post(self._run_freely)

    def synchronize(self) -> None:
        """Wait until the commands posted so far have run."""
        if threading.current_thread() is not self._thread:
            done = threading.Event()
            with suppress(EngineStopped):
                self.post(done.set)
                while not done.wait(0.1) and self._end is None:
                    pass

    def close(self) -> None:
        """Stop the thread. Requests that still run end with `EngineStopped`. It waits for a step."""
        if os.getpid() == self._process_id:
            self._end = self._end or _CLOSED
            self._loop.stop()
            if threading.current_thread() is not self._thread:  # as a finaliser may be
                self._thread.join()

    def __enter__(self) -> "EngineThread":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # In the thread

    def _run(
        self, only_while_awaited: bool, gpu: int | None, made: "queue.SimpleQueue[BaseException | None]"
    ) -> None:
        atexit.register(self._thread.join)  # a thread that still computes would crash the end of the process
        try:
            with paused_collection():
                _enter_defaults(gpu)
                assert self._make is not None and self._end is None
                engine, self._make = self._make(), None  # which may hold files that were read
                self._loop = EngineLoop(engine, self._deliver, only_while_awaited=only_while_awaited)
        except BaseException as error:
            made.put(error)
            return
        finally:
            atexit.unregister(self._thread.join)
        atexit.register(self.close)  # after what make has registered, so it runs before
        made.put(None)
        del engine
        try:
            self._loop.run()
        except BaseException as error:
            self._end = f"the engine failed: {type(error).__name__}: {error}"
            _log.exception("the engine's thread died")
        finally:
            self._end = self._end or _CLOSED
            for handle in {*self._handles.copy().values()}:
                handle.put(EngineStopped(self._end))
            self._handles.clear()
            atexit.unregister(self.close)

    def _run_freely(self) -> None:
        self._loop.runs_freely = True

    def _submit(self, handle: RequestHandle) -> None:
        try:
            for request in handle.requests:
                self.engine.submit(request, wants_deltas=handle.wants_deltas)
        except HoldfastError as error:
            handle.put(error)
            self.abort(handle)

    def abort(self, handle: RequestHandle) -> None:
        for request_id in sorted(handle.open_ids):
            self._deliver(self.engine.abort(request_id))
            self._handles.pop(request_id, None)
        handle.open_ids.clear()
        self._loop.awaited.discard(handle)

    def _note_awaited(self, handle: RequestHandle) -> None:
        if handle.outputs.empty():
            self._loop.awaited.add(handle)

    def _deliver(self, outputs: Sequence[RequestOutput]) -> None:
        for output in outputs:
            handle = self._handles.get(output.request_id)
            if handle is None:
                continue  # its call has ended
            if output.result is not None:
                del self._handles[output.request_id]
                handle.open_ids.discard(output.request_id)
            if handle.wants_deltas or not handle.open_ids:
                self._loop.awaited.discard(handle)
            handle.put(output)


def _current_gpu() -> int | None:
    torch = sys.modules.get("torch")
    return torch.cuda.current_device() if torch is not None and torch.cuda.is_initialized() else None


def _enter_defaults(gpu: int | None) -> None:
    """A thread inherits the floating-point environment of its creator."""
    from holdfast.numerics.settings_guard import enter_default_environment  # imports numpy

    enter_default_environment()
    if gpu is not None:
        import torch

        torch.cuda.set_device(gpu)


def _raise_in(thread: threading.Thread) -> None:
    """Raise an interrupt in another thread, at its next line."""
    if thread.ident is not None:
        raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
        raise_in(ctypes.c_ulong(thread.ident), ctypes.py_object(KeyboardInterrupt))
